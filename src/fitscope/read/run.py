"""Run: everything that was recorded in one training, while it goes on or years later.

Reading needs no framework and nothing of the capturing side. Every access sees what has been flushed by
then and reads only what is new; a part or array that is damaged is left out, reported in `damaged` and
warned about once. Not thread-safe: open the run once per thread.
"""

from __future__ import annotations

import warnings
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fitscope.errors import FitscopeWarning, RunError, one_of
from fitscope.read.damage import Damage
from fitscope.read.following import Following
from fitscope.read.identity import Identity, identity_of
from fitscope.reduce.average import Average
from fitscope.reduce.stats import NAMES
from fitscope.sites import abbreviates, pass_of
from fitscope.store import schema
from fitscope.store._base import Objects

if TYPE_CHECKING:  # what only some calls need is imported by those
    import pandas as pd
    import pyarrow as pa
    import xarray as xr

    from fitscope.read.stored import Array
    from fitscope.read.tensors import Captures
    from fitscope.show.plot import Plot

#: What `series` can give; `value` for scalars only, `cosine` for changes.
STATS = ("value", *NAMES, "cosine")
LATEST = 253_402_300_799.0  #: the end of year 9999, in seconds since 1970: the last that a datetime knows
SEVERITY = ("failed", "interrupted", "running", "complete")  #: the worst of several ranks speaks for the run


class Run:
    """A run that was opened with `fitscope.open`."""

    def __init__(self, objects: Objects, document: dict[str, Any]) -> None:
        self.id = str(document.get("id", ""))
        self.path = objects.describe()
        self.info = document  #: run.json: software, model, plan and notes as of the start
        self.created = datetime.fromtimestamp(min((document.get("created_ns") or 0) / 1e9, LATEST), UTC)
        self._now = self._follow(objects)
        self._captured: dict[str, tuple[Any, Captures]] = {}  # by site, with what it was made of

    def __repr__(self) -> str:
        last = self.last_step
        steps = "no steps yet" if last is None else f"up to step {last:,}"
        return f"<Run {self.id!r}: {self.status}, {steps}, {len(self.sites)} sites, at {self.path}>"

    # ---- how it went --------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """running, complete, interrupted or failed; "running" only while a process that writes it lives."""
        said = {status.get("status") for status in self._statuses(newest=True)}
        return next((word for word in SEVERITY if word in said), "interrupted")

    @property
    def last_step(self) -> int | None:
        """The last step recorded, None before the first."""
        self._now.look()
        return self._now.last_step()

    @property
    def bytes(self) -> int:
        """What the run takes up."""
        return sum(int(status.get("bytes") or 0) for status in self._statuses())

    @property
    def errors(self) -> list[str]:
        """What went wrong while recording, in words: the first ones of each rank, of `errors_total`."""
        return [str(error) for status in self._statuses() for error in status.get("errors", ())]

    @property
    def errors_total(self) -> int:
        """How many errors there were."""
        return sum(int(status.get("errors_total") or 0) for status in self._statuses())

    @property
    def ended_by(self) -> str | None:
        """The exception that ended the training, where it is known."""
        return next((str(s["ended_by"]) for s in self._statuses(newest=True) if s.get("ended_by")), None)

    @property
    def unseen(self) -> dict[str, str]:
        """By site: why something that was asked for could not be seen in the step."""
        found: dict[str, str] = {}
        for status in self._statuses():
            found.update(status.get("unseen") or {})
        return found

    @property
    def dropped(self) -> dict[str, int]:
        """By site: the records that were dropped because the queue was full."""
        return self._counted("dropped")

    @property
    def lost(self) -> dict[str, int]:
        """By site: the records that could not be stored, because of an error or the limit."""
        return self._counted("lost")

    @property
    def limit_reached_at(self) -> int | None:
        """The step at which the limit on disk space stopped the recording, None if it did not."""
        return min((s["full_at"] for s in self._statuses() if s.get("full_at") is not None), default=None)

    @property
    def overhead(self) -> dict[str, Any]:
        """What watching cost, as the newest attempt measured it."""
        said = (status.get("overhead") for status in self._statuses(newest=True))
        return next((dict(one) for one in said if one and isinstance(one, dict)), {})

    @property
    def identity(self) -> Identity:
        """Whether recording changed the training: "proven", "twin" or "not provable", with `.steps` and `.why`."""
        return identity_of(self._statuses())

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The starts of this training, each as it was written down when it began."""
        self._now.look()
        return self._now.attempts

    @property
    def model(self) -> Any:
        """The model as the newest attempt described it."""
        return self._newest("model")

    @property
    def plan(self) -> Any:
        """What was watched, in the newest attempt."""
        return self._newest("plan")

    @property
    def damaged(self) -> list[Damage]:
        """What could not be read so far, with reasons."""
        return list(self._now.damaged)

    def refresh(self) -> Run:
        """Starts afresh, also with what was damaged. Following a live run does not need it."""
        self._now = self._follow(self._now.objects)
        self._captured = {}
        self._now.look()
        return self

    # ---- what was recorded --------------------------------------------------------------------------

    @property
    def sites(self) -> list[str]:
        """The names of all sites."""
        self._now.look()
        sites = self._now.stats.sites()
        for rank in self._now.ranks:
            sites.update(site for site, _ in rank.arrays())
            sites.update(rank.averages())
        self._now.damaged.warn()
        return sorted(sites)

    @property
    def stats(self) -> pd.DataFrame:
        """The whole table: a row for each site and step, columns as in `store/schema.py`."""
        from fitscope.read.frames import frame_of, plain

        self._now.look()
        table = self._now.stats.read(schema.STATS_SCHEMA.names)
        self._now.damaged.warn()
        if table is None:
            return frame_of(schema.STATS_SCHEMA.empty_table())
        return frame_of(plain(table).sort_by([("step", "ascending"), ("site", "ascending")]))

    @property
    def samples(self) -> pd.DataFrame:
        """What was seen of each sample: a row for each, by step, batch and sample.

        A target or prediction of one number is that number, of several an array; NaN where it has more than 64,
        or was not asked for.
        """
        from fitscope.read.frames import samples

        self._now.look()
        table = self._now.samples.read(schema.SAMPLES_SCHEMA.names)
        self._now.damaged.warn()
        return samples(schema.SAMPLES_SCHEMA.empty_table() if table is None else table)

    def frame(self, site: str, by: str = "step") -> pd.DataFrame:
        """All stats of one site, indexed by step, with epoch, batch and time beside them.

        A site of a pass (`validation/…`) is indexed by step and batch. `by="epoch"` gives the stats of all that
        was captured in an epoch together, indexed by epoch.
        """
        from fitscope.read.frames import by_epoch, by_step, without_cosine

        if by not in ("step", "epoch"):
            raise RunError("'step' or 'epoch'", f"by={by!r}", one_of(("step", "epoch"), by))
        name = self.resolve(site)
        of_pass = pass_of(name) is not None
        if by == "epoch":
            needed = ("step", "epoch", "batch", "time", "rank", "batched", *NAMES, "cosine")
            return by_epoch(self._rows(name, needed), of_pass=of_pass)
        about = ("step", "epoch", "batch", "time", "attempt", "rank", "dtype", "shape", "batched")
        return without_cosine(by_step(self._rows(name, (*about, *STATS)), of_pass=of_pass))

    def series(self, site: str, stat: str | None = None) -> pd.Series[Any]:
        """One stat of one site, indexed by step. A scalar site such as `loss` needs no stat.

        Epoch and batch of each step are in `run.frame(site)`, which has the same index. A site of a pass
        (`validation/…`) is indexed by step and batch.
        """
        from fitscope.read.frames import by_step, columns_for

        if stat is not None and stat not in STATS:
            raise RunError("a stat", f"{stat!r}", one_of(STATS, stat))
        name = self.resolve(site)
        of_pass = pass_of(name) is not None
        columns = columns_for(stat or "value", ranks=self._now.several_ranks, of_pass=of_pass)
        rows = self._rows(name, columns)
        if stat is None and rows["value"].null_count == rows.num_rows:
            raise RunError(
                f"a stat for {name!r}, which is not a scalar",
                "none",
                f"Name one: run.series({name!r}, 'mean'). {one_of(NAMES, '')}",
            )
        if stat == "cosine" and rows["cosine"].null_count == rows.num_rows:
            raise RunError(
                "a site of changes, which alone have a cosine", f"{name!r}", "Watch it with fs.changes(…)"
            )
        found = by_step(rows, of_pass=of_pass)[stat or "value"]
        return found.rename(name if stat is None else f"{name}.{stat}")

    def histogram(self, site: str) -> xr.DataArray:
        """The histograms of one site: how many elements fell into each power-of-two bucket, (step, bucket).

        Buckets below and above those ever used are left out; `edge` is the bound of a bucket nearer to zero. A
        pass is one entry.
        """
        from fitscope.read.frames import histogram

        name = self.resolve(site)
        rows = self._rows(name, ("step", "epoch", "batch", "rank", "buckets", "counts"))
        return histogram(rows, f"{name} histogram", of_pass=pass_of(name) is not None)

    def tensor(self, site: str) -> xr.DataArray:
        """The tensors captured at one site: a lazy DataArray (step, sample, dim_1, …).

        `size` along the steps says how many rows of each are real, the others are NaN (0 for integers);
        `batch_size` how many the batch had. Slicing reads only the chunks needed; `.chunk()` makes it a dask
        array. A pass (`validation/…`) is one entry: its batches follow one another along `sample`.
        """
        return self._captures(site).lazy()

    def array(self, site: str, step: int) -> Array:
        """The tensor captured at one site and step, as it was: no padding. Of a pass, all its batches."""
        return self._captures(site).at(step)

    @property
    def averages(self) -> list[str]:
        """The sites of which there is a running average."""
        self._now.look()
        return sorted({site for rank in self._now.ranks for site in rank.averages()})

    def average(self, site: str) -> Average:
        """The running average of one site, of all ranks and attempts: `.mean`, `.std`, `.count`, `.captures`."""
        names = self.averages
        name = self._resolve(site, names, "a site with an average")
        found, twice = Average.empty(), False
        for rank in self._now.ranks:
            path = rank.averages().get(name)
            average = None if path is None else rank.average(path)
            if average is None or not _counts(average.first_step, rank.end, name):
                continue  # all of it was done again
            twice = twice or not _counts(average.last_step, rank.end, name)
            found.merge(average)
        self._now.damaged.warn()
        if found.shape is None:
            raise RunError(f"the average of {name!r}", "a damaged one", "run.damaged says which")
        if twice:
            warnings.warn(
                f"The average of {name!r} in run {self.id!r} includes steps that a later attempt did again: those "
                "count twice.",
                FitscopeWarning,
                stacklevel=2,
            )
        return found

    @property
    def checkpoints(self) -> pd.DataFrame:
        """The checkpoints that were saved: step (updates done by then), epoch, path, time."""
        import pandas as pd

        self._now.look()
        found: dict[str, dict[str, Any]] = {}
        for rank in self._now.ranks:
            for one in rank.status().get("checkpoints") or ():
                if rank.end is None or one["step"] <= rank.end:
                    found[one["path"]] = one  # saved again under one name: the last is what is there
        frame = pd.DataFrame(list(found.values()), columns=["step", "epoch", "path", "time"])
        return frame.sort_values(["step", "time"], kind="stable", ignore_index=True)

    def checkpoint(self, step: int) -> str:
        """The path of the newest checkpoint at or before a step."""
        there = self.checkpoints
        before = there[there["step"] <= step]
        if before.empty:
            steps = [str(one) for one in there["step"]]
            raise RunError(
                f"a step at or after a checkpoint of run {self.id!r}", f"step {step}", one_of(steps, "")
            )
        return str(before["path"].iloc[-1])

    def sql(self, query: str) -> pd.DataFrame:
        """A DuckDB query over the tables of the run: `stats`, and `samples` where there is one."""
        from fitscope.read.sql import ask

        self._now.look()
        frame = ask(query, list(self._now.tables.values()), self._now.ends)
        self._now.damaged.warn()
        return frame

    @property
    def plot(self) -> Plot:
        """The views of this run: `run.plot.spectrogram("gradients")`, `run.plot.loss()` and so on."""
        from fitscope.show.plot import Plot

        return Plot(self)

    def resolve(self, site: str) -> str:
        """The full name of a site: `weights/kernel` finds `weights/dense/kernel` if only that fits."""
        return self._resolve(site, self.sites, "a site")

    def _follow(self, objects: Objects) -> Following:
        return Following(objects, self.id, self.info.get("format", schema.FORMAT))

    # ---- from the parts to the whole ----------------------------------------------------------------

    def _statuses(self, *, newest: bool = False) -> list[dict[str, Any]]:
        self._now.look()
        return self._now.statuses(newest=newest)

    def _resolve(self, site: str, sites: list[str], what: str) -> str:
        if site in sites:
            return site
        found = [name for name in sites if abbreviates(site, name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise RunError("the name of one site", f"{site!r}, which fits {len(found)}", one_of(found, site))
        raise RunError(f"{what} of run {self.id!r}", f"{site!r}", one_of(sites, site))

    def _newest(self, key: str) -> Any:
        return next((d[key] for d in reversed(self.attempts) if d.get(key) is not None), self.info.get(key))

    def _counted(self, key: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for status in self._statuses():
            for site, count in (status.get(key) or {}).items():
                total[site] = total.get(site, 0) + int(count)
        return total

    def _rows(self, name: str, columns: tuple[str, ...]) -> pa.Table:
        """The rows of one site, of which the full name is known."""
        table = self._now.stats.read(columns, name)
        self._now.damaged.warn()
        if table is None or not table.num_rows:
            kept, use = ("averages", "average") if name in self.averages else ("tensors", "tensor")
            raise RunError(
                f"statistics of {name!r}",
                f"a site of which there are only {kept} so far",
                f"Use run.{use}({name!r})",
            )
        return table

    def _captures(self, site: str) -> Captures:
        from fitscope.read.tensors import Captures

        name = self.resolve(site)
        ranks: dict[int, list[Any]] = {}
        broken = False
        for rank in self._now.ranks:
            for path in (path for found, path in rank.arrays() if found == name):
                array = rank.array(path)
                broken = broken or array is None
                if array is not None:
                    ranks.setdefault(rank.number, []).append((array, rank.end))
        self._now.damaged.warn()
        if broken and not ranks:
            raise RunError(
                f"tensors of {name!r}", "damaged ones", "run.damaged says which; other sites can be read"
            )
        if not ranks:
            raise RunError(
                f"tensors of {name!r}",
                "a site of which only statistics were kept",
                f"Watch it with keep='tensor', or use run.series({name!r}, …)",
            )
        made_of = [ranks[number] for number in sorted(ranks)]
        known = self._captured.get(name)
        if known is None or known[0] != made_of:  # an array that has not grown is the same object as before
            known = self._captured[name] = (made_of, Captures(name, made_of))
        return known[1]


def _counts(step: int | None, end: int | None, site: str) -> bool:
    """Whether a step of an attempt that ended at `end` belongs to it."""
    if step is None or end is None:
        return step is not None
    return step <= end if pass_of(site) else step < end
