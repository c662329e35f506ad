"""Row 2: several layers at once. Compared with the training written by hand, to float32's precision; calls are counted exactly."""

from __future__ import annotations

from collections import Counter

import keras
import numpy as np

import by_hand
import fitscope as fs
from complete import asked

SITES = ["activations/head", "activations/hidden", "activations/relu"]


def test_all_layers_are_recorded_from_one_step(watch_fit, tools):
    x, y = by_hand.data()
    watch = [
        fs.activations("hidden", "relu", "head", keep="tensor"),
        fs.gradients("hidden", "head", keep="tensor"),
    ]
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=2)
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    assert asked(seen.run) == [*SITES, "gradients/head", "gradients/hidden"]
    for site in asked(seen.run):
        tools.every_value(seen.run, site, by)
    for step in range(6):  # of one pass: each layer's output is what the next one got, to the last bit
        relu = seen.run.array("activations/relu", step)
        np.testing.assert_array_equal(np.maximum(seen.run.array("activations/hidden", step), 0), relu)


def test_no_layer_runs_more_often(tmp_path, tools, page_says):
    """Counted in eager steps, where each run of a layer is a call of Python."""
    x, y = by_hand.data(16)
    calls: Counter[str] = Counter()

    class Counted(keras.layers.Dense):
        def call(self, inputs):
            calls[self.name] += 1
            return super().call(inputs)

    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        layers = [Counted(4, name="first"), Counted(4, name="second"), Counted(3, name="third")]
        model = keras.Sequential([keras.layers.Input((6,)), *layers])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        return model

    class Probes(keras.callbacks.Callback):
        """The usual way: a model for each layer."""

        def on_train_batch_end(self, batch, logs=None):
            for layer in self.model.layers:
                keras.Model(self.model.inputs, layer.output)(x[8 * batch : 8 * batch + 8])

    def fit(*callbacks) -> dict[str, int]:
        model = make()
        for _ in range(
            2
        ):  # in the first Keras itself calls the layers once more, to build the optimizer's state
            calls.clear()
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=list(callbacks))
        return dict(calls)

    plain = fit()
    assert set(plain.values()) == {2}
    watched = fit(fs.Scope(tmp_path, [fs.activations(keep="tensor"), fs.gradients(keep="tensor")], every=1))
    assert watched == plain
    probed = fit(Probes())
    assert probed == {"first": 8, "second": 6, "third": 4}
    times = probed["first"] // plain["first"]
    page_says(f"the first of three layers runs {times} times per batch")
