"""Two JAX processes train one model with keras.distribution and write one run.

KERAS_BACKEND=jax python jax_processes.py 0 & KERAS_BACKEND=jax python jax_processes.py 1
"""

import sys

import jax
import keras
import numpy as np

import fitscope as fs

rank, world = int(sys.argv[1]), 2
port = sys.argv[2] if len(sys.argv) > 2 else "9876"
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=world, process_id=rank)
keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
keras.utils.set_random_seed(0)  # every process begins with the same weights

layers = [keras.layers.Dense(16, activation="relu", name="hidden"), keras.layers.Dense(1, name="head")]
model = keras.Sequential([keras.Input((8,)), *layers])
model.compile("sgd", "mse")

rng = np.random.default_rng(rank)  # each process feeds its own half of every batch
x = rng.normal(size=(64, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)

# The same scope in every process.
model.fit(x, y, batch_size=8, verbose=0, callbacks=[fs.Scope("runs", every=1)])

if rank == 0:
    run = fs.open("runs")
    print(run.series("activations/hidden", "rms", by="rank").tail(3))
    print(run.series("loss").tail(3))
