"""Layers, losses, metrics and inputs that are not the usual ones: each is recorded, or named with the true reason."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

import fitscope as fs
from complete import assert_complete, captured
from watching import EACH_MODE, everything

BACKEND = keras.backend.backend()
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}
RNG = np.random.default_rng(9)
X, Y = RNG.normal(size=(16, 5)).astype("float32"), RNG.normal(size=(16, 2)).astype("float32")
ONLY_TF = pytest.mark.skipif(BACKEND != "tensorflow", reason="a case of TensorFlow")


def sequential(*parts, loss="mse", **compile_):
    """Of layers, each as a function that makes it: a layer draws its seed when it is made."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), *(make() for make in parts)])
    model.compile(**{"optimizer": "sgd", "loss": loss, **compile_})
    return model


# ---- quantized layers and LoRA -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["int8", "int4", "float8", "lora", "int8 lora"])
def test_quantized_and_adapted_layers_are_recorded(tmp_path, watch_fit, how):
    def make():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((5,)), layers.Dense(8, name="first"), layers.Dense(2, name="last")]
        )
        if "lora" in how:
            model.get_layer("first").enable_lora(2)
        if how != "lora":
            model.quantize(how.split()[0])
        model.compile("sgd", "mse")
        return model

    seen = watch_fit(make, X, Y)
    assert {"activations/first", "activations/last", "gradients/first"} <= set(seen.run.sites)
    last = seen.model.predict(
        X[:8], verbose=0
    )  # of the trained weights: about the same, as the rate is small
    np.testing.assert_allclose(seen.at("activations/last", 1)[:0].shape[1:], last.shape[1:])
    assert np.array_equal(seen.at("predictions"), seen.at("activations/last"))
    if "lora" in how:
        assert "weight_gradients/first/lora_kernel_a" in seen.run.sites


# ---- a loss that is not one number ---------------------------------------------------------------------------


def test_a_loss_that_was_not_reduced_has_a_mean(tmp_path):
    model = sequential(
        lambda: layers.Dense(2, name="last"), loss=keras.losses.MeanSquaredError(reduction="none")
    )
    scope = fs.Scope(tmp_path, [fs.loss(per_sample=True), fs.predictions(), fs.targets()], every=1)
    if BACKEND == "tensorflow":  # the others cannot differentiate it
        model.fit(X, Y, callbacks=[scope], **FIT)
        assert scope.batch["loss"].shape == (8,)  # itself, for whoever asks for it now
    model.evaluate(X, Y, batch_size=8, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert run.errors == []
    for prefix in ("", "evaluate/") if BACKEND == "tensorflow" else ("evaluate/",):
        for n in (0, 1):
            index = n if not prefix else (run.series("evaluate/loss").index[0][0], n)
            error = run.tensor(f"{prefix}predictions").values - run.tensor(f"{prefix}targets").values
            each = (error.reshape(16, 2) ** 2).mean(axis=1)[8 * n : 8 * n + 8]
            np.testing.assert_allclose(run.series(f"{prefix}loss").loc[index], each.mean(), rtol=1e-5)
            samples = run.samples[
                (run.samples["pass"] == (prefix.strip("/") or "train")) & (run.samples.batch == n)
            ]
            np.testing.assert_allclose(samples.loss, each, rtol=1e-5)
    if BACKEND == "tensorflow":
        assert run.plot.loss().to_text()
    else:  # nothing was trained
        with pytest.raises(fs.RunError, match="loss of its batches"):
            run.plot.loss()


@ONLY_TF
@EACH_MODE
def test_a_step_that_differentiates_a_vector_is_recorded(tmp_path, mode):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = layers.Dense(2, name="last")

        def call(self, x):
            return self.last(x)

        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = ops.mean((self(x) - y) ** 2, axis=-1)
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return {"own": tf.reduce_mean(loss)}

    keras.utils.set_random_seed(0)
    model = Own()
    model.compile("sgd", **mode)
    watch = [fs.loss(per_sample=True), fs.predictions(), fs.targets()]
    logs = model.fit(X, Y, callbacks=[fs.Scope(tmp_path, watch, every=1)], **FIT).history
    run = fs.open(tmp_path)
    assert run.errors == []
    np.testing.assert_allclose(run.series("loss").iloc[-1], logs["own"][0], rtol=1e-5)
    each = ((run.array("predictions", 0) - run.array("targets", 0)) ** 2).mean(axis=1)
    np.testing.assert_allclose(run.samples[run.samples.step == 0].loss, each, rtol=1e-5)


# ---- metrics of one name -------------------------------------------------------------------------------------


def test_two_metrics_of_one_name_are_both_recorded(tmp_path):
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = layers.Dense(2, name="last")
            self.a, self.b = (keras.metrics.Mean(name="error") for _ in range(2))

        def call(self, x):
            return self.last(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.a.update_state(ops.abs(y - y_pred))
            self.b.update_state((y - y_pred) ** 2)
            return ops.mean((y - y_pred) ** 2)

    keras.utils.set_random_seed(0)
    model = Twice()
    of_compile = [keras.metrics.MeanSquaredError(name="m"), keras.metrics.MeanAbsoluteError(name="m")]
    model.compile("sgd", metrics=of_compile)
    model.fit(X, Y, callbacks=[fs.Scope(tmp_path, [fs.metrics(), fs.loss()], every=1)], **FIT)
    run = fs.open(tmp_path)
    assert run.errors == []
    names = {site for site in run.sites if site.startswith("metrics/")}
    assert names == {"metrics/error", "metrics/error_1", "metrics/m", "metrics/m_1"}
    np.testing.assert_allclose(run.series("metrics/error_1"), run.series("loss"), rtol=1e-6)
    np.testing.assert_allclose(run.series("metrics/m"), run.series("loss"), rtol=1e-5)
    np.testing.assert_allclose(run.series("metrics/m_1"), run.series("metrics/error"), rtol=1e-5)
    assert not np.allclose(run.series("metrics/error"), run.series("metrics/error_1"))


# ---- the loss from the logits --------------------------------------------------------------------------------


@EACH_MODE
@pytest.mark.parametrize(("activation", "loss"), [("softmax", "categorical"), ("sigmoid", "binary")])
def test_the_gradient_at_the_logits_is_recorded_if_keras_computes_the_loss_from_them(
    watch_fit, mode, activation, loss
):
    y = np.eye(2, dtype="float32")[RNG.integers(0, 2, 16)]

    def make():
        return sequential(
            lambda: layers.Dense(2, activation=activation, name="head"), loss=f"{loss}_crossentropy", **mode
        )

    seen = watch_fit(make, X, y)
    wrong = seen.at("predictions") - y[:8]  # times 1/n is the gradient at the logits
    wrong = wrong / (8 if activation == "softmax" else 16)
    if BACKEND == "tensorflow":
        assert "gradients/head" not in seen.run.sites
        assert "gradients/head/logits" in seen.run.unseen["gradients/head"]
        np.testing.assert_allclose(seen.at("gradients/head/logits"), wrong, rtol=1e-4, atol=1e-6)
    else:
        assert "gradients/head" in seen.run.sites
        assert "gradients/head" not in seen.run.unseen


def test_a_softmax_in_the_middle_has_its_own_gradient(watch_fit):
    seen = watch_fit(
        lambda: sequential(
            lambda: layers.Dense(3, activation="softmax", name="soft"), lambda: layers.Dense(2, name="last")
        ),
        X,
        Y,
    )
    assert "gradients/soft" in seen.run.sites
    assert not any("logits" in site for site in seen.run.sites)


def test_layers_that_depend_on_no_weight_are_listed_as_unseen(tmp_path):
    """The augmentation in front of a network: its outputs depend on no weight."""
    model = sequential(
        lambda: layers.Rescaling(2.0, name="scale"),
        lambda: layers.GaussianNoise(0.1, name="noise"),
        lambda: layers.Dense(2, name="last"),
    )
    model.fit(X, Y, callbacks=[fs.Scope(tmp_path, [fs.gradients(), fs.activations()], every=1)], **FIT)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run)
    assert "gradients/last" in run.sites
    for name in ("scale", "noise"):
        assert f"activations/{name}" in run.sites
        if f"gradients/{name}" not in run.sites:
            assert "trained" in run.unseen[f"gradients/{name}"]


# ---- inputs without a plain shape ------------------------------------------------------------------------------


@ONLY_TF
def test_sparse_and_ragged_inputs_are_recorded_and_text_gives_a_reason(tmp_path):
    import tensorflow as tf

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.last = layers.Dense(1, name="last")

        def call(self, x):
            return self.last(tf.sparse.to_dense(x["sparse"]) + tf.reduce_sum(x["ragged"], axis=1)[:, None])

    data = tf.data.Dataset.from_tensor_slices(
        (
            {
                "sparse": tf.sparse.from_dense(tf.constant([[0.0, 2.0], [3.0, 0.0], [0.0, 4.0], [5.0, 0.0]])),
                "ragged": tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0]]),
                "text": tf.constant(["a", "b", "c", "d"]),
            },
            tf.zeros((4, 1)),
        )
    ).batch(2)
    model = Own()
    model.compile("sgd", "mse")
    scope = fs.Scope(tmp_path, [fs.inputs(keep="both"), fs.loss()], every=1)
    model.fit(data, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run)
    assert run.unseen["inputs/text"] == "it holds no numbers (text, or a handle)"
    assert run.unseen["inputs/sparse"] == (
        "it is a sparse tensor; the numbers in it are recorded as inputs/sparse/values"
    )
    assert run.unseen["inputs/ragged"].startswith("it is a ragged tensor")
    assert run.array("inputs/sparse/values", 0).tolist() == [2.0, 3.0]
    assert run.array("inputs/ragged/values", 0).tolist() == [1.0, 2.0, 3.0]


@ONLY_TF
def test_inputs_that_are_all_text_have_no_other_reason(tmp_path):
    import tensorflow as tf

    words = layers.StringLookup(vocabulary=["a", "b"])
    inputs = [keras.Input((1,), dtype="string", name=name) for name in ("word", "kind")]
    numbers = layers.Concatenate()([words(each) for each in inputs])
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(3, 2)(numbers))))
    model.compile("sgd", "mse")
    text = tf.constant([["a"], ["b"]])
    data = tf.data.Dataset.from_tensor_slices(((text, text), tf.zeros((2, 1)))).batch(2)
    model.fit(data, verbose=0, callbacks=[fs.Scope(tmp_path, [fs.inputs()], every=1)])
    run = fs.open(tmp_path)
    assert run.unseen == dict.fromkeys(
        ("inputs/word", "inputs/kind"), "it holds no numbers (text, or a handle)"
    )
    assert_complete(run)


def test_a_loss_with_a_custom_call_gives_the_reason_for_missing_samples(tmp_path):
    class Own(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.mean((y_true - y_pred) ** 2, axis=-1)

        def __call__(self, y_true, y_pred, sample_weight=None):
            return ops.max(self.call(ops.cast(y_true, "float32"), y_pred))

    model = sequential(lambda: layers.Dense(2, name="last"), loss=Own(name="own"))
    with pytest.warns(fs.FitscopeWarning, match="overrides `__call__`"):
        model.fit(X, Y, callbacks=[fs.Scope(tmp_path, fs.loss(per_sample=True), every=1)], **FIT)
    run = fs.open(tmp_path)
    assert "overrides `__call__`" in run.unseen["sample_loss"]
    assert_complete(run)
    assert len(captured(run)) == 2


@ONLY_TF
def test_recording_losses_of_samples_traces_the_step_no_extra_time(tmp_path):
    traces = []

    class Own(keras.Sequential):
        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    def count(watch):
        traces.clear()
        keras.utils.set_random_seed(0)
        model = Own([keras.Input((5,)), layers.Dense(2, name="last")])
        model.compile("sgd", "mse")
        model.fit(X, Y, callbacks=[fs.Scope(tmp_path, watch, every=1)], **FIT)
        return len(traces)

    plain = count(fs.loss())
    assert count(fs.loss(per_sample=True)) == plain
    assert len(fs.open(tmp_path).samples) >= 16


# ---- steps that are functions of their own -----------------------------------------------------------------------


@ONLY_TF
@EACH_MODE
def test_a_train_step_that_is_a_tf_function_is_recorded(watch_fit, mode):
    import tensorflow as tf

    class Own(keras.Sequential):
        @tf.function
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predictions = self(x, training=True)
                loss = tf.constant(0.0)
                for i in range(2):
                    loss += tf.reduce_mean((predictions[:, i] - y[:, i]) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss}

    def make():
        keras.utils.set_random_seed(0)
        model = Own([keras.Input((5,)), layers.Dense(3, name="first"), layers.Dense(2, name="last")])
        model.compile("sgd", **mode)
        return model

    seen = watch_fit(make, X, Y)
    assert {"loss", "activations/first", "gradients/first", "weight_gradients/last/kernel"} <= set(
        seen.run.sites
    )


# ---- one run for a model ---------------------------------------------------------------------------------------


def test_fit_after_a_new_compile_continues_the_run(tmp_path, small, xy):
    model = small()
    scope = fs.Scope(tmp_path, fs.loss(), every=1)
    model.fit(*xy, callbacks=[scope], **FIT)
    model.compile(keras.optimizers.Adam(1e-3), "mae")
    model.fit(*xy, callbacks=[scope], epochs=2, **FIT)
    model.fit(*xy, callbacks=[scope], **FIT)
    assert len(fs.runs(tmp_path)) == 1
    assert captured(fs.open(tmp_path)) == list(range(12))


def test_every_watched_site_of_all_passes_is_recorded_or_explained(tmp_path):
    """A layer that nobody calls, one whose output has no gradient, text that is no number."""

    class Odd(keras.Model):
        def __init__(self):
            super().__init__()
            self.whole = Whole(name="whole")
            self.last, self.unused = layers.Dense(2, name="last"), layers.Dense(3, name="unused")

        def call(self, x):
            return self.last(ops.cast(self.whole(x), "float32") + x)

    class Whole(layers.Layer):
        def call(self, x):
            return ops.cast(x, "int32")

    keras.utils.set_random_seed(0)
    model = Odd()
    model.compile("sgd", "mse", metrics=["mae"])
    watch = [*everything(), fs.changes(), fs.changes(of="gradients"), fs.loss(per_sample=True)]
    scope = fs.Scope(tmp_path, watch, every=1, on=("train", "validation"))
    model.fit(X, Y, validation_data=(X, Y), callbacks=[scope], **FIT)
    model.evaluate(X, Y, batch_size=8, verbose=0, callbacks=[scope])
    model.predict(X, batch_size=8, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert run.errors == []
    assert_complete(run, ("train", "validation", "evaluate", "predict"))
    for prefix in ("", "validation/", "evaluate/", "predict/"):
        assert "does not call this layer" in run.unseen[f"{prefix}activations/unused"]
        assert "does not call this layer" in run.unseen[f"{prefix}changes/activations/unused"]
    assert "no floating-point numbers" in run.unseen["gradients/whole"]
