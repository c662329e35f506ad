"""One process trains one model on two devices with tf.distribute.MirroredStrategy, and writes one run.

KERAS_BACKEND=tensorflow python mirrored.py
"""

import keras
import numpy as np
import tensorflow as tf

import fitscope as fs

# Two logical CPUs stand in for two GPUs: with GPUs, MirroredStrategy() finds them by itself.
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

with strategy.scope():
    layers = [keras.layers.Dense(16, activation="relu", name="hidden"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "mse")

rng = np.random.default_rng(0)
x = rng.normal(size=(128, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)

watch = [fs.activations(keep="both"), fs.gradients(), fs.updates(), fs.loss()]
model.fit(x, y, batch_size=16, verbose=0, callbacks=[fs.Scope("runs", watch, every=1)])

run = fs.open("runs")
print(run.array("activations/hidden", 0).shape)  # (16, 16): 8 rows of each replica, in the order of the batch
print(run.series("loss").tail(3))  # the loss that the training minimises
print(run.identity, run.ranks["status"].tolist())  # proven ['complete']: one process is one rank
