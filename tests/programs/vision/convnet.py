"""A small convnet on a torch DataLoader, the loader that every backend's `fit` takes."""

from __future__ import annotations

import keras
import torch
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits()
    targets = keras.utils.to_categorical(labels, 4).astype("float32")
    known = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(targets))
    loader = torch.utils.data.DataLoader(
        known, batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(loader, epochs=2, verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
