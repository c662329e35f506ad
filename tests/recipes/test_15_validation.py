"""Row 15: validation predictions and labels at each epoch. Compared with the weights of the training written by hand after that epoch,
to float32's precision; with the order of the rows exactly; and with the loss that `fit` itself reports of the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs
from complete import asked

BACKEND = keras.backend.backend()
EPOCHS, N = 3, 19  # in batches of 8 the last one is smaller
WATCH = [
    fs.predictions(),
    fs.targets(),
    fs.loss(),
    fs.inputs(keep="tensor"),
    fs.activations("hidden", keep="tensor"),
]


def arrays(x: np.ndarray, y: np.ndarray, tools: Any) -> dict[str, Any]:
    return {"validation_data": (x, y)}


def py_dataset(x: np.ndarray, y: np.ndarray, tools: Any) -> dict[str, Any]:
    return {"validation_data": lambda: tools.Rows(x, y)}


def tf_data(x: np.ndarray, y: np.ndarray, tools: Any) -> dict[str, Any]:
    if BACKEND != "tensorflow":
        pytest.skip("tf.data is read in the process of TensorFlow")
    import tensorflow as tf

    return {"validation_data": lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(8)}


@pytest.mark.parametrize("source", [arrays, py_dataset, tf_data], ids=lambda f: f.__name__)
def test_validation_predictions_are_in_order(watch_fit, tools, source: Callable[..., dict[str, Any]]):
    x, y = by_hand.data()
    xv, yv = by_hand.data(N, seed=5)
    seen = watch_fit(
        tools.make, x, y, watch=WATCH, scope={"on": "validation"}, epochs=EPOCHS, **source(xv, yv, tools)
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    check(seen, by, xv, yv, [0, 1, 2], 3, tools.close)


def test_a_validation_split_is_recorded(watch_fit, tools):
    """Keras takes the last quarter; nobody else has it in hand."""
    x, y = by_hand.data(24)
    seen = watch_fit(
        tools.make, x, y, watch=WATCH, scope={"on": "validation"}, epochs=EPOCHS, validation_split=0.25
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x[:18], y[:18], epochs=EPOCHS)
    check(seen, by, x[18:], y[18:], [0, 1, 2], 3, tools.close)


def test_validation_freq_is_followed(watch_fit, tools):
    x, y = by_hand.data()
    xv, yv = by_hand.data(N, seed=5)
    seen = watch_fit(
        tools.make, x, y, watch=WATCH, scope={"on": "validation"}, epochs=4, validation_data=(xv, yv),
        validation_freq=2,
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=4)
    check(seen, by, xv, yv, [1, 3], 3, tools.close)


def test_a_validation_generator_that_never_ends_is_recorded(tools, tmp_path):
    """Keras (3.15) begins each pass with the batch that it peeked at, and goes on where the generator is: which rows a pass had is seen
    from its inputs, and that these are the true ones from the loss that Keras reports. Where it is depends on how far TensorFlow has
    read ahead in the meantime, so that no two trainings need agree in it."""
    x, y = by_hand.data()
    xv, yv = by_hand.data(N, seed=5)

    def forever():
        while True:
            for i in range(0, N, 8):
                yield xv[i : i + 8], yv[i : i + 8]

    history = tools.make().fit(
        x, y, batch_size=8, shuffle=False, verbose=0, epochs=EPOCHS, validation_data=forever(), validation_steps=3,
        callbacks=[fs.Scope(tmp_path, WATCH, 1, on="validation")],
    ).history  # fmt: skip
    run = fs.open(tmp_path)
    assert run.errors == []
    by = by_hand.train(by_hand.weights(), x, y, epochs=EPOCHS)
    for epoch, step in enumerate((3, 6, 9)):
        rows = [np.flatnonzero((xv == given).all(1)).item() for given in run.array("validation/inputs", step)]
        assert epoch > 0 or rows == list(range(N))
        out = by_hand.forward(by.after(step), xv[rows])["head"]
        np.testing.assert_array_equal(np.ravel(run.array("validation/targets", step)), yv[rows])
        tools.close(run.array("validation/predictions", step), out)
        losses = by_hand.crossentropy(out, yv[rows])[0]
        tools.close(losses.mean(), history["val_loss"][epoch])


def check(seen, by, x, y, epochs, batches, close) -> None:
    run = seen.run
    steps = [batches * (epoch + 1) for epoch in epochs]
    predictions = run.tensor("validation/predictions")
    assert list(predictions.step.values) == steps
    assert list(predictions.epoch.values) == epochs
    assert all(site.startswith("validation/") for site in asked(run))
    for i, step in enumerate(steps):
        out = by_hand.forward(by.after(step), x)
        np.testing.assert_array_equal(run.array("validation/inputs", step), x)
        np.testing.assert_array_equal(np.ravel(run.array("validation/targets", step)), y)
        close(run.array("validation/predictions", step), out["head"])
        close(run.array("validation/activations/hidden", step), out["hidden"])
        losses = by_hand.crossentropy(run.array("validation/predictions", step).astype(float), y)[0]
        np.testing.assert_allclose(losses.mean(), seen.model.history.history["val_loss"][i], rtol=1e-5)
        of_batches = [losses[j : j + 8].mean() for j in range(0, len(x), 8)]
        close(run.series("validation/loss").loc[step], of_batches)


def test_training_and_validation_are_compared_by_epoch(watch_fit, tools):
    x, y = by_hand.data()
    xv, yv = by_hand.data(N, seed=5)
    seen = watch_fit(
        tools.make, x, y, watch=[fs.predictions(), fs.loss(on="train")], epochs=2, validation_data=(xv, yv),
        scope={"on": ("train", "validation")},
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    assert asked(seen.run) == ["loss", "predictions", "validation/predictions"]
    tools.every_value(seen.run, "predictions", by)
    for step in (3, 6):
        tools.close(
            seen.run.array("validation/predictions", step), by_hand.forward(by.after(step), xv)["head"]
        )


def test_evaluate_and_predict_are_recorded(tools, tmp_path):
    """Given the scope they record as `fit` does, with the same results as without it."""
    x, y = by_hand.data()
    model, twin = tools.make(metrics=["accuracy"]), tools.make(metrics=["accuracy"])
    scope = fs.Scope(tmp_path, [fs.predictions(), fs.loss(), fs.metrics()], every=1)
    settings = {"batch_size": 8, "verbose": 0}
    out = by_hand.forward(by_hand.weights(), x)["head"]
    losses = by_hand.crossentropy(out, y)[0]

    assert model.evaluate(x, y, callbacks=[scope], **settings) == twin.evaluate(x, y, **settings)
    run = fs.open(tmp_path)
    tools.close(run.array("evaluate/predictions", 0), out)
    rows = [slice(0, 8), slice(8, 16), slice(16, 22)]
    tools.close(run.series("evaluate/loss").loc[0], [losses[r].mean() for r in rows])
    hits = out.argmax(1) == y
    tools.close(run.series("evaluate/metrics/accuracy").loc[0], [hits[r].mean() for r in rows])

    given = model.predict(x, callbacks=[scope], **settings)
    np.testing.assert_array_equal(given, twin.predict(x, **settings))
    np.testing.assert_array_equal(fs.open(tmp_path).array("predict/predictions", 0), given)
    tools.close(given, out)
    tools.same(model, twin)


def test_a_second_pass_over_shuffled_data_has_other_rows(watch_fit, tools, page_says):
    x = by_hand.data(400)[0]
    y = by_hand.forward(by_hand.weights(seed=34), x)["head"].argmax(1)  # something to be learnt
    said, walks = [], []
    data: list[Any] = []

    def fresh() -> Any:
        data.append(tools.Shuffled(x[300:], y[300:]))
        return data[-1]

    class Again(keras.callbacks.Callback):
        """The usual way."""

        def on_train_end(self, logs=None):
            walks.append(data[-1].walks)
            predictions = self.model.predict(data[-1], verbose=0)
            labels = np.concatenate([data[-1][i][1] for i in range(len(data[-1]))])
            said.append((predictions.argmax(1) == labels).mean())
            walks.append(data[-1].walks)

    seen = watch_fit(
        lambda: tools.make(metrics=["accuracy"]), x[:300], y[:300], epochs=20, validation_data=fresh,
        watch=[fs.predictions(), fs.targets()], scope={"on": "validation"}, callbacks=lambda: [Again()],
    )  # fmt: skip
    step = seen.run.tensor("validation/predictions").step.values[-1]
    labels = np.ravel(seen.run.array("validation/targets", step))
    right = (seen.run.array("validation/predictions", step).argmax(1) == labels).mean()
    assert right == pytest.approx(seen.model.history.history["val_accuracy"][-1], abs=1e-6)
    page_says(f"accuracy is {right:.2f}")
    assert right > 0.8
    assert said[-1] < 0.5
    page_says("give less than 0.5")
    assert walks[-1] >= walks[-2] + 2  # one more for the predictions, and one for the labels
