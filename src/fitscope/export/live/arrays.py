"""Writes the last capture of each epoch as `.npy` during training, in the layout of `fitscope.export.npy`.

For training steps, memory holds only the newest capture of each site; the next flush writes it to the file of its epoch. The batches
of a pass go to a temporary file, because they may not fit into memory. A pass is written when another record arrives, or when
nothing arrived between two flushes. So a file never holds half a pass, unless its batches are slower than that.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from fitscope.errors import RunError, StoreError
from fitscope.export import kept, npy
from fitscope.export.live import Say, start_of
from fitscope.export.place import folder
from fitscope.read.joint import Joint
from fitscope.sites import pass_of
from fitscope.store.tensors import stored_as

if TYPE_CHECKING:
    from fitscope.read import Run
    from fitscope.record import Moment, Record, Samples

IN_MEMORY = 4 << 20  #: the most bytes of a pass that stay in memory

Array = np.ndarray[Any, Any]


def check(out: Path, run: str | None) -> None:
    """Raises an error unless the directory is empty or holds the files of this run."""
    if out.is_dir() and any(out.iterdir()):
        index = npy.read_index(out)
        if index is None or run is None or index["run"] != run:
            raise StoreError(
                "an empty directory for `npy`",
                f"{str(out)!r}, which has files that are not of this run",
                "Choose another for each training",
            )


class LiveArrays:
    """The files that one attempt adds to a directory of arrays."""

    def __init__(self, out: Path, run: Run, attempt: int, say: Say) -> None:
        check(out, run.id if attempt else None)
        self._out, self._run, self._say = folder(out, force=True), run.id, say
        self._files: dict[tuple[str, int], npy.Entry] = {}  # the written files, by site and epoch
        self._missing: dict[tuple[str, int], npy.Entry] = {}
        self._names: dict[str, str] = {}  # the name of each site in file names
        self._newest: dict[str, Newest] = {}  # the newest capture of each site
        self._over: list[Newest] = []  # captures that are not written yet, although a newer one came
        if attempt:
            self._go_on(run, start_of(run, attempt))

    def write(self, records: Sequence[Record], samples: Sequence[Samples]) -> None:
        del samples  # samples are no tensors
        for record in records:
            if record.tensor is not None and stored_as(record.tensor.dtype) is not None:
                self._take(record, record.tensor)
        if records:
            self._put([one for one in self._newest.values() if one.is_over(records[0])])

    def flush(self) -> None:
        quiet = [one for one in self._newest.values() if not one.of_pass or not one.touched]
        for one in self._newest.values():
            one.touched = False
        self._put(quiet)

    def close(self) -> None:
        try:
            self._put(list(self._newest.values()))
        finally:
            for one in (*self._over, *self._newest.values()):
                one.close()

    def _take(self, record: Record, tensor: Array) -> None:
        before = self._newest.get(record.site)
        if before is None or not before.goes_on(record.at):
            if before is not None and before.at.epoch != record.at.epoch and not before.written:
                self._over.append(before)
            elif before is not None:  # it is written, or its epoch has a later one now
                before.close()
            before = self._newest[record.site] = Newest(record, self._out)
        before.add(record, tensor)

    def _put(self, some: Sequence[Newest]) -> None:
        """Writes these captures, and those that failed before."""
        changed = False
        try:
            while self._over:
                self._write(self._over[0])
                self._over.pop(0).close()
                changed = True
            for one in some:
                if not one.written:
                    self._write(one)
                    changed = True
        finally:
            if changed:
                self._write_index()

    def _write(self, one: Newest) -> None:
        site, epoch = one.site, one.at.epoch
        if site not in self._names:
            self._names[site] = npy.new_name(site, self._names.values())
        entry: npy.Entry = {"site": site, "epoch": epoch}
        name = npy.file_name(epoch, self._names[site])
        try:
            joint = Joint.of(site, one.parts)
            facts = npy.write(self._out / name, joint.shape, one.dtype, one.blocks(joint))
            self._missing.pop((site, epoch), None)
            batches = sorted(set(one.batches))
            self._files[site, epoch] = {
                **entry,
                "file": name,
                "step": one.at.step,
                "batches": batches,
                **facts,
            }
        except RunError as problem:  # the shapes of the batches do not match
            self._missing[site, epoch] = {**entry, "reason": str(problem)}
            self._say(f"epoch {epoch} of {site!r} is not written. {problem}")
        one.written = True

    def _write_index(self) -> None:
        files, missing = ([found[key] for key in sorted(found)] for found in (self._files, self._missing))
        npy.write_index(self._out, self._run, files, missing)

    def _go_on(self, run: Run, start: int) -> None:
        """Continues from earlier attempts: writes the missing captures, and drops repeated steps."""
        index = npy.read_index(self._out)
        if index is None:
            sites = kept.sites(run)
            if not sites:
                return
            npy.export(run, self._out, sites=sites, stats=(), force=True, progress=lambda *_: None)
            index = npy.read_index(self._out) or {"files": []}
        gone = []
        for entry in index["files"]:
            site, epoch, step = str(entry["site"]), int(entry["epoch"]), int(entry["step"])
            name = str(entry["file"])
            self._names[site] = name.removeprefix(npy.file_name(epoch, "").removesuffix(".npy")).removesuffix(
                ".npy"
            )
            if step < start or (step == start and pass_of(site) is not None):
                self._files[site, epoch] = entry
            else:
                (self._out / name).unlink(missing_ok=True)
                gone.append((site, epoch))
        for site, epoch in gone:  # an earlier capture of that epoch may count
            with contextlib.suppress(RunError):
                self._again(run, site, epoch)
        if gone:
            self._write_index()

    def _again(self, run: Run, site: str, epoch: int) -> None:
        captures = kept.captures(run, site)
        for found, place in npy.last_of_epochs(captures):
            if found == epoch:
                name = npy.file_name(epoch, self._names[site])
                self._files[site, epoch] = npy.write_capture(self._out / name, captures, place)


class Newest:
    """The newest capture of a site: a training batch, or the batches of a pass so far."""

    def __init__(self, record: Record, out: Path) -> None:
        self.site, self.at = record.site, record.at
        self.of_pass = pass_of(record.site) is not None
        self.parts: list[
            tuple[bool, tuple[int, ...]]
        ] = []  #: whether the first axis of each batch is samples, and its shape
        self.batches: list[int] = []
        self.touched = False  #: whether a batch came since the last flush
        self.written = False
        self._dtypes: list[kept.DType] = []
        self._tensor: Array | None = None
        self._file: IO[bytes] | None = None
        if self.of_pass:
            self._file = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(out), prefix=".fitscope-")  # noqa: SIM115

    @property
    def dtype(self) -> kept.DType:
        return np.result_type(*set(self._dtypes))

    def goes_on(self, at: Moment) -> bool:
        """Whether a moment belongs to the same pass."""
        same = (at.step, at.epoch) == (self.at.step, self.at.epoch)
        return self.of_pass and same and at.batch > self.batches[-1]

    def is_over(self, record: Record) -> bool:
        """Whether a record shows that no more batches follow."""
        here, there = self.at, record.at
        same = pass_of(self.site) == pass_of(record.site) and (here.step, here.epoch) == (
            there.step,
            there.epoch,
        )
        return self.of_pass and not same

    def add(self, record: Record, tensor: Array) -> None:
        self.parts.append((record.batched and tensor.ndim > 0, tensor.shape))
        self.batches.append(record.at.batch)
        self._dtypes.append(tensor.dtype)
        self.touched, self.written = True, False
        if self._file is None:
            self._tensor = tensor
        else:
            self._file.write(np.ascontiguousarray(tensor).tobytes())

    def blocks(self, joint: Joint) -> Iterator[Array]:
        """The capture, batch by batch."""
        if self._file is None:
            assert self._tensor is not None
            yield joint.block(self._tensor, self.parts[0][0])
            return
        self._file.seek(0)
        try:
            for (batched, shape), dtype in zip(self.parts, self._dtypes, strict=True):
                size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
                batch = np.frombuffer(self._file.read(size), dtype).reshape(shape)
                yield joint.block(batch, batched)
        finally:
            self._file.seek(0, 2)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
