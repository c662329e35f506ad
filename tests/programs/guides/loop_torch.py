"""A training loop from scratch on torch: its own optimizer, loss and `DataLoader`, and a validation of the loop's own."""

from __future__ import annotations

import keras
import torch

from programs import data
from programs.program import Trained

EPOCHS = 2


def classifier():
    inputs = keras.Input((64,), name="digits")
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.Dense(16, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(4, name="predictions")(x))


def train(scope, callbacks):
    images, labels = data.digits()
    known = torch.utils.data.TensorDataset(
        torch.from_numpy(images.reshape(-1, 64)), torch.from_numpy(labels).long()
    )
    batches = torch.utils.data.DataLoader(
        known, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3)
    )
    held_out = torch.utils.data.DataLoader(torch.utils.data.Subset(known, range(32)), batch_size=16)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of = torch.nn.CrossEntropyLoss()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @scope.step
    def train_step(x, y):
        logits = model(x, training=True)
        loss = loss_of(logits, y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            optimizer.step()
        return loss

    history = []
    with scope.attach(model):
        for _ in range(EPOCHS):
            for x, y in batches:
                history.append(float(train_step(x, y)))
            for x, y in held_out:
                accuracy.update_state(y, model(x, training=False))
            history.append(float(accuracy.result()))
            accuracy.reset_state()
            scope.epoch_end()
    moments = [moment for state in optimizer.state.values() for moment in state.values()]
    return Trained(model, history, arrays=moments)
