"""A run of a large residual network that never existed, written straight into a store: for figures and pictures tests.

It shows every fault that the page names: a layer that goes dead, gradients that vanish towards the input, four loss
spikes, an explosion that ends in NaN. Rows are made column by column and put as Parquet parts of the store's own
layout, because a hundred thousand steps of three hundred layers are thirty million rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fitscope.store import RunWriter, schema
from fitscope.store.stats_table import facts

STEPS_A_PART = 100


def names(layers: int) -> list[tuple[str, str]]:
    """(name, type) of a residual network with so many layers."""
    kinds = (
        ("conv1", "Conv2D"),
        ("bn1", "BatchNormalization"),
        ("relu1", "ReLU"),
        ("conv2", "Conv2D"),
        ("bn2", "BatchNormalization"),
        ("add", "Add"),
    )
    found = [("stem_conv", "Conv2D"), ("stem_bn", "BatchNormalization")]
    stage, block = 1, 1
    while len(found) < layers - 2:
        found += [(f"s{stage}b{block}_{name}", kind) for name, kind in kinds]
        block += 1
        if block > max(layers // 24, 1):
            stage, block = stage + 1, 1
    return [*found[: layers - 2], ("gap", "GlobalAveragePooling2D"), ("softmax", "Dense")]


def model(layers: int) -> dict[str, Any]:
    """The model as the capturing side would describe it."""
    listed = names(layers)
    described = []
    for i, (name, kind) in enumerate(listed):
        before = [listed[i - 1][0]] if i else []
        if kind == "Add" and i >= 6:
            before.append(listed[i - 6][0])
        described.append(
            {
                "path": name,
                "name": name,
                "type": kind,
                "from": before,
                "output_shape": [None, 8, 8, 64],
                "weights": {},
            }
        )
    return {"name": "resnet", "parameters": 1_000_000, "layers": described}


def configuration(layers: int) -> dict[str, Any]:
    """How it is set up: as much as tells that units can die in the layer in which they do."""
    listed = names(layers)
    dying = listed[int(layers * 0.51)][0]
    activations = {name: "relu" if "relu" in name or name == dying else None for name, _ in listed}
    return {"layers": [{"path": name, "activation": activation} for name, activation in activations.items()]}


def write(
    to: str | Path,
    layers: int,
    steps: int,
    name: str = "synthetic",
    *,
    nan: bool = True,
    first: int = 0,
    writer: RunWriter | None = None,
) -> RunWriter:
    """Writes steps `first` to `steps`, of a new run or one that goes on. The writer is left open."""
    listed = [site for site, _ in names(layers)]
    info = {"model": model(layers), "configuration": configuration(layers), "backend": "jax"}
    writer = writer or RunWriter.create(to, name, info)
    folder = Path(writer.path) / schema.rank_folder(0, 0) / schema.STATS
    folder.mkdir(parents=True, exist_ok=True)
    part = len(list(folder.glob("*.parquet")))
    for begin in range(first, steps, STEPS_A_PART):
        table = _part(listed, np.arange(begin, min(begin + STEPS_A_PART, steps)), max(steps, 5000), nan)
        # Whole or not at all, as the store puts it: somebody may be reading.
        file = folder / schema.part_name(part)
        pq.write_table(
            table,
            file.with_suffix(".tmp"),
            compression="zstd",
            use_dictionary=["site", "kind", "layer", "pass", "dtype"],
            write_page_checksum=True,
        )
        file.with_suffix(".tmp").rename(file)
        part += 1
    writer.flush()
    return writer


def _part(listed: list[str], step: np.ndarray, total: int, nan: bool) -> pa.Table:
    rng = np.random.default_rng(int(step[0]))
    layers, wide = len(listed), len(step)
    depth = np.arange(layers)[:, None] / layers
    t = step[None, :] / total
    noise = rng.normal(0, 0.12, (layers, wide))
    gradient = -3.2 + 1.1 * depth - 0.4 * t + noise
    gradient -= 5.5 * np.clip((t - 0.27) * 3, 0, 1) * np.clip(1 - depth * 3.2, 0, 1)  # vanishing
    culprit = int(layers * 0.62)
    near = np.exp(-(((np.arange(layers) - culprit) / (layers * 0.05)) ** 2))[:, None]
    gradient += 5.2 * near * np.clip((t - 0.9) / 0.042, 0, 1)  # exploding
    spikes = np.isin(step, [int(total * s) for s in (0.14, 0.35, 0.59, 0.72)])[None, :]
    gradient = gradient + 0.8 * spikes * (0.3 + depth)
    dead = int(layers * 0.51)
    is_dead = (np.arange(layers) == dead)[:, None] & (t > 0.44)
    gradient = np.where(is_dead, gradient - 3, gradient)
    activation = -0.2 + 0.3 * np.sin(6 * depth) + 0.4 * noise
    zeros = np.where(np.char.find(listed, "relu")[:, None] >= 0, 0.5, 0.01) * np.ones((layers, wide))
    zeros = np.where(is_dead, 0.995, zeros)
    # NaN is born in one layer and is everywhere a step later.
    broken = nan & (step[None, :] >= int(total * 0.9424) + (np.arange(layers) != culprit)[:, None])
    loss = 3.0 * np.exp(-3 * t[0]) + 0.25 + rng.normal(0, 0.02, wide) + 2.2 * spikes[0] * np.exp(-t[0])
    loss = np.where(t[0] > 0.9, loss * 10 ** np.clip((t[0] - 0.9) * 28, 0, 1.3), loss)
    count = 4096
    tables = [_rows([f"activations/{n}" for n in listed], step, 10.0**activation, zeros, broken, count)]
    bad = nan & (step > int(total * 0.9424))
    tables.append(
        _rows(
            [f"gradients/{n}" for n in listed],
            step,
            10.0**gradient,
            np.zeros_like(zeros),
            bad[None, :],
            count,
        )
    )
    tables.append(_rows(["loss"], step, loss[None, :], np.zeros((1, wide)), bad[None, :], 1, scalar=True))
    return pa.concat_tables(tables)


def _rows(
    sites: list[str],
    step: np.ndarray,
    rms: np.ndarray,
    zeros: np.ndarray,
    broken: np.ndarray,
    count: int,
    *,
    scalar: bool = False,
) -> pa.Table:
    rows, wide = rms.shape
    n = rows * wide
    rms, zeros, broken = (np.broadcast_to(a, (rows, wide)).ravel() for a in (rms, zeros, broken))
    finite = np.where(broken, np.nan, rms)
    exponent = np.clip(np.floor(np.log2(np.maximum(rms, 1e-30))).astype(int) + 129, 1, 256)
    lengths = np.where(broken, 0, 4)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    around = (
        (np.stack([-exponent, -exponent + 2, exponent - 2, exponent], 1)[~broken]).astype(np.int16).ravel()
    )
    shares = np.tile(np.array([count // 4] * 4, np.int64), int((~broken).sum()))
    shape = pa.ListArray.from_arrays(
        np.arange(n + 1, dtype=np.int32) * (0 if scalar else 2),
        pa.array(np.tile([32, count // 32], 0 if scalar else n), pa.int64()),
    )
    nothing = np.zeros(n, np.int64)
    columns = {
        "step": np.tile(step, rows), "epoch": np.tile(step // 390, rows).astype(np.int32),
        "batch": np.tile(step % 390, rows).astype(np.int32),
        "time": np.tile(1_800_000_000.0 + step / 20, rows), "attempt": nothing.astype(np.int16), "rank": nothing.astype(np.int32),
        "site": np.repeat(np.array(sites, object), wide),
        **{name: column.dictionary_decode().take(np.repeat(np.arange(rows), wide)) for name, column in facts(sites).items()},
        "dtype": np.full(n, "float32", object), "shape": shape,
        "batched": np.full(n, not scalar), "value": pa.array(np.where(scalar, finite, np.nan), from_pandas=not scalar),
        "count": nothing + count, "mean": finite * 0.01, "std": finite, "min": -3 * finite, "max": 3 * finite, "rms": finite,
        "zeros": np.where(broken, 0, np.rint(zeros * count)).astype(np.int64),
        "negatives": np.where(broken, 0, np.rint((1 - zeros) * count / 2)).astype(np.int64),
        "nans": np.where(broken, count, 0).astype(np.int64), "infs": nothing,
        "buckets": pa.ListArray.from_arrays(offsets, pa.array(around)), "counts": pa.ListArray.from_arrays(offsets, pa.array(shares)),
    }  # fmt: skip
    listed = schema.STATS_SCHEMA.names
    nulls = {
        field.name: pa.nulls(n, field.type) for field in schema.STATS_SCHEMA if field.name not in columns
    }
    filled = {**columns, **nulls}
    return pa.table([pa.array(filled[name]) if isinstance(filled[name], np.ndarray) else filled[name] for name in listed],
                    names=listed).cast(schema.STATS_SCHEMA)  # fmt: skip
