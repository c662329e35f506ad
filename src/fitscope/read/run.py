"""Run: everything that fitscope recorded in one training, during the training or years later.

Reading needs no framework and no capturing code. Every access sees all data flushed so far and reads only the
new part. A damaged part or array is skipped, listed in `damaged` and warned about once. A run is not
thread-safe: open it once per thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from fitscope.errors import FitscopeWarning, RunError, one_of
from fitscope.read.black_box import Box, ranges
from fitscope.read.merge import arrays_of, average_of, listed
from fitscope.read.run_facts import RunFacts
from fitscope.reduce.average import Average
from fitscope.reduce.stats import NAMES
from fitscope.sites import Site, abbreviates, pass_of
from fitscope.store import schema
from fitscope.store._base import Objects

if TYPE_CHECKING:  # imported by the methods that need them
    import dask.array as da
    import dask.dataframe as dd
    import keras
    import pandas as pd
    import pyarrow as pa
    import xarray as xr

    from fitscope.capture.replay import Replay
    from fitscope.diagnose import Findings, Rule
    from fitscope.diagnose.expect import Expectation
    from fitscope.diagnose.thresholds import Given
    from fitscope.read.ranks import Rank
    from fitscope.read.stored import Array
    from fitscope.read.tensors import Captures
    from fitscope.show.plot import Plot

#: The stats of `series`; `value` exists for scalars only, `cosine` for changes only.
STATS = ("value", *NAMES, "cosine")


class Run(RunFacts):
    """A recorded training. `fs.open` returns one."""

    def __init__(self, objects: Objects, document: dict[str, Any], only: int | None = None) -> None:
        super().__init__(objects, document, only)
        # Captures by site, with the arrays that they were made from.
        self._captured: dict[str, tuple[Any, Captures]] = {}

    def __repr__(self) -> str:
        last = self.last_step
        steps = "no steps yet" if last is None else f"up to step {last:,}"
        return f"<Run {self.id!r}: {self.status}, {steps}, {len(self.sites)} sites, at {self.path}>"

    def _repr_html_(self) -> str:
        from fitscope.show.cards import run_html

        return run_html(self)

    def rank(self, number: int) -> Run:
        """The same run, but only what one process of the training recorded."""
        self._state.look()
        numbers = sorted({rank.number for rank in self._state.ranks})
        if number not in numbers and all(number != rank.number for _, rank in self._state.newest_ranks()):
            there = one_of([str(one) for one in numbers], str(number))
            raise RunError(f"a rank of run {self.id!r}", f"{number!r}", there)
        return Run(self._state.objects, self.info, number)

    def findings(
        self,
        *,
        rules: Iterable[Rule | str] | None = None,
        ignore: Iterable[str] = (),
        thresholds: Given = None,
        expect: Expectation | Iterable[Expectation] | None = None,
    ) -> Findings:
        """Diagnoses the run: what is wrong, in which layer, since which step, and the cure. The worst finding comes first.

        Args:
            rules: The rules to apply, by name, or your own. By default `fs.RULES`.
            ignore: Names of rules to skip.
            thresholds: Changes to `fitscope.diagnose.THRESHOLDS`, as a dict or the path of a TOML file.
            expect: Findings that you expect: `fs.expect("frozen base", layers="base*")`, or several in a list.
        """
        from fitscope.diagnose import diagnose
        from fitscope.read.evidence import StoredEvidence, noted

        self._state.look()
        if rules is None and not ignore and thresholds is None and expect is None:
            found = noted(self)
            if found is not None:
                return found
        stored = StoredEvidence(self, self._state.stats)
        stored.update()
        self._state.damaged.warn()
        return diagnose(stored.evidence, rules=rules, ignore=ignore, thresholds=thresholds, expect=expect)

    def refresh(self) -> Run:
        """Reads everything again, including damaged files. A live run updates without it."""
        self._state = self._follow(self._state.objects)
        self._captured = {}
        self._state.look()
        return self

    # ---- what was recorded --------------------------------------------------------------------------

    @property
    def sites(self) -> list[str]:
        """The names of all sites."""
        self._state.look()
        sites = self._state.stats.sites()
        for rank in self._state.ranks:
            sites.update(rank.arrays())
            sites.update(rank.averages())
        self._state.damaged.warn()
        return sorted(sites)

    @property
    def unseen(self) -> dict[str, str]:
        """The watched sites without a value, each with the reason."""
        statuses, found = self._statuses(), dict[str, str]()
        for status in statuses:
            found.update(status.get("unseen") or {})
        if found and len(statuses) > 1:  # another attempt may have recorded it
            found = {site: found[site] for site in found.keys() - set(self.sites)}
        return found

    @property
    def stats(self) -> pd.DataFrame:
        """The whole statistics table: one row for each site and step."""
        from fitscope.read.frames import frame_of, plain

        self._state.look()
        table = self._state.stats.read(schema.STATS_SCHEMA.names)
        self._state.damaged.warn()
        if table is None:
            return frame_of(schema.STATS_SCHEMA.empty_table())
        return frame_of(plain(table).sort_by([("step", "ascending"), ("site", "ascending")]))

    @property
    def samples(self) -> pd.DataFrame:
        """One row for each recorded sample, ordered by step, batch and sample.

        A target or prediction is a number, or an array if it has several values. It is NaN if it has more than 64
        values or was not recorded.
        """
        from fitscope.read.frames import samples

        self._state.look()
        table = self._state.samples.read(schema.SAMPLES_SCHEMA.names)
        self._state.damaged.warn()
        return samples(schema.SAMPLES_SCHEMA.empty_table() if table is None else table)

    def frame(self, site: str, by: str = "step") -> pd.DataFrame:
        """All stats of one site, indexed by step, with epoch, batch and time.

        A site of a pass (`validation/…`) is indexed by step and batch. `by="epoch"` merges the stats of all captured
        batches of an epoch, indexed by epoch.
        """
        from fitscope.read.frames import by_epoch, by_step, without_empty

        if by not in ("step", "epoch"):
            raise RunError("'step' or 'epoch'", f"by={by!r}", one_of(("step", "epoch"), by))
        name = self.resolve(site)
        of_pass = pass_of(name) is not None
        if by == "epoch":
            needed = ("step", "epoch", "batch", "time", "rank", "batched", *NAMES, "cosine")
            return by_epoch(self._rows(name, needed), of_pass=of_pass, shards=self._state.shards)
        about = ("step", "epoch", "batch", "time", "attempt", "rank", "dtype", "shape", "batched")
        rows = self._rows(name, (*about, *STATS, "error", "over"))
        return without_empty(by_step(rows, of_pass=of_pass, shards=self._state.shards))

    @overload
    def series(self, site: str, stat: str | None = None, by: Literal["step"] = "step") -> pd.Series[Any]: ...
    @overload
    def series(self, site: str, stat: str | None = None, *, by: Literal["rank"]) -> pd.DataFrame: ...
    def series(
        self, site: str, stat: str | None = None, by: Literal["step", "rank"] = "step"
    ) -> pd.Series[Any] | pd.DataFrame:
        """One stat of one site, indexed by step. A scalar site such as `loss` needs no stat.

        Several processes of a training are merged. `by="rank"` returns a data frame with a column for each of them.

        A site of a pass (`validation/…`) is indexed by step and batch. `run.frame(site)` has the same index, with the
        epoch and batch of each step.
        """
        from fitscope.read.frames import by_step, columns_for
        from fitscope.read.rank_frames import by_rank

        if by not in ("step", "rank"):
            raise RunError("'step' or 'rank'", f"by={by!r}", one_of(("step", "rank"), str(by)))
        if stat is not None and stat not in STATS:
            raise RunError("a stat", f"{stat!r}", one_of(STATS, stat))
        name = self.resolve(site)
        of_pass = pass_of(name) is not None
        ranks = by == "rank" or self._state.several_ranks
        columns = columns_for(stat or "value", ranks=ranks, of_pass=of_pass)
        rows = self._rows(name, columns)
        if stat is None and rows["value"].null_count == rows.num_rows:
            raise RunError(
                f"a stat for {name!r}, which is not a scalar",
                "none",
                f"Name one: run.series({name!r}, 'mean'). {one_of(NAMES, '')}",
            )
        if stat == "cosine" and rows["cosine"].null_count == rows.num_rows:
            raise _without_cosine(name)
        if by == "rank":
            return by_rank(rows, stat or "value", of_pass=of_pass, shards=self._state.shards)
        found = by_step(rows, of_pass=of_pass, shards=self._state.shards)[stat or "value"]
        return found.rename(name if stat is None else f"{name}.{stat}")

    def histogram(self, site: str) -> xr.DataArray:
        """The histograms of one site: the number of elements in each power-of-two bucket, as (step, bucket).

        The coordinate `edge` is the bound of a bucket nearer to zero. Empty buckets at both ends are left out. A pass
        is one entry.
        """
        from fitscope.read.frames import histogram

        name = self.resolve(site)
        rows = self._rows(name, ("step", "epoch", "batch", "rank", "buckets", "counts"))
        return histogram(rows, f"{name} histogram", of_pass=pass_of(name) is not None)

    def tensor(self, site: str) -> xr.DataArray:
        """The kept tensors of one site: a lazy DataArray (step, sample, dim_1, …).

        The coordinate `size` is the number of real rows at each step; further rows are padding (NaN, or 0 for
        integers). `batch_size` is the number of rows in the batch. Slicing reads only the chunks it needs; `.chunk()`
        returns a dask array. A pass (`validation/…`) is one entry, with its batches concatenated along `sample`.
        """
        from fitscope.read.lazy import lazy

        return lazy(self._captures(site))

    def array(self, site: str, step: int) -> Array:
        """The kept tensor of one site and step, without padding. For a pass: all its batches."""
        return self._captures(site).at(step)

    @property
    def averages(self) -> list[str]:
        """The sites with a running average."""
        self._state.look()
        return sorted({site for rank in self._state.ranks for site in rank.averages()})

    def average(self, site: str) -> Average:
        """The running average of one site over all ranks and attempts: `.mean`, `.std`, `.count`, `.captures`."""
        return self._average(self._resolve(site, self.averages, "a site with an average"))

    @property
    def black_box(self) -> list[Box]:
        """The steps that the black box wrote, one entry per write with `.steps` and `.why`. Empty if it never wrote."""
        self._state.look()
        found = [box for rank in self._state.ranks if rank.number == 0 for box in rank.boxes()]
        self._state.damaged.warn()
        return found

    def replay(self, step: int, *, model: keras.Model | None = None) -> Replay:
        """Runs a step that the black box kept again: from its state, on its batch, with its random numbers.

        On the same backend and versions the result is that of the training, bit for bit; `.agrees` says whether it is.

        Args:
            step: The step: one of `run.black_box`.
            model: The compiled model, if it has custom classes. fitscope sets its weights to those before the step. By default
                fitscope builds the model from its configuration in the run, with Keras's safe mode.
        """
        from fitscope.capture.replay import replay

        boxes = self.black_box
        for box in reversed(boxes):
            if step in box.steps:
                return replay(box.step(step), model)
        there = ranges([step for box in boxes for step in box.steps])
        raise RunError(
            f"a step that the black box of run {self.id!r} wrote",
            f"step {step}",
            f"There are: {there}. Record with fs.Scope(black_box=20); it writes at an error and when the training dies",
        )

    def sql(self, query: str) -> pd.DataFrame:
        """Runs a DuckDB query over the tables of the run: `stats`, and `samples` if samples were recorded."""
        from fitscope.read.sql import ask

        self._state.look()
        frame = ask(query, list(self._state.tables.values()), self._state.ends)
        self._state.damaged.warn()
        return frame

    @overload
    def to_dask(self) -> dd.DataFrame: ...
    @overload
    def to_dask(self, site: str) -> da.Array: ...
    def to_dask(self, site: str | None = None) -> dd.DataFrame | da.Array:
        """The run for Dask: all statistics as a Dask DataFrame, or the kept tensors of a site as a Dask array.

        Args:
            site: A site with kept tensors. The array has the axes of `run.tensor(site)`, in chunks of some steps.
        """
        from fitscope.read import cluster

        return cluster.frame(self) if site is None else cluster.array(self, site)

    @property
    def plot(self) -> Plot:
        """The views of this run: `run.plot.spectrogram("gradients")`, `run.plot.loss()` and so on."""
        from fitscope.show.plot import Plot

        return Plot(self)

    def resolve(self, site: str) -> str:
        """The full name of a site: `weights/kernel` finds `weights/dense/kernel` if no other site matches."""
        return self._resolve(site, self.sites, "a site")

    # ---- from the parts to the whole ----------------------------------------------------------------

    def _resolve(self, site: str, sites: list[str], what: str) -> str:
        if site in sites:
            return site
        found = [name for name in sites if abbreviates(site, name)]
        if len(found) == 1:
            return found[0]
        found = found or [name for name in sites if name.startswith(f"{site}/")]  # a kind or a layer matches
        if found:
            raise RunError("the name of one site", f"{site!r}, which matches {len(found)}", one_of(found, ""))
        name, _, stat = site.rpartition(".")
        fix = f"Write {name!r}, {stat!r}" if stat in STATS and name in sites else one_of(sites, site)
        raise RunError(f"{what} of run {self.id!r}", f"{site!r}", fix)

    def _rows(self, name: str, columns: tuple[str, ...]) -> pa.Table:
        """The rows of one site, given its full name."""
        table = self._state.stats.read(columns, name)
        self._state.damaged.warn()
        if table is None or not table.num_rows:
            kept, use = ("averages", "average") if name in self.averages else ("tensors", "tensor")
            raise RunError(
                f"statistics of {name!r}",
                f"a site with only {kept} so far",
                f"Use run.{use}({name!r})",
            )
        return table

    def _average(self, name: str) -> Average:
        """The average of a site, given its full name."""
        found, twice = average_of(self._state.ranks, name)
        self._state.damaged.warn()
        if found.shape is None:
            raise RunError(f"the average of {name!r}", "a damaged file", "run.damaged lists it")
        if twice:
            warnings.warn(
                f"The average of {name!r} in run {self.id!r} includes steps that a later attempt repeated: they "
                "count twice.",
                FitscopeWarning,
                stacklevel=3,
            )
        return found

    def _captures(self, site: str) -> Captures:
        """The captures of one site, or of the only one that it abbreviates."""
        return next(self._captures_of([self.resolve(site)]))

    def _captures_of(self, names: Iterable[str]) -> Iterator[Captures]:
        """The captures of sites, given their full names."""
        ranks = listed(self._state.ranks)
        return (self._captures_in(ranks, name) for name in names)

    def _captures_in(self, ranks: Sequence[tuple[Rank, dict[str, list[str]]]], name: str) -> Captures:
        from fitscope.read.tensors import Captures

        made_of, broken = arrays_of(ranks, name)
        self._state.damaged.warn()
        if broken and not made_of:
            raise RunError(
                f"tensors of {name!r}", "damaged files", "run.damaged lists them; other sites can be read"
            )
        if not made_of:
            raise RunError(
                f"tensors of {name!r}",
                "only statistics were recorded for this site",
                f"Watch it with keep='tensor', or use run.series({name!r}, …)",
            )
        known = self._captured.get(name)
        if known is None or known[0] != made_of:  # an array that has not grown is the same object
            known = self._captured[name] = (made_of, Captures(name, made_of))
        return known[1]


def _without_cosine(name: str) -> RunError:
    if not Site.parse(name).moved:
        return RunError(
            "a site under changes/", f"{name!r}, which has no cosine", "Watch the layer with fs.changes(…)"
        )
    return RunError(
        "a site with a recorded cosine",
        f"{name!r}, where no captured step has a cosine",
        "Read another stat. A cosine needs two batches that are not all zero, whole in one process",
    )
