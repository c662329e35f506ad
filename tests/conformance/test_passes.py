"""Walks over data that do not train: the validation inside fit, evaluate and predict. What is recorded is what the pass computed,
with its rows in order, and the pass gives the same numbers to the last bit as without a scope."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import asked, assert_complete, captured
from fitscope.sites import pass_of

BACKEND = keras.backend.backend()
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}
MODES = {
    "jax": [{}, {"run_eagerly": True}],
    "tensorflow": [{"jit_compile": False}, {"jit_compile": True}, {"run_eagerly": True}],
    "torch": [{}],
}[BACKEND]
EVERYTHING = [
    fs.activations(keep="both"), fs.loss(per_sample=True), fs.metrics(), fs.inputs(keep="both"), fs.targets(),
    fs.predictions(), fs.taps(keep="both"), fs.changes(), fs.changes(of="predictions"), fs.gradients(), fs.weights(),
]  # fmt: skip


@pytest.fixture
def images():
    rng = np.random.default_rng(3)
    return rng.normal(size=(22, 8, 8, 3)).astype("float32"), rng.integers(0, 4, 22)


def convolutional(**mode):
    """What inference fuses: convolution, normalisation and activation, apart and in one."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv1"),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Conv2D(4, 3, name="conv2"),
            layers.Activation("gelu", name="gelu2"),
            layers.DepthwiseConv2D(3, activation="relu", name="depthwise"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dropout(0.5, name="drop"),
            layers.Dense(8, name="dense"),
            layers.Activation("tanh", name="tanh"),
            layers.Dense(4, activation="softmax", name="head"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **mode)
    return model


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_pass_gives_the_same_numbers_with_and_without_a_scope(images, tmp_path, tools, mode):
    x, y = images
    # Batches of the same sizes everywhere: each further size is compiled again, in every pass.
    settings = {**FIT, "epochs": 2, "validation_data": (x, y), "validation_batch_size": 8}
    plain = convolutional(**mode)
    there = plain.fit(x, y, **settings)
    model = convolutional(**mode)
    scope = fs.Scope(tmp_path, EVERYTHING, 1, on=("train", "validation"))
    here = model.fit(x, y, callbacks=[scope], **settings)
    assert here.history == there.history
    tools.same(plain, model)
    seen, wanted = (
        [m.evaluate(x, y, batch_size=8, verbose=0, **cb), m.predict(x, batch_size=8, verbose=0, **cb)]
        for m, cb in ((model, {"callbacks": [scope]}), (plain, {}))
    )
    assert seen[0] == wanted[0]
    assert np.array_equal(seen[1], wanted[1])
    tools.same(plain, model)
    run = fs.open(tmp_path)
    assert run.errors == []
    assert len(fs.runs(tmp_path)) == 1
    for name in ("evaluate", "predict"):
        assert np.array_equal(run.array(f"{name}/predictions", 6), seen[1])
        assert np.array_equal(run.array(f"{name}/inputs", 6), x)
        assert np.array_equal(run.array(f"{name}/activations/head", 6), seen[1])
    assert np.array_equal(run.array("evaluate/targets", 6), y)
    losses = run.samples[run.samples["pass"] == "evaluate"].loss
    np.testing.assert_allclose(losses, -np.log(seen[1][np.arange(22), y]), rtol=1e-5, atol=1e-6)
    assert np.isclose(losses.mean(), seen[0][0], rtol=1e-6)
    missing = {"gradients", "weights", "updates"}
    assert not [site for site in run.sites if pass_of(site) and site.split("/")[1] in missing]


def test_a_validation_is_recorded_whole_at_the_step_of_its_weights(small, xy, tmp_path):
    x, y = xy
    model = small()
    scope = fs.Scope(
        tmp_path,
        [fs.predictions(), fs.weights("last", keep="tensor"), fs.loss()],
        2,
        on=("train", "validation"),
    )
    outputs = []

    class Asks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            outputs.append(self.model.predict(x[:13], verbose=0, batch_size=8))

    # The order of the rows is that of the data, whatever the size of the batches.
    model.fit(
        x,
        y,
        validation_data=(x[:13], y[:13]),
        validation_batch_size=5,
        epochs=3,
        callbacks=[scope, Asks()],
        **FIT,
    )
    run = fs.open(tmp_path)
    kept = run.tensor("validation/predictions")
    assert kept.step.values.tolist() == [3, 6, 9]
    assert kept.epoch.values.tolist() == [0, 1, 2]
    assert kept["size"].values.tolist() == [13, 13, 13]
    np.testing.assert_allclose(kept.values, np.stack(outputs), rtol=1e-5, atol=1e-6)
    assert run.series("validation/loss").groupby("step").count().tolist() == [3, 3, 3]
    assert captured(run) == [0, 2, 4, 6, 8]  # `every` is about training
    assert run.series("loss").index.is_unique
    assert not any(site.startswith("validation/weights") for site in run.sites)


def test_each_watch_records_only_its_own_passes(small, xy, tmp_path):
    x, y = xy
    watch = [fs.loss(), fs.predictions(on="validation", every=2), fs.metrics(on=("train", "validation"))]
    small().fit(x, y, validation_data=(x, y), callbacks=[fs.Scope(tmp_path, watch, every=1)], **FIT)
    run = fs.open(tmp_path)
    assert asked(run) == ["loss", "metrics/mae", "validation/metrics/mae", "validation/predictions"]
    assert run.frame("validation/predictions").index.get_level_values("batch").tolist() == [0, 2]
    assert run.frame("validation/metrics/mae").index.get_level_values("batch").tolist() == [0, 1, 2]


def test_the_newest_batch_of_every_phase_is_at_hand(small, xy, tmp_path):
    x, y = xy
    scope = fs.Scope(tmp_path, [fs.predictions()], 1, on=("train", "validation"))
    seen = []

    class Reads(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append(
                (
                    scope.batch.batch,
                    scope.batch["validation/predictions"].shape,
                    scope.batch["predictions"].shape,
                )
            )

    small().fit(x, y, validation_data=(x[:10], y[:10]), callbacks=[scope, Reads()], **FIT)
    assert seen == [(0, (8, 2), (6, 2)), (1, (2, 2), (6, 2))]


def test_evaluate_before_and_after_training_stay_in_one_run(small, xy, tmp_path):
    x, y = xy
    model = small()
    scope = fs.Scope(tmp_path, [fs.loss()], 1)
    for _ in range(2):
        model.evaluate(x, y, verbose=0, batch_size=8, callbacks=[scope])
        model.fit(x, y, callbacks=[scope], **FIT)
    model.evaluate(x, y, verbose=0, batch_size=8, callbacks=[scope])
    (only,) = fs.runs(tmp_path)
    run = fs.open(only.path)
    assert captured(run) == list(range(6))
    assert run.series("evaluate/loss").groupby("step").count().to_dict() == {0: 3, 3: 3, 6: 3}
    assert run.status == "complete"


@pytest.mark.skipif(BACKEND == "torch", reason="Keras runs one step per execution on torch")
def test_several_validation_batches_in_one_execution_are_recorded(small, xy, tmp_path):
    x, y = xy
    plain, model = (small(steps_per_execution=2) for _ in range(2))
    scope = fs.Scope(tmp_path, [fs.inputs(keep="both"), fs.predictions()], 1)
    for name, data in (("evaluate", (x, y)), ("predict", (x,))):
        seen, wanted = (
            getattr(m, name)(*data, batch_size=5, verbose=0, **cb)
            for m, cb in ((model, {"callbacks": [scope]}), (plain, {}))
        )
        assert np.array_equal(seen, wanted)
        assert np.array_equal(fs.open(tmp_path).array(f"{name}/inputs", 0), x)


def test_evaluate_and_predict_are_recorded_on_an_unbuilt_model_and_one_without_compile(xy, tmp_path):
    x, _ = xy
    keras.utils.set_random_seed(0)
    model = keras.Sequential([layers.Dense(3, name="a"), layers.Dense(2, name="b")])
    scope = fs.Scope(tmp_path, [fs.activations(keep="tensor"), fs.loss()], 1)
    outputs = model.predict(x, batch_size=8, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path)
    assert np.array_equal(run.array("predict/activations/b", 0), outputs)
    assert run.sites == ["predict/activations/a", "predict/activations/b"]


def test_a_validation_after_a_training_that_failed_is_an_evaluation(small, xy, tmp_path):
    x, y = xy
    model = small()
    scope = fs.Scope(tmp_path, [fs.loss()], 1)

    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        model.fit(x, y, callbacks=[scope, Fails()], **FIT)
    model.evaluate(x, y, verbose=0, batch_size=8, callbacks=[scope])
    run = fs.open(tmp_path)
    assert [site for site in asked(run) if "/" in site] == ["evaluate/loss"]


def test_watching_gradients_on_validation_is_an_error():
    for make in (fs.activations, fs.predictions, fs.loss):
        assert make(on="validation").on == ("validation",)
    with pytest.raises(fs.WatchError, match="'train', 'validation' or both"):
        fs.loss(on="sideways")
    with pytest.raises(fs.WatchError, match="a validation has no backward pass"):
        fs.changes(of="weights", on="validation")
    with pytest.raises(fs.WatchError, match=r"evaluate\(\) and predict\(\) need no `on`"):
        fs.Scope(on="predict")


class OwnTestStep(keras.Sequential):
    """Computes the loss of a validation by itself, and tracks it under a name."""

    def __init__(self, name):
        super().__init__([layers.Input((5,)), layers.Dense(2, name="only")])
        self.tracker = keras.metrics.Mean(name=name)

    def test_step(self, *args):
        state, (x, y) = (args[0], args[1][:2]) if BACKEND == "jax" else (None, args[0][:2])
        if state is None:
            loss = keras.ops.mean((self(x, training=False) - y) ** 2)
            self.tracker.update_state(loss)
            return {self.tracker.name: self.tracker.result()}
        trainable, other, metrics = state
        loss = keras.ops.mean((self.stateless_call(trainable, other, x, training=False)[0] - y) ** 2)
        n = len(self.tracker.variables)
        mine = self.tracker.stateless_update_state(metrics[-n:], loss)
        return {self.tracker.name: self.tracker.stateless_result(mine)}, (
            trainable,
            other,
            [*metrics[:-n], *mine],
        )


@pytest.mark.parametrize("name", ["loss", "error"])
def test_a_custom_test_step_records_the_loss_that_it_tracks(xy, tmp_path, name):
    x, y = xy
    keras.utils.set_random_seed(0)
    model = OwnTestStep(name)
    model.compile("sgd", "mse")
    scope = fs.Scope(
        tmp_path, [fs.loss(), fs.predictions(keep="both"), fs.targets(keep="both")], 1, on="validation"
    )
    model.fit(x, y, validation_data=(x[:6], y[:6]), callbacks=[scope], **FIT)
    run = fs.open(tmp_path)
    assert run.errors == []
    if name == "loss":
        error = run.array("validation/predictions", run.last_step) - y[:6]
        assert run.series("validation/loss").to_numpy() == pytest.approx(np.mean(error**2), rel=1e-5)
        assert "validation/loss" not in run.unseen
    else:
        assert run.unseen["validation/loss"] == "the step computes no loss that can be seen from outside"


@pytest.mark.parametrize("how", ["no data", "never due"])
def test_a_validation_that_was_asked_for_and_never_ran_is_named(small, xy, tmp_path, how):
    fit = {**FIT, **({"validation_data": xy, "validation_freq": 5} if how == "never due" else {})}
    scope = fs.Scope(tmp_path, [fs.activations(), fs.loss()], every=1, on=("train", "validation"))
    model = small()
    model.fit(*xy, **fit, callbacks=[scope])
    run = fs.open(tmp_path)

    assert set(run.unseen.values()) == {"no validation ran"}
    assert_complete(run, ("train", "validation"))

    model.fit(*xy, **FIT, validation_data=xy, callbacks=[scope])  # in the same run

    assert fs.open(tmp_path).unseen == {}
    assert "validation/activations/first" in fs.open(tmp_path).sites


def test_a_watch_that_was_never_due_is_named(small, xy, tmp_path):
    watch = [fs.loss(), fs.activations(every=fs.steps(100)), fs.predictions(every=lambda step: False)]
    small().fit(*xy, **FIT, callbacks=[fs.Scope(tmp_path, watch, every=1)])
    run = fs.open(tmp_path)

    assert run.unseen["activations/first"] == "its schedule (steps 100) named no step that ran"
    assert "named no step that ran" in run.unseen["predictions"]
    assert_complete(run)
