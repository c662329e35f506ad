"""A loop of `train_on_batch` and `test_on_batch`, with sample weights, a checkpoint and an evaluation of its own."""

from __future__ import annotations

import tempfile

import keras
from keras import layers

from programs import data
from programs.program import Trained


def train(scope, callbacks):
    images, labels = data.digits()
    weights = 0.5 + labels / 4
    model = keras.Sequential(
        [layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(4, activation="softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = []
    with tempfile.TemporaryDirectory() as folder, scope.attach(model):
        for epoch in range(2):
            for x, y, weight in data.batches(images, labels, weights):
                history.append(model.train_on_batch(x, y, sample_weight=weight, return_dict=True))
            history.append(model.test_on_batch(images[:16], labels[:16]))
            history.append(model.evaluate(images[16:32], labels[16:32], verbose=0, callbacks=callbacks))
            model.save_weights(f"{folder}/epoch{epoch}.weights.h5")
            scope.epoch_end()
    return Trained(model, history)
