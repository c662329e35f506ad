"""All that an optimizer can do by itself: gradients of several steps accumulated, clipped, weights averaged and decayed, a schedule."""

from __future__ import annotations

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.02, 20, warmup_target=0.03, warmup_steps=4),
        weight_decay=1e-3, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3,
        gradient_accumulation_steps=3,
    )  # fmt: skip
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(
        images, labels, batch_size=8, epochs=2, validation_split=0.25, verbose=0,
        callbacks=[*callbacks, keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
    )  # fmt: skip
    return Trained(model, history.history)
