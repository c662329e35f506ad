"""Row 13: what is captured goes to disk as training goes, and memory stays where it is.

The resident memory of the process is measured; what arrives on disk is compared with the training written by hand, to float32's precision.
`bench/memory.py` measures the same over 20,000 batches."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing

import keras
import numpy as np
import psutil

import by_hand
import fitscope as fs

BATCHES, WARM_UP, WIDTH, MB = 2000, 500, 1024, 2**20


class Resident(keras.callbacks.Callback):
    """The memory of the process after the warm-up, and the most there was of it later."""

    first = most = 0

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches >= WARM_UP and self.batches % 100 == 0:
            gc.collect()
            now = psutil.Process().memory_info().rss
            self.first = self.first or now
            self.most = max(self.most, now)


def test_memory_does_not_grow_with_the_steps(tmp_path, page_says):
    """What is seen of each batch is 64 kB. Were it kept, 98 MB would pile up."""
    x, y = by_hand.data(16 * 100)
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(WIDTH, name="wide"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    watch = [fs.activations("wide", keep=["stats", "average"]), fs.loss(per_sample=True), fs.changes("wide")]
    resident = Resident()
    # A step as quick as this one fills the queue: it is full, and training waits, before the warm-up is over.
    scope = fs.Scope(tmp_path, watch, every=1, memory="16 MB")
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=BATCHES // 100,
        verbose=0,
        callbacks=[scope, resident],
    )
    run = fs.open(tmp_path)
    assert (run.status, run.errors, run.dropped) == ("complete", [], {})
    assert len(run.series("activations/wide", "mean")) == BATCHES
    assert len(run.samples) == 16 * BATCHES
    assert run.average("activations/wide").count == 16 * BATCHES
    kept = 16 * WIDTH * 4 * (BATCHES - WARM_UP)  # by a list of all that was seen
    assert kept > 90 * MB
    assert resident.most - resident.first < 50 * MB
    page_says(f"{kept / 1e6:.0f} MB after {BATCHES - WARM_UP:,} batches")


def test_the_stored_values_are_those_of_the_training(watch_fit, tools, tmp_path):
    x, y = by_hand.data()
    watch = [fs.activations("hidden", keep="both"), fs.loss()]
    live = {"database": f"sqlite:///{tmp_path / 'live.sqlite'}"}
    seen = watch_fit(tools.make, x, y, watch=watch, epochs=2, scope=live)
    by = by_hand.train(by_hand.weights(), x, y, epochs=2)
    means = [step["activations/hidden"].mean() for step in by]

    import pandas as pd

    fs.export_run(seen.run.path, "parquet", tmp_path / "stats.parquet")
    stats = pd.read_parquet(tmp_path / "stats.parquet").query("site == 'activations/hidden'")
    assert list(stats["step"]) == list(range(6))
    tools.close(stats["mean"], means)

    fs.export_run(seen.run.path, "sqlite", tmp_path / "all.sqlite")
    for name in ("all.sqlite", "live.sqlite"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            rows = database.execute("select value from stats where site = 'loss' order by step").fetchall()
        tools.close(np.ravel(rows), [step["loss"] for step in by])

    fs.export_run(seen.run.path, "npz", tmp_path / "tensors.npz")
    with np.load(tmp_path / "tensors.npz") as archive:
        hidden, sizes = archive["activations/hidden"], archive["activations/hidden@size"]
    for step, true in enumerate(by):
        tools.close(hidden[step, : sizes[step]], true["activations/hidden"])
