"""Keep the tensors themselves: the inputs, a hidden layer and the predictions of four samples."""

import keras
import numpy as np
from keras import layers

import fitscope as fs

rng = np.random.default_rng(0)
x = rng.normal(size=(90, 8, 8, 1)).astype("float32")
y = rng.integers(0, 3, 90)

model = keras.Sequential(
    [
        layers.Conv2D(4, 3, activation="relu", name="conv"),
        layers.Flatten(name="flatten"),
        layers.Dense(3, activation="softmax", name="head"),
    ]
)
model.compile("sgd", "sparse_categorical_crossentropy")

watch = [
    fs.inputs(samples=4),
    fs.activations("conv", samples=4),
    fs.predictions(samples=4),
    fs.weights("head", keep="tensor", every=fs.epochs()),  # the last batch of every epoch
    fs.loss(),
]
model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[fs.Scope("runs", watch, every=1)])

run = fs.open("runs")
conv = run.tensor("activations/conv")  # an xarray, read when it is needed
print(conv.dims, conv.shape)
print(conv.sel(step=2).isel(sample=0).mean().item())
print(run.array("predictions", step=5))  # one step, as it was
print(run.tensor("weights/head/kernel").step.values)
