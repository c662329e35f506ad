"""Writes all kept tensors and running averages to one NumPy archive.

Each site has its array (step, sample, …), as `run.tensor` returns it, with `NAME@step`, `@epoch` and `@batch`. An array with samples also
has `@size` (the real rows; the others are padding) and `@batch_size`. A pass has `@batches`, their number, instead of `@batch`. A running
average has `NAME@mean`, `NAME@std` and `NAME@count`. `@index.json` maps keys to sites and original dtypes: unusual characters are
percent-encoded in keys, and bfloat16 and similar types are stored as float32.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fitscope.export import kept
from fitscope.export.place import new_file
from fitscope.store.schema import site_path

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    del stats  # a tensor has no stats to choose
    index: list[dict[str, Any]] = []
    tensors, wanted = set(kept.sites(run)), set(sites)
    found = kept.all_captures(run, (site for site in sites if site in tensors))
    averages = {site: run._average(site) for site in run.averages if site in wanted}
    done, total = 0, sum(len(captures.step) for captures in found.values())
    with new_file(out, force) as path, zipfile.ZipFile(path, "w", allowZip64=True) as archive:

        def put(key: str, shape: Sequence[int], dtype: kept.DType, blocks: Iterable[kept.Array]) -> None:
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                kept.write_npy(file, shape, dtype, blocks)

        def counted(blocks: Iterable[kept.Array]) -> Iterable[kept.Array]:
            nonlocal done
            for block in blocks:
                yield block
                done += len(block)
                progress(done, total)

        for site, captures in found.items():
            key = site_path(site)
            shape, dtype, blocks = kept.blocks(captures)
            put(key, shape, dtype, counted(blocks))
            beside = {"step": captures.step, **captures.beside}
            for name, values in beside.items():
                put(f"{key}@{name}", values.shape, np.dtype(np.int64), [values])
            original = kept.dtype(captures).name
            index.append({"key": key, "site": site, "dtype": original, "beside": list(beside)})
        means: list[dict[str, Any]] = []
        for site, average in averages.items():
            key = site_path(site)
            for name, array in (
                ("mean", average.mean),
                ("std", average.std),
                ("count", np.array(average.count)),
            ):
                put(f"{key}@{name}", array.shape, array.dtype, [array])
            facts = {name: getattr(average, name) for name in ("captures", "first_step", "last_step")}
            means.append({"key": key, "site": site, **facts})
        document = {"run": run.id, "arrays": index, "averages": means}
        archive.writestr("@index.json", json.dumps(document, indent=1))
    return [out]
