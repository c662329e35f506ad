"""Two scopes at once: statistics of everything often, whole tensors of one layer seldom."""

import keras
import numpy as np
from keras import layers

import fitscope as fs

rng = np.random.default_rng(0)
x = rng.normal(size=(320, 6)).astype("float32")
y = rng.normal(size=(320, 1)).astype("float32")

model = keras.Sequential([layers.Dense(8, activation="tanh", name="hidden"), layers.Dense(1, name="head")])
model.compile("adam", "mse")

numbers = fs.Scope("runs/numbers", every=2)
tensors = fs.Scope(
    "runs/tensors", fs.activations("hidden", keep="tensor"), every=fs.steps(0, 15), limit="1 GB"
)
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[numbers, tensors])

print(len(fs.open("runs/numbers").series("loss")), "losses")
print(fs.open("runs/tensors").tensor("activations/hidden").shape)
