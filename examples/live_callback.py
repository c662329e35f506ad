"""Use the tensors of the step while training: another callback reads the newest batch from the scope."""

import keras
import numpy as np
from keras import layers

import fitscope as fs

rng = np.random.default_rng(0)
x = rng.normal(size=(128, 10)).astype("float32")
y = rng.normal(size=(128, 1)).astype("float32")

model = keras.Sequential([layers.Dense(32, activation="relu", name="hidden"), layers.Dense(1, name="head")])
model.compile("adam", "mse")


class DeadUnits(keras.callbacks.Callback):
    """Counts the units that no sample of the batch wakes."""

    def __init__(self, scope):
        super().__init__()
        self.scope = scope

    def on_train_batch_end(self, batch, logs=None):
        hidden = self.scope.batch["activations/hidden"]  # a NumPy array, (samples, units)
        asleep = (hidden.max(axis=0) <= 0).sum()
        print(f"step {self.scope.batch.step}: {asleep} of {hidden.shape[1]} units sleep")


scope = fs.Scope("runs", fs.activations("hidden"), every=1)
model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[scope, DeadUnits(scope)])
