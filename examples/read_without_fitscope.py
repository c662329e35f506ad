"""A run is plain Parquet, Zarr and JSON: once it is written, other tools read it."""

import json
from pathlib import Path

import duckdb
import keras
import numpy as np
import pandas as pd
import zarr

import fitscope as fs

rng = np.random.default_rng(0)
x, y = rng.normal(size=(64, 4)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
model = keras.Sequential([keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1, name="head")])
model.compile("sgd", "mse")
scope = fs.Scope("runs", [fs.loss(), fs.activations("hidden", keep="both")], every=1)
model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[scope])

# From here on without fitscope.
run = max(Path("runs").iterdir())
print(json.loads((run / "run.json").read_text())["model"]["name"])

stats = pd.concat(pd.read_parquet(part) for part in sorted(run.glob("a*/r*/stats/*.parquet")))
print(stats.pivot(index="step", columns="site", values="mean"))

parts = f"{run}/a*/r*/stats/*.parquet"
print(duckdb.sql(f"select site, avg(rms) as rms from '{parts}' group by site"))

tensors = zarr.open_group(run / "a0000/r00000/tensors.zarr", mode="r")
print(tensors["activations/hidden/data"][:].shape)  # (step, sample, unit)
