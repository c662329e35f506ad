"""The least there is to write: a scope among the callbacks, and the run read back."""

import keras
import numpy as np
from keras import layers

import fitscope as fs

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 20)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")

model = keras.Sequential(
    [layers.Dense(16, activation="relu", name="hidden"), layers.Dense(1, activation="sigmoid", name="head")]
)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])

model.fit(x, y, batch_size=32, epochs=3, verbose=0, callbacks=[fs.Scope("runs", every=2)])

run = fs.open("runs")
print(run)
print(run.series("loss"))  # of each batch alone, not the running mean of the progress bar
print(run.series("gradients/hidden", "rms"))
