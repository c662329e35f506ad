"""Hands a run to Dask: its statistics as a DataFrame, its tensors as arrays, and functions of a step to a cluster.

Dask schedules all work, here or on a cluster of the user's. Only the place of the run travels. Each worker opens the run itself and
reads only the data of its task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from fitscope.errors import RunError
from fitscope.read.frames import frame_of
from fitscope.read.sources import Stored
from fitscope.sites import pass_of
from fitscope.store._base import Objects

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from distributed import Client

    from fitscope.read.run import Run
    from fitscope.read.tables import Table

T = TypeVar("T")

BLOCK_BYTES = 64 << 20  #: bytes of tensors that one task reads; at least one step
TASKS = 32  #: tasks for each worker, so that none waits long for another
MOST_OPEN = 8  #: runs that a worker keeps open

_kept_open: dict[tuple[str, int | None], Run] = {}  # the runs that this worker has open, by place


def map_steps(
    run: Run, fn: Callable[[Run, int], T], client: Client | None = None, steps: Iterable[int] | None = None
) -> dict[int, T]:
    """Calls `fn(run, step)` for each captured step, on a Dask cluster if you have one, and returns the results by step.

    Args:
        run: The run.
        fn: A function of a run and the number of a step. On a cluster, each worker opens the run itself.
        client: Your `dask.distributed.Client`. Without one, this process does the work.
        steps: The steps. By default all training steps at which something was captured.
    """
    wanted = captured_steps(run) if steps is None else [int(step) for step in steps]
    if client is None:
        return {step: fn(run, step) for step in wanted}
    cluster: Any = client
    size = max(math.ceil(len(wanted) / (TASKS * max(len(cluster.nthreads()), 1))), 1)
    some = [wanted[i : i + size] for i in range(0, len(wanted), size)]
    futures = cluster.map(_applied, some, place=_Place.of(run), fn=fn, pure=False)
    return {step: value for part in cluster.gather(futures) for step, value in part}


def captured_steps(run: Run) -> list[int]:
    """The training steps with captured tensors, without those that have only Keras's logs."""
    found = run.sql(
        "select distinct step from stats where pass = 'train' and kind <> 'logs' and over is null"
    )["step"]
    sites = {site for rank in run._state.ranks for site in rank.arrays() if pass_of(site) is None}
    kept = [run.tensor(site)["step"].values for site in sorted(sites)]
    return [int(step) for step in np.unique(np.concatenate([found.to_numpy(), *kept]))]


def frame(run: Run) -> dd.DataFrame:
    """The statistics of a run, a partition for each part."""
    frames = _dask("dask.dataframe")
    table = _stats(run)
    stored = [part.key for part in table.parts if isinstance(part.source, Stored)]
    # Rows that are in no part yet may be in one when a worker reads: send them with the task.
    waiting: dd.DataFrame = frames.from_pandas(frame_of(table.waiting()), npartitions=1)
    if not stored:
        return waiting
    empty = frame_of(table.form.empty_table())
    parts: dd.DataFrame = frames.from_map(_part, stored, place=_Place.of(run), meta=empty)
    both: dd.DataFrame = frames.concat([parts, waiting])
    return both


def array(run: Run, site: str) -> da.Array:
    """The kept tensors of a site as `run.tensor` has them, in chunks of some steps."""
    arrays = _dask("dask.array")
    whole = run.tensor(site)
    captures = Elsewhere(_Place.of(run), str(whole.name), whole.shape, whole.dtype)
    step_bytes = max(whole.nbytes // max(len(whole), 1), 1)
    chunks = (max(BLOCK_BYTES // step_bytes, 1), *whole.shape[1:])
    found: da.Array = arrays.from_array(
        captures, chunks=chunks, meta=np.empty((0,) * whole.ndim, whole.dtype)
    )
    return found


class _Place(NamedTuple):
    """Where a run is, and the rank that it is restricted to."""

    objects: Objects
    rank: int | None

    @classmethod
    def of(cls, run: Run) -> _Place:
        return cls(run._state.objects, run._only)


class Elsewhere:
    """The tensors of a site, as an array that the worker reads."""

    def __init__(self, place: _Place, site: str, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self._place, self._site = place, site

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        values: np.ndarray[Any, Any] = _opened(self._place).tensor(self._site)[index].to_numpy()
        return values


def _applied(steps: list[int], place: _Place, fn: Callable[[Run, int], T]) -> list[tuple[int, T]]:
    run = _opened(place)
    return [(step, fn(run, step)) for step in steps]


def _part(key: str, place: _Place) -> pd.DataFrame:
    table = _stats(_opened(place))
    part = next((part for part in table.parts if part.key == key), None)
    rows = table.take(part, table.form.names) if part is not None else None
    if rows is None:
        raise RunError(
            f"the part {key} of {place.objects.describe()!r}",
            "a file that cannot be read",
            "run.damaged gives the reason",
        )
    return frame_of(rows)


def _stats(run: Run) -> Table:
    run._state.look()
    return run._state.stats


def _opened(place: _Place) -> Run:
    """The run at a place, opened once in each worker."""
    from fitscope.read.find import open as open_run

    name = (place.objects.describe(), place.rank)
    if name not in _kept_open:
        if len(_kept_open) >= MOST_OPEN:
            _kept_open.clear()
        run = open_run(place.objects)
        _kept_open[name] = run if place.rank is None else run.rank(place.rank)
    return _kept_open[name]


def _dask(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise RunError(
            "Dask to be installed", f"no {module}", "Install it: pip install 'fitscope[dask]'"
        ) from problem
