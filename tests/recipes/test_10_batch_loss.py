"""Row 10: the loss of each batch. Compared with the training written by hand, to float32's precision."""

from __future__ import annotations

import keras
import numpy as np

import by_hand
import fitscope as fs


class Losses(keras.callbacks.Callback):
    """The usual way."""

    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self.seen = seen

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(logs["loss"])


def test_the_run_has_the_loss_of_each_batch_and_the_logs_a_running_mean(watch_fit, tools, page_says):
    x, y = by_hand.data()
    logs: list[float] = []
    seen = watch_fit(tools.make, x, y, watch=fs.loss(), epochs=2, callbacks=lambda: [Losses(logs)])
    losses = seen.run.series("loss")
    true = np.array([step["loss"] for step in by_hand.train(by_hand.weights(), x, y, epochs=2)])
    tools.close(losses, true)

    logs = logs[6:]  # of the watched one of the two trainings
    sizes = np.array([8, 8, 6])
    for epoch in (slice(0, 3), slice(3, 6)):
        running = np.cumsum(true[epoch] * sizes) / np.cumsum(sizes)
        tools.close(logs[epoch], running)
    worst = int(np.argmax(np.abs(logs - true)))
    page_says(f"`logs` reports {logs[worst]:.2f} for a batch with a loss of {true[worst]:.2f}")


def test_regularizers_are_part_of_the_loss_of_the_batch(watch_fit):
    """Exactly what the step minimised: one batch is one epoch, of which Keras says the loss as well."""
    x, y = by_hand.data(8)

    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        regularizer = keras.regularizers.L2(0.1)
        model = keras.Sequential(
            [keras.layers.Input((6,)), keras.layers.Dense(3, kernel_regularizer=regularizer)]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    seen = watch_fit(make, x, y, watch=fs.loss(), epochs=3)
    np.testing.assert_allclose(seen.run.series("loss"), seen.model.history.history["loss"], rtol=1e-6)
