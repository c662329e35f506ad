"""A NumPy file for each kept tensor and epoch: `epoch_0003_predictions.npy`.

It holds the last of the epoch: what was captured at its last step. A training step has one batch; a validation
has many at the same step, and these follow one another in one array, in the order of the batches. Epochs are
counted from 0, as in the run. `index.json` says which file is which site, epoch and step.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
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


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    del stats  # there are none of a tensor
    found = {site: kept.captures(run, site) for site in sites}
    wanted = [(site, epoch, places) for site in sites for epoch, places in last_of_epochs(found[site])]
    out = folder(out, force)
    _clear(out)
    names = _names(sites)
    files: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    for done, (site, epoch, places) in enumerate(wanted, 1):
        entry: dict[str, Any] = {"site": site, "epoch": epoch}
        name = f"epoch_{epoch:04d}_{names[site]}.npy"
        try:
            entry |= {"file": name, **_write(out / name, found[site], places)}
            files.append(entry)
        except RunError as problem:  # damage of one capture is no reason to keep the others back
            missing.append({**entry, "reason": str(problem)})
            warnings.warn(
                f"Epoch {epoch} of {site!r} is not exported. {problem}", FitscopeWarning, stacklevel=3
            )
        progress(done, len(wanted))
    document = {"run": run.id, "files": files, "missing": missing}
    with new_file(out / INDEX, force=True) as path:
        path.write_text(json.dumps(document, indent=1))
    return [*(out / str(entry["file"]) for entry in files), out / INDEX]


def last_of_epochs(captures: Captures) -> list[tuple[int, list[int]]]:
    """For each epoch the captures of its last step: one of a training, one per batch of a validation."""
    found = []
    for epoch in np.unique(captures.epoch).tolist():
        inside = np.flatnonzero(captures.epoch == epoch)
        places = inside[captures.step[inside] == captures.step[inside].max()]
        again = np.flatnonzero(np.diff(captures.batch[places]) <= 0)  # evaluated twice: the last counts
        found.append((epoch, places[again[-1] + 1 if len(again) else 0 :].tolist()))
    return found


def _write(path: Path, captures: Captures, places: list[int]) -> dict[str, Any]:
    """Writes one file, streaming: a validation may be larger than the memory."""
    shape = _shape(captures, places)
    original = kept.dtype(captures, places)
    dtype = kept.stored(original)
    with new_file(path, force=True) as unfinished, unfinished.open("wb") as file:
        kept.write_npy(file, shape, dtype, _blocks(captures, places, shape, dtype))
    return {
        "step": int(captures.step[places[0]]),
        "batches": captures.batch[places].tolist(),
        "shape": list(shape),
        "dtype": original.name,
    }


def _shape(captures: Captures, places: list[int]) -> tuple[int, ...]:
    """One capture as it is; several one after the other where they are made of samples, else stacked."""
    shapes = [kept.shape(captures, place) for place in places]
    if len(shapes) == 1:
        return shapes[0]
    if len({len(shape) for shape in shapes}) > 1:
        raise RunError(
            f"batches of one number of dimensions at {captures.site!r}",
            f"shapes {sorted(set(shapes))}",
            "Choose other sites for this export",
        )
    widest = tuple(max(extents) for extents in zip(*shapes, strict=True))
    if _batched(captures):
        return (sum(shape[0] for shape in shapes), *widest[1:])
    return (len(shapes), *widest)


def _blocks(
    captures: Captures, places: list[int], shape: tuple[int, ...], dtype: kept.DType
) -> Iterator[kept.Array]:
    """The captures, padded to the widest where they differ in more than the number of samples."""
    for place in places:
        array = kept.capture(captures, place).astype(dtype, copy=False)
        if len(places) > 1:
            array = array if _batched(captures) else array[None]
            if array.shape[1:] != shape[1:]:
                padded = np.full((len(array), *shape[1:]), kept.padding(dtype), dtype)
                padded[tuple(slice(extent) for extent in array.shape)] = array
                array = padded
        yield array


def _batched(captures: Captures) -> bool:
    return captures.pieces[0].array.batched


def _names(sites: Sequence[str]) -> dict[str, str]:
    """A file name for each site, different also where upper and lower case are the same."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for site in sites:
        name = flat(site)
        while name.casefold() in used:
            name += "+"
        used.add(name.casefold())
        names[site] = name
    return names


def _clear(out: Path) -> None:
    """Removes what an earlier export listed as its own; other files in the directory stay."""
    try:
        listed = json.loads((out / INDEX).read_text())["files"]
        names = [str(entry["file"]) for entry in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names:
        if name == Path(name).name and name.startswith("epoch_") and name.endswith(".npy"):
            (out / name).unlink(missing_ok=True)
