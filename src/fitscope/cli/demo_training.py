"""A small training with two bugs, as an example to look at: `python -m fitscope.cli.demo_training`.

A convolutional network learns to read the digits of a seven-segment display. This module draws the images, so nothing
is downloaded. It contains two bugs that a loss curve does not explain:

* the layer `side` starts with a large negative bias, so its ReLU outputs almost only zeros and learns almost nothing;
* one batch of the data was never scaled to 0…1. It appears once per epoch.

`fitscope demo` runs this module in a separate process, because Keras chooses its backend once per process.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fitscope.capture.callback import Hooks
from fitscope.scope import Scope

SIZE = 16  #: pixels per side
BATCH, BATCHES, EPOCHS = 32, 60, 4
EVERY = 3  #: steps between two captures
UNSCALED = 39  #: the unscaled batch; a multiple of EVERY, like BATCHES

#: The lit segments of each digit: top, top left, top right, middle, bottom left, bottom right, bottom.
LIT = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
#: The place of each segment in a box 6 wide and 11 high: row, column, height, width.
SEGMENTS = ((0, 1, 1, 4), (1, 0, 4, 1), (1, 5, 4, 1), (5, 1, 1, 4), (6, 0, 4, 1), (6, 5, 4, 1), (10, 1, 1, 4))

Array = np.ndarray[Any, Any]


def digits(n: int, seed: int = 0) -> tuple[Array, Array]:
    """Images (n, 16, 16, 1) between 0 and 1, each with a digit and noise, and their labels."""
    rng = np.random.default_rng(seed)
    shapes = np.zeros((10, 11, 6), np.float32)
    for digit, lit in enumerate(LIT):
        for on, (row, column, height, width) in zip(lit, SEGMENTS, strict=True):
            shapes[digit, row : row + height, column : column + width] = float(on)
    labels = rng.integers(0, 10, n)
    images = np.abs(rng.normal(0.0, 0.12, (n, SIZE, SIZE))).astype(np.float32)
    rows, columns = rng.integers(0, SIZE - 10, n), rng.integers(0, SIZE - 5, n)
    ink = rng.uniform(0.35, 0.9, n)
    for image, label, row, column, strength in zip(images, labels, rows, columns, ink, strict=True):
        image[row : row + 11, column : column + 6] += strength * shapes[label]
    return np.clip(images, 0.0, 1.0)[..., None], labels


def network() -> Any:
    """The model: two blocks, the second with a side path, and a head."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    image = layers.Input((SIZE, SIZE, 1), name="image")
    x = layers.Conv2D(16, 3, padding="same", name="conv1")(image)
    x = layers.BatchNormalization(name="bn1")(x)
    x = layers.ReLU(name="relu1")(x)
    x = layers.MaxPooling2D(name="pool1")(x)
    main = layers.Conv2D(32, 3, padding="same", name="conv2")(x)
    main = layers.BatchNormalization(name="bn2")(main)
    main = layers.ReLU(name="relu2")(main)
    dead = keras.initializers.Constant(-4.0)
    side = layers.Conv2D(32, 1, activation="relu", bias_initializer=dead, name="side")(x)
    x = layers.Add(name="add")([main, side])
    x = layers.MaxPooling2D(name="pool2")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(64, activation="relu", name="hidden")(x)
    x = layers.Dropout(0.3, name="dropout")(x)
    x = layers.Dense(10, activation="softmax", name="head")(x)
    model = keras.Model(image, x, name="seven_segments")
    model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Bar(Hooks):
    """A progress bar for `fit`."""

    async_safe = True

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._task = self._progress.add_task("compiling", total=EPOCHS * BATCHES)
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self._progress.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        done = self._epoch * BATCHES + batch + 1
        self._progress.update(self._task, completed=done, description=f"epoch {self._epoch + 1} of {EPOCHS}")

    def close(self) -> None:
        self._progress.stop()


def train(to: str, console: Console) -> str:
    """Trains with a scope and returns the path of the run."""
    images, labels = digits(BATCH * BATCHES)
    images[UNSCALED * BATCH : (UNSCALED + 1) * BATCH] *= 255.0
    model = network()
    console.print(
        f"A network with {model.count_params():,} parameters learns {len(images):,} images of digits. "
        f"fitscope records every layer.",
        highlight=False,
    )
    scope = Scope(to, every=EVERY)
    bar = Bar(console)
    began = time.perf_counter()
    try:
        history = model.fit(
            images, labels, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[scope, bar]
        )
    finally:
        bar.close()
    accuracy = history.history["accuracy"][-1]
    console.print(f"{time.perf_counter() - began:.0f} s, accuracy {accuracy:.0%}.", highlight=False)
    if scope.path is None:  # the scope has warned
        raise SystemExit(f"fitscope: nothing could be recorded in {to!r}. Choose another directory.")
    return scope.path


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fitscope.cli.demo_training", description="Trains a small network with a scope."
    )
    parser.add_argument("--to", default="runs", help="directory for the run")
    parser.add_argument("--path-to", help="file to write the run's path to")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    path = train(options.to, Console())
    if options.path_to:
        with open(options.path_to, "w", encoding="utf-8") as file:
            file.write(path)


if __name__ == "__main__":
    main()
