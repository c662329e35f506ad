"""Row 11: each metric on each batch alone. Compared with NumPy, to float32's precision."""

from __future__ import annotations

import keras
import numpy as np

import by_hand
import fitscope as fs
from complete import asked


class Logs(keras.callbacks.Callback):
    """The usual way."""

    def __init__(self, seen: list[dict[str, float]]) -> None:
        super().__init__()
        self.seen = seen

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(dict(logs))


def targets() -> np.ndarray:
    """Of very different size, batch by batch."""
    rng = np.random.default_rng(2)
    return (rng.normal(size=(22, 3)) * np.repeat([1.0, 3.0, 0.3], [8, 8, 6])[:, None]).astype("float32")


def test_several_metrics_of_each_batch_are_computed(watch_fit, tools, page_says):
    x, y = by_hand.data()[0], targets()
    logs: list[dict[str, float]] = []
    seen = watch_fit(
        lambda: tools.make("mse", ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]),
        x,
        y,
        watch=fs.metrics(),
        epochs=2,
        callbacks=lambda: [Logs(logs)],
    )
    by = by_hand.train(by_hand.weights(), x, y, epochs=2, loss=by_hand.squared_error)
    apart = [step["predictions"] - step["targets"] for step in by]
    mae, rmse = (
        np.array([f(a) for a in apart])
        for f in (lambda a: np.abs(a).mean(), lambda a: np.sqrt((a**2).mean()))
    )
    tools.close(seen.run.series("metrics/mae"), mae)
    tools.close(seen.run.series("metrics/rmse"), rmse)

    of_logs = np.array([log["rmse"] for log in logs[6:]])
    running = [np.sqrt((np.concatenate(apart[first : i + 1]) ** 2).mean()) for first, i in
               [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4), (3, 5)]]  # fmt: skip
    tools.close(of_logs, running)
    page_says(f"`logs` reports {of_logs[2]:.2f} for a batch with an error of {rmse[2]:.2f}")


def test_the_metrics_of_the_model_keep_their_state(watch_fit, tools):
    """A metric that cannot be averaged, and one of weighted samples: those of the epoch are as they were, those of the batch its own."""
    x, y = by_hand.data()
    weight = np.linspace(0, 2, 22).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    seen = watch_fit(
        lambda: tools.make(loss, ["accuracy"], weighted_metrics=["accuracy"]), x, y, sample_weight=weight,
        watch=fs.metrics(), epochs=2,
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=2, weight=weight)
    hits = [step["predictions"].argmax(1) == step["targets"] for step in by]
    assert asked(seen.run) == ["metrics/accuracy", "metrics/weighted_accuracy"]
    tools.close(seen.run.series("metrics/accuracy"), [hit.mean() for hit in hits])
    weighted = [np.average(hit, weights=step["weight"]) for hit, step in zip(hits, by, strict=True)]
    tools.close(seen.run.series("metrics/weighted_accuracy"), weighted)
    tools.close(
        seen.model.history.history["accuracy"], [np.concatenate(hits[i : i + 3]).mean() for i in (0, 3)]
    )
