"""The settings of a scope, checked and frozen when the scope is created.

A wrong setting raises an error where the scope is created, not in the first step of a training. All later code only reads them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal

from fitscope import sizes
from fitscope.capture.identity import CHOICES
from fitscope.diagnose.thresholds import Given
from fitscope.diagnose.thresholds import thresholds as all_thresholds
from fitscope.errors import WatchError, one_of
from fitscope.pipeline import notebook
from fitscope.pipeline.diagnosis import OnFinding
from fitscope.pipeline.sinks import Make
from fitscope.plan.allowance import seconds
from fitscope.plan.black_box import BlackBox
from fitscope.plan.black_box import black_box as checked_box
from fitscope.plan.budget import Budget
from fitscope.schedule import Every, Schedule, schedule
from fitscope.store import Objects, existing, place
from fitscope.store.begin import folder
from fitscope.watch import On, Watch, passes, several

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a scope."""

    to: str | PathLike[str] | Objects
    watches: tuple[Watch, ...]
    every: Schedule | None  #: None: the budget decides
    budget: float | None
    allowance: float  #: seconds that a training may spend before the budget counts
    identity: str
    on: tuple[str, ...]
    limit: int | None  #: the most bytes on disk
    memory: int  #: the most bytes in the queue
    when_full: str
    reduce: str
    notes: Json
    sinks: Mapping[str, Make]  #: further destinations of the records
    on_finding: OnFinding | None = None  #: the reaction to a finding
    black_box: BlackBox | None = None  #: keeps the last steps
    thresholds: Given = None  #: changed thresholds of the rules
    live: bool | None = None  #: draw in the notebook; None: if there is one
    name: str | None = None  #: the name of the run
    ranks: int | None = None  #: how many processes record everything; None: all

    @classmethod
    def checked(
        cls,
        *,
        to: str | PathLike[str] | Objects,
        watch: Iterable[Watch] | Watch | None,
        every: Every | None,
        budget: float | None,
        allowance: float | str,
        exact: bool,
        identity: str,
        on: On,
        limit: int | str | None,
        memory: int | str,
        when_full: str,
        reduce: str,
        notes: Json,
        on_finding: OnFinding | None,
        thresholds: Given,
        live: bool | None,
        name: str | None,
        black_box: BlackBox | int | None,
        ranks: int | Literal["all"],
        **sinks: Any,
    ) -> Settings:
        """Checks the arguments of `Scope`; raises an error that names the wrong one."""
        place(to)
        watches = tuple(replace(each, exact=True) if exact else each for each in several(watch))
        _has_pace(every, budget)
        return cls(
            to=to,
            watches=watches,
            every=None if every is None else schedule(every),
            budget=budget,
            allowance=seconds(allowance, "allowance"),
            identity=_choice("identity", identity, CHOICES),
            on=passes(on),
            limit=sizes.parse(limit, "limit"),
            memory=sizes.parse(memory, "memory") or sys.maxsize,
            when_full=_choice("when_full", when_full, ("block", "drop")),
            reduce=_choice("reduce", reduce, ("auto", "host", "step")),
            notes=notes,
            sinks=_sinks(to, **sinks),
            on_finding=_action(on_finding),
            thresholds=_limits(thresholds),
            live=notebook.checked(live),
            name=_name(to, name),
            black_box=checked_box(black_box),
            ranks=_ranks(ranks),
        )

    def __deepcopy__(self, memo: Any) -> Settings:
        """Returns the same object: settings never change, and a layer that a watch names must stay that layer."""
        return self

    def words(self) -> dict[str, str]:
        """The settings that people ask about, by name."""
        more = f" and {self.allowance:g} s more allow" if self.allowance else " allows"
        budget = f"as often as {100 * (self.budget or 0):.3g} % of the time{more}"
        return {
            "runs in": place(self.to).describe(),
            "watches": ", ".join(map(str, self.watches)),
            "captures": budget if self.every is None else str(self.every),
            "on": ", ".join(self.on),
            "identity": self.identity,
        }


def _has_pace(every: Every | None, budget: float | None) -> None:
    """Refuses settings that leave open when to capture."""
    if isinstance(every, Watch):  # Scope("runs", fs.activations(), fs.loss())
        raise WatchError(
            "several watches in a list",
            f"a second watch, {every}, as `every`",
            "Write watch=[fs.activations(), fs.loss()]",
        )
    if every is None:
        if budget is None:
            raise WatchError(
                "`every` or `budget`", "neither", "Write every=10, or budget=0.02 for two percent"
            )
        Budget(budget)  # raises unless it is a share


def _action(given: Any) -> OnFinding | None:
    address = isinstance(given, str) and given.startswith(("http://", "https://"))
    if given is None or given == "stop" or address or callable(given):
        return given  # type: ignore[no-any-return]
    raise WatchError(
        '`on_finding` to be "stop", a function or an address',
        repr(given),
        'Write on_finding="stop", print or "https://…"',
    )


def _limits(given: Given) -> Given:
    """The thresholds, read now, because the file may change or disappear until they are needed."""
    return None if given is None else all_thresholds(given)


def _name(to: Any, name: str | None) -> str | None:
    if name is not None:
        folder(to, name)  # raises for an invalid name
        if existing(to):
            raise WatchError(
                "`name` with a directory of runs",
                f"name={name!r} and {to!r}, which is a run",
                "Pass only one of them",
            )
    return name


def _ranks(given: Any) -> int | None:
    if given == "all":
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise WatchError('`ranks` to be a number from 1 on, or "all"', repr(given), "Write ranks=8")
    return given


def _choice(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise WatchError(f"one of the choices for `{name}`", repr(value), one_of(known, str(value)))
    return value


def _sinks(to: Any, **wanted: Any) -> Mapping[str, Make]:
    if all(value is None for value in wanted.values()):
        return {}
    from fitscope.export import live

    return live.sinks(to, **wanted)
