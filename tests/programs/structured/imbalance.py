"""An imbalanced classification: rare positives with a large class weight, and metrics that count each kind of error."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    x, scores = data.table(n=64)
    fraud = (scores > np.quantile(scores, 0.9)).astype("uint8")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            layers.Dense(16, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = [
        keras.metrics.FalseNegatives(name="fn"),
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=metrics)
    history = model.fit(
        x, fraud, batch_size=16, epochs=2, class_weight={0: 1 / 58, 1: 1 / 6}, validation_data=(x[:16], fraud[:16]),
        verbose=0, callbacks=callbacks,
    )  # fmt: skip
    return Trained(model, history.history)
