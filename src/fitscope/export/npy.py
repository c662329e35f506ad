"""A NumPy file for each kept tensor and epoch: `epoch_0003_predictions.npy`.

It holds the last of the epoch: what was captured at its last step. A training step has one batch; a validation
has many at the same step, and these follow one another in one array, in the order of the batches
(`epoch_0003_validation~predictions.npy`). Epochs are counted from 0, as in the run. `index.json` says which
file is which site, epoch and step.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
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
    wanted = [(site, epoch, place) for site in sites for epoch, place in last_of_epochs(found[site])]
    out = folder(out, force)
    _clear(out)
    names = _names(sites)
    files: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    for done, (site, epoch, place) in enumerate(wanted, 1):
        entry: dict[str, Any] = {"site": site, "epoch": epoch}
        name = f"epoch_{epoch:04d}_{names[site]}.npy"
        try:
            entry |= {"file": name, **_write(out / name, found[site], place)}
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


def last_of_epochs(captures: Captures) -> list[tuple[int, int]]:
    """For each epoch its last capture: a batch of a training, or a whole pass."""
    return sorted(
        (int(epoch), int(np.flatnonzero(captures.epoch == epoch)[-1])) for epoch in np.unique(captures.epoch)
    )


def _write(path: Path, captures: Captures, place: int) -> dict[str, Any]:
    """Writes one file, streaming: a validation may be larger than the memory."""
    shape = captures.shape(place)
    original = kept.dtype(captures, place)
    dtype = kept.stored(original)
    with new_file(path, force=True) as unfinished, unfinished.open("wb") as file:
        kept.write_npy(file, shape, dtype, captures.blocks(place))
    return {
        "step": int(captures.step[place]),
        "batches": sorted({segment.batch for segment in captures.entries[place].segments}),
        "shape": list(shape),
        "dtype": original.name,
    }


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
