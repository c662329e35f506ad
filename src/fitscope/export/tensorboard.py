"""Writes scalars and histograms to a TensorBoard event file, in a directory named after the run.

Tags are `activations/conv1/mean` and `activations/conv1/histogram`; for a scalar the tag is the site: `loss`, `metrics/accuracy`. Wall
times come from the training. TensorBoard keeps one value per tag and step. So several values at one step (from several ranks, or the
batches of a validation) are merged, and scalars are averaged. Values are float32. A histogram takes a hundred times the bytes it has in the
run, and TensorBoard shows a few hundred per tag. So a long training omits later histograms, unless the user asks for them by name.

This module needs only the `tensorboard` package. It does not use its `EventFileWriter`, which imports TensorFlow if installed
(tensorboard 2.21) and adds a queue and a thread. Its checksum would take longer than everything else; see `checksum`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from fitscope.errors import StoreError
from fitscope.export.checksum import masked
from fitscope.export.database import bounds
from fitscope.export.place import flat, folder, new_file
from fitscope.export.rows import HISTOGRAM, columns, rows
from fitscope.reduce.stats import BUCKETS, NAMES, ZERO_BUCKET, Stats

if TYPE_CHECKING:
    from fitscope.export import Progress
    from fitscope.read import Run

#: The stats that are written by default.
SHOWN = ("mean", "std", "min", "max", "rms", "zeros", "nans", "infs", "cosine", "histogram")

#: Stats that are written only if they are not 0: flat charts would hide the others.
SELDOM = ("nans", "infs")

DENSE = 64  #: the number of first steps that all have histograms
BATCH_ROWS = 1_000  #: rows turned into Python objects at once
DT_FLOAT, DT_DOUBLE = 1, 2  #: numbers from TensorFlow's types.proto
ENDING = ".fitscope"  #: the ending of fitscope's event files; TensorBoard looks only for "tfevents" in a name


def export(
    run: Run, out: Path, *, sites: Sequence[str], stats: Sequence[str], force: bool, progress: Progress
) -> list[Path]:
    package()  # fails before anything is created
    where = folder(directory(out, run), force)
    path = where / file_name(run)
    began = run.created.timestamp()
    with new_file(path, force=True) as unfinished, Events(unfinished, began, stats or SHOWN) as events:
        for seen in by_step(rows(run, sites, columns(()), progress)):
            events.add(seen)
    for earlier in where.glob(f"events.out.tfevents.*{ENDING}*"):  # including those of a live export
        if earlier.name != path.name:
            earlier.unlink()
    return [path]


def directory(out: Path, run: Run) -> Path:
    """The directory of a run's event files in a log directory."""
    return out / flat(run.id)


def file_name(run: Run, attempt: int = 0) -> str:
    """The name of an event file. TensorBoard reads the files of a directory in the order of their names."""
    name = f"events.out.tfevents.{int(run.created.timestamp()):010d}{ENDING}"
    return f"{name}.{attempt:04d}" if attempt else name


class Events:
    """An event file that is being written. TensorBoard can read it after every `flush`."""

    def __init__(self, path: Path, began: float, shown: Sequence[str] = SHOWN) -> None:
        """`began` is in seconds since 1970; TensorBoard shows times relative to it."""
        self._tb = package()
        self._shown = tuple(shown)
        self._seldom = SELDOM if self._shown == SHOWN else ()  # unless the user names them
        self._thin = self._shown == SHOWN
        self._windows: dict[
            str, tuple[int, int]
        ] = {}  # for each site the stretch of steps whose histogram is written
        self._known: set[str] = set()  # tags whose plugin is already in the file
        self._file: IO[bytes] = path.open("wb")
        self._write(wall_time=began, file_version="brain.Event:2")

    def add(self, seen: Point) -> None:
        """Adds the values of one site at one step. The steps of a site must increase."""
        summary = self._tb.Summary()
        if seen.value is not None:
            self._scalar(summary, seen.site, seen.value)
        else:
            for name in self._shown:
                if name == "cosine":
                    if seen.cosine is not None:
                        self._scalar(summary, f"{seen.site}/cosine", seen.cosine)
                elif name != "histogram":
                    number = getattr(seen.stats, name)
                    if number or name not in self._seldom:
                        self._scalar(summary, f"{seen.site}/{name}", number)
                elif seen.stats.finite and self._is_due(seen):
                    self._histogram(summary, f"{seen.site}/histogram", triples(seen.stats))
        self._write(wall_time=seen.time, step=seen.step, summary=summary)

    def _is_due(self, seen: Point) -> bool:
        """Whether the histogram of a site is kept: of each of the first `DENSE` steps, then one of 2, 4, 8 … steps."""
        wide = max(seen.step.bit_length() - DENSE.bit_length() + 1, 0) if self._thin else 0
        window = (wide, seen.step >> wide)
        due = self._windows.get(seen.site) != window or not self._thin
        self._windows[seen.site] = window
        return due

    def restart(self, step: int, time: float) -> None:
        """Makes TensorBoard forget everything from a step on, because the training repeats it."""
        for _ in range(2):  # TensorBoard takes the first one in a directory for a start, not a restart
            self._write(wall_time=time, step=step, session_log=self._tb.started)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scalar(self, summary: Any, tag: str, value: float) -> None:
        tensor = self._tb.Tensor(dtype=DT_FLOAT, float_val=[value], tensor_shape={})
        self._value(summary, tag, "scalar", tensor)

    def _histogram(self, summary: Any, tag: str, rows: np.ndarray[Any, Any]) -> None:
        shape = {"dim": [{"size": extent} for extent in rows.shape]}
        content = rows.astype("<f8").tobytes()
        tensor = self._tb.Tensor(dtype=DT_DOUBLE, tensor_content=content, tensor_shape=shape)
        self._value(summary, tag, "histogram", tensor)

    def _value(self, summary: Any, tag: str, plugin: str, tensor: Any) -> None:
        metadata = None
        if tag not in self._known:  # only once per tag
            self._known.add(tag)
            metadata = self._tb.metadata[plugin]
        summary.value.add(tag=tag, tensor=tensor, metadata=metadata)

    def _write(self, **event: Any) -> None:
        data = self._tb.Event(**event).SerializeToString()
        length = len(data).to_bytes(8, "little")
        self._file.write(b"".join((length, masked(length), data, masked(data))))


def triples(stats: Stats) -> np.ndarray[Any, Any]:
    """The histogram in TensorBoard's form: rows of left edge, right edge, count.

    The rows are ordered and without gaps, as the distributions view expects; an empty stretch is one row. The ends are the
    smallest and largest value, not bucket edges, because the views take their range from them.
    """
    lower, upper = bounds()
    used = np.flatnonzero(stats.hist)
    left = np.clip(lower[used], stats.min, stats.max)
    right = np.clip(upper[used], stats.min, stats.max)
    found = [[left[0], right[0], stats.hist[used[0]]]]
    for here in range(1, len(used)):
        if left[here] > found[-1][1]:
            found.append([found[-1][1], left[here], 0])
        found.append([left[here], right[here], stats.hist[used[here]]])
    return np.array(found, np.float64)


@dataclass(slots=True)
class Point:
    """The merged values of one site at one step."""

    site: str
    step: int
    time: float
    rank: int = 0  #: the rank of the first row
    stats: Stats = field(default_factory=Stats)
    values: list[float] = field(default_factory=list)
    cosines: list[float] = field(default_factory=list)
    touched: bool = False  #: whether it changed since the last request
    told: bool = False  #: whether its current values were returned

    @property
    def cosine(self) -> float | None:
        return float(np.mean(self.cosines)) if self.cosines else None

    @property
    def value(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    def take(self, time: float, stats: Stats, value: float | None, cosine: float | None) -> None:
        self.time = max(self.time, time)
        if value is not None:
            self.values.append(value)
        if cosine is not None:
            self.cosines.append(cosine)
        self.stats = self.stats.merge(stats)
        self.touched, self.told = True, False


class Steps:
    """Merges values into one per site and step. It holds one step at a time."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._seen: dict[str, Point] = {}

    def at(self, step: int) -> list[Point]:
        """Starts a step. Returns everything of the previous step, unless it is the same."""
        if step == self._step:
            return []
        done, self._step, self._seen = self.rest(), step, {}
        return done

    def of(self, site: str, time: float, rank: int = 0) -> Point:
        """The values of a site in this step, to add to."""
        if site not in self._seen:
            assert self._step is not None
            self._seen[site] = Point(site, self._step, time, rank)
        return self._seen[site]

    def rest(self) -> list[Point]:
        """Everything that was not returned yet."""
        return self._tell(list(self._seen.values()))

    def quiet(self) -> list[Point]:
        """The values that did not change since the last call; those of a running pass do."""
        found = self._tell([seen for seen in self._seen.values() if not seen.touched])
        for seen in self._seen.values():
            seen.touched = False
        return found

    def _tell(self, some: list[Point]) -> list[Point]:
        new = sorted((seen for seen in some if not seen.told), key=lambda seen: seen.site)
        for seen in new:
            seen.told = True
        return new


def by_step(tables: Iterable[pa.Table]) -> Iterator[Point]:
    """Merges rows of the stats table into one per site and step."""
    steps = Steps()
    needed = ["site", "step", "time", "rank", "batched", "value", "cosine", *NAMES, *HISTOGRAM]
    for table in tables:
        for batch in table.select(needed).to_batches(max_chunksize=BATCH_ROWS):
            for row in batch.to_pylist():
                yield from steps.at(row["step"])
                seen = steps.of(row["site"], row["time"], row["rank"])
                if not row["batched"] and row["rank"] != seen.rank:
                    continue  # every rank has the same tensor: the first one counts
                hist = np.zeros(BUCKETS, np.int64)
                if row["buckets"]:
                    hist[np.array(row["buckets"]) + ZERO_BUCKET] = row["counts"]
                stats = Stats(**{name: row[name] for name in NAMES}, hist=hist)
                seen.take(row["time"], stats, row["value"], row["cosine"])
    yield from steps.rest()


@dataclass(frozen=True, slots=True)
class _Package:
    """The parts of tensorboard that fitscope uses."""

    Event: Any
    Summary: Any
    Tensor: Any
    started: Any
    metadata: dict[str, Any]


def package() -> _Package:
    try:
        event, summary, tensor, scalar, histogram = (
            importlib.import_module(f"tensorboard.{name}")
            for name in (
                "compat.proto.event_pb2", "compat.proto.summary_pb2",
                "compat.proto.tensor_pb2", "plugins.scalar.metadata", "plugins.histogram.metadata",
            )
        )  # fmt: skip
    except ImportError as problem:
        raise StoreError(
            "the package tensorboard", f"an environment without it ({problem})",
            "Install it: pip install 'fitscope[tensorboard]'",
        ) from problem  # fmt: skip
    return _Package(
        event.Event,
        summary.Summary,
        tensor.TensorProto,
        event.SessionLog(status=event.SessionLog.START),
        {
            name: module.create_summary_metadata(display_name=None, description=None)
            for name, module in (("scalar", scalar), ("histogram", histogram))
        },
    )
