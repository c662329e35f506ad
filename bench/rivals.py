"""What other tools record in the same training: the evidence for README.md and docs/comparison.md.

    pip install keract wandb tf-keras livelossplot trainscope   # into a throw-away environment, beside fitscope[tensorflow,tensorboard]
    KERAS_BACKEND=tensorflow python bench/rivals.py

Every tool watches the same six steps of the same model, offline, with its own Keras callback and the settings that record most.
The script prints what each tool wrote, or the error it raised. keract is tried twice: with Keras 3, and with `tf_keras` in a
process where legacy Keras is switched on. trainscope watches torch modules, so it is tried with `KERAS_BACKEND=torch`, through the
callback of bench/rows.py.

Seen with Keras 3.15.1, TensorBoard 2.21, wandb 0.31.0, keract 4.5.2, tf_keras 2.21, livelossplot 0.6.1 and trainscope 1.8.1, on
TensorFlow, JAX and PyTorch.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

X = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 96)


def trained(*callbacks: Any, keras: Any) -> Any:
    """A small model with dropout, after two epochs of three batches."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="relu", name="hidden"),
            keras.layers.Dropout(0.5, name="drop"),
            keras.layers.Dense(3, activation="softmax", name="head"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(X, Y, batch_size=32, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def fitscope(folder: str) -> str:
    import keras

    import fitscope as fs

    trained(fs.Scope(folder, every=1), keras=keras)
    run = fs.open(folder)
    kinds = ", ".join(run.sql("select distinct kind from stats order by kind")["kind"])
    half = run.series("activations/drop", "zeros") / run.series("activations/hidden", "count")
    return f"each step: {kinds}\nloss {run.series('loss').round(4).tolist()}\nzeros after dropout {half.mean():.0%}"


def tensorboard(folder: str) -> str:
    import keras
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(keras.callbacks.TensorBoard(folder, histogram_freq=1, update_freq=1), keras=keras)
    events = EventAccumulator(f"{folder}/train", size_guidance={"tensors": 0}).Reload()
    tags = {tag: len(events.Tensors(tag)) for tag in events.Tags()["tensors"]}
    return f"values per tag: {tags}\nloss {_loss_of(events)}"


def _loss_of(events: Any) -> list[float]:
    from tensorboard.util.tensor_util import make_ndarray

    return [round(float(make_ndarray(event.tensor_proto)), 4) for event in events.Tensors("batch_loss")]


def wandb(folder: str) -> str:
    os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": folder, "WANDB_SILENT": "true"}
    import keras
    import wandb
    from wandb.integration.keras import WandbMetricsLogger

    losses = []
    run = wandb.init(project="rivals")

    class Read(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            losses.append(round(float(run.summary["batch/loss"]), 4))

    trained(WandbMetricsLogger(log_freq="batch"), Read(), keras=keras)
    logged = sorted(key for key in run.summary.keys() if not key.startswith("_"))  # noqa: SIM118 - no mapping
    run.finish()
    return f"logged: {', '.join(logged)}\nloss {losses}"


def keract(folder: str, keras: str = "keras") -> str:
    model = trained(keras=importlib.import_module(keras))
    import keract

    found = keract.get_activations(model, X[:32])
    added = (found["drop"] == 0).mean() - (found["hidden"] == 0).mean()
    gradients = tried(lambda _: ", ".join(keract.get_gradients_of_activations(model, X[:32], Y[:32])))
    return f"activations of {', '.join(found)}\nzeros that dropout added {added:.0%}\ngradients {gradients}"


def livelossplot(folder: str) -> str:
    import keras
    from livelossplot import PlotLossesKeras

    plot = PlotLossesKeras(outputs=[])
    trained(plot, keras=keras)
    history = plot.liveplot.logger.log_history
    return "\n".join(
        f"{name} {[round(float(one.value), 4) for one in values]}" for name, values in history.items()
    )


def trainscope(folder: str) -> str:
    import keras
    import pyarrow as pa
    import rows

    if keras.backend.backend() != "torch":
        return "it watches torch modules: KERAS_BACKEND=torch"
    trained(rows.trainscope(Path(folder)), keras=keras)
    tables = {path: pa.ipc.open_stream(path).read_all() for path in Path(folder).rglob("*.arrow")}
    lines = [
        f"{path.stem}: {table.num_rows} rows of {', '.join(table.column_names)}"
        for path, table in tables.items()
    ]
    loss = next(table["loss"] for path, table in tables.items() if path.stem == "global")
    return "\n".join([*lines, f"loss {[round(value, 4) for value in loss.to_pylist()]}"])


def tried(tool: Callable[[str], str]) -> str:
    """What a tool wrote, or the error that it raised."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            return tool(folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def main() -> None:
    if sys.argv[1:] == ["legacy"]:
        print("\nkeract, with tf_keras\n" + tried(lambda folder: keract(folder, "tf_keras")))
        return
    for tool in (fitscope, tensorboard, wandb, livelossplot, trainscope, keract):
        print(f"\n{tool.__name__}\n{tried(tool)}", flush=True)
    subprocess.run([sys.executable, __file__, "legacy"], env={**os.environ, "TF_USE_LEGACY_KERAS": "1"})


if __name__ == "__main__":
    main()
