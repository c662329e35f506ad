"""Writes a NumPy file for each kept tensor and epoch: `epoch_0003_predictions.npy`.

The file holds the capture at the last captured step of the epoch. A training step has one batch. A validation has many batches at the
same step; they are concatenated in order (`epoch_0003_validation~predictions.npy`). Epochs count from 0, as in the run. `index.json`
maps each file to its site, epoch and step.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fitscope.errors import FitscopeWarning, RunError
from fitscope.export import kept
from fitscope.export.place import flat, folder, new_file

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run
    from fitscope.read.tensors import Captures

INDEX = "index.json"
Entry = dict[str, Any]  #: the entry of a file in the index


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    del stats  # a tensor has no stats to choose
    found = kept.all_captures(run, sites)
    wanted = [(site, epoch, place) for site in sites for epoch, place in last_of_epochs(found[site])]
    out = folder(out, force)
    _clear(out)
    names = _names(sites)
    files: list[Entry] = []
    missing: list[Entry] = []
    for done, (site, epoch, place) in enumerate(wanted, 1):
        name = file_name(epoch, names[site])
        try:
            files.append(write_capture(out / name, found[site], place))
        except RunError as problem:  # a damaged capture must not stop the others
            missing.append({"site": site, "epoch": epoch, "reason": str(problem)})
            warnings.warn(
                f"Epoch {epoch} of {site!r} is not exported. {problem}", FitscopeWarning, stacklevel=3
            )
        progress(done, len(wanted))
    write_index(out, run.id, files, missing)
    return [*(out / str(entry["file"]) for entry in files), out / INDEX]


def last_of_epochs(captures: Captures) -> list[tuple[int, int]]:
    """The last capture of each epoch: a training batch, or a whole pass."""
    return sorted(
        (int(epoch), int(np.flatnonzero(captures.epoch == epoch)[-1])) for epoch in np.unique(captures.epoch)
    )


def write_capture(path: Path, captures: Captures, place: int) -> Entry:
    """Writes one file from the run."""
    shape, dtype = captures.shape(place), kept.dtype(captures, place)
    return {
        "site": captures.site,
        "epoch": int(captures.epoch[place]),
        "file": path.name,
        "step": int(captures.step[place]),
        "batches": sorted({segment.batch for segment in captures.entries[place].segments}),
        **write(path, shape, dtype, captures.blocks(place)),
    }


def write(path: Path, shape: tuple[int, ...], dtype: kept.DType, blocks: Iterable[kept.Array]) -> Entry:
    """Writes one file as a stream, because a validation may not fit into memory. Returns its entry in the index."""
    with new_file(path, force=True) as unfinished, unfinished.open("wb") as file:
        kept.write_npy(file, shape, kept.stored(dtype), blocks)
    return {"shape": list(shape), "dtype": dtype.name}


def write_index(out: Path, run: str, files: Sequence[Entry], missing: Sequence[Entry]) -> None:
    with new_file(out / INDEX, force=True) as path:
        path.write_text(json.dumps({"run": run, "files": files, "missing": missing}, indent=1))


def read_index(out: Path) -> dict[str, Any] | None:
    """The run and the files of an earlier export. None if there is none."""
    try:
        index = json.loads((out / INDEX).read_text())
        return {
            "run": index["run"],
            "files": [entry for entry in index["files"] if _ours(str(entry["file"]))],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ours(name: str) -> bool:
    return name == Path(name).name and name.startswith("epoch_") and name.endswith(".npy")


def file_name(epoch: int, name: str) -> str:
    return f"epoch_{epoch:04d}_{name}.npy"


def new_name(site: str, used: Collection[str]) -> str:
    """The name of a site in file names, unique even on file systems that ignore case."""
    name, taken = flat(site), {one.casefold() for one in used}
    while name.casefold() in taken:
        name += "+"
    return name


def _names(sites: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for site in sites:
        names[site] = new_name(site, names.values())
    return names


def _clear(out: Path) -> None:
    """Deletes the files that an earlier export listed; other files in the directory stay."""
    for entry in (read_index(out) or {"files": ()})["files"]:
        (out / str(entry["file"])).unlink(missing_ok=True)
