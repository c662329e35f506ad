"""Row 1: the output of a named layer at every training batch. Compared with the training written by hand, to float32's precision; what
`scope.batch` shows live is compared with what is recorded, exactly."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs
from complete import asked


class Probe(keras.callbacks.Callback):
    """The usual way: a second model of the same layers, run on the batch after the step."""

    def __init__(self, x: np.ndarray, layer: str, seen: list[np.ndarray]) -> None:
        super().__init__()
        self.x, self.layer, self.seen = x, layer, seen

    def on_train_batch_end(self, batch, logs=None):
        model = self.model
        probe = keras.Model(model.inputs, model.get_layer(self.layer).output)
        self.seen.append(probe.predict_on_batch(self.x[8 * batch : 8 * batch + 8]))


def test_the_output_of_a_named_layer_is_recorded_for_every_batch(watch_fit, tools, page_says):
    x, y = by_hand.data()
    late: list[np.ndarray] = []
    seen = watch_fit(
        tools.make, x, y, watch=fs.activations("hidden", keep="tensor"), epochs=2,
        callbacks=lambda: [Probe(x, "hidden", late)],
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    assert asked(seen.run) == ["activations/hidden"]
    tools.every_value(seen.run, "activations/hidden", by)

    late = late[6:]  # of the watched one of the two trainings
    off = [np.abs(late[i] - by[i]["activations/hidden"]).max() for i in range(6)]
    sizes = [np.abs(by[i]["activations/hidden"]).mean() for i in range(6)]
    page_says(f"off by up to {max(off):.2f}; an average value is {np.mean(sizes):.2f}")
    by_their_weights = by_hand.forward(by.after(1), x[:8])["hidden"]
    tools.close(late[0], by_their_weights)  # it is the next step's weights that it shows


def test_a_callback_reads_the_output_of_the_newest_batch(tmp_path, tools):
    x, y = by_hand.data()
    live: list[tuple[int, np.ndarray]] = []

    class Live(keras.callbacks.Callback):
        def __init__(self, scope):
            super().__init__()
            self.scope = scope

        def on_train_batch_end(self, batch, logs=None):
            live.append((self.scope.batch.step, np.array(self.scope.batch["activations/hidden"])))

    model, twin = tools.make(), tools.make()
    twin.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    scope = fs.Scope(tmp_path, fs.activations("hidden", keep="tensor"), every=1)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[scope, Live(scope)])
    tools.same(model, twin)
    by = by_hand.train(by_hand.weights(), x, y)
    assert [step for step, _ in live] == [0, 1, 2]
    for step, value in live:
        tools.close(value, by[step]["activations/hidden"])


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="only there the state of a training lies outside of the model"
)
def test_running_a_second_model_inside_fit_fails(tools, page_says):
    x, y = by_hand.data()
    model = tools.make()
    probe = keras.Model(model.inputs, model.get_layer("hidden").output)

    class Outside(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            probe.predict_on_batch(x[:8])

    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[Outside()])
    page_says("`TypeError: 'NoneType' object is not callable`")


def test_the_output_has_the_dropout_of_the_step(watch_fit, page_says):
    """A second pass has none, so that what the network was trained on is never seen."""
    x, y = by_hand.data(200)
    late: list[np.ndarray] = []

    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.layers.Input((6,)), keras.layers.Dropout(0.5, name="drop"), keras.layers.Dense(3)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    seen = watch_fit(
        make, x, y, watch=[fs.activations("drop", keep="tensor"), fs.inputs(keep="tensor")],
        callbacks=lambda: [Probe(x, "drop", late)],
    )  # fmt: skip
    for step in range(25):
        shown, given = seen.run.array("activations/drop", step), seen.run.array("inputs", step)
        np.testing.assert_array_equal(given, x[8 * step : 8 * step + 8])
        np.testing.assert_array_equal(shown, np.where(shown == 0, 0, 2 * given))
    zeros = np.mean([(seen.run.array("activations/drop", step) == 0).mean() for step in range(25)])
    assert 0.4 < zeros < 0.6
    assert not any((value == 0).any() for value in late)
    page_says("In the step, half of the outputs of a `Dropout(0.5)` are zero; in the second pass none is")
