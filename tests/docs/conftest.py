"""What a page may take for granted: a small compiled `model`, and data for it, `x` and `y`."""

from __future__ import annotations

from typing import Any

import pytest


def small() -> dict[str, Any]:
    """The names a page begins with."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(4, 3, name="conv1"),
            layers.BatchNormalization(name="bn1"),
            layers.ReLU(name="relu1"),
            layers.Flatten(name="flatten"),
            layers.Dropout(0.3, name="dropout"),
            layers.Dense(3, activation="softmax", name="head"),
        ],
        name="small",
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x = rng.normal(size=(400, 8, 8, 1)).astype("float32")
    return {"keras": keras, "model": model, "x": x, "y": rng.integers(0, 3, 400)}


@pytest.fixture
def names() -> dict[str, Any]:
    return small()
