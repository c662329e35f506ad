"""A subclassed model that calls one layer twice: each call is a site of its own, `mix` and `mix#2`."""

import keras
import numpy as np
from keras import layers

import fitscope as fs


class Refiner(keras.Model):
    def __init__(self):
        super().__init__(name="refiner")
        self.encode = layers.Dense(8, activation="relu", name="encode")
        self.mix = layers.Dense(8, activation="relu", name="mix")
        self.head = layers.Dense(1, name="head")

    def call(self, inputs):
        x = self.encode(inputs)
        return self.head(self.mix(self.mix(x)))


rng = np.random.default_rng(0)
x = rng.normal(size=(128, 5)).astype("float32")
y = rng.normal(size=(128, 1)).astype("float32")

model = Refiner()
model.compile("adam", "mse")
scope = fs.Scope("runs", [fs.activations(layers.Dense), fs.gradients("mix"), fs.loss()], every=1)
model.fit(x, y, batch_size=32, epochs=1, verbose=0, callbacks=[scope])

run = fs.open("runs")
print([site for site in run.sites if "mix" in site])
print(run.series("activations/mix#2", "mean"))
