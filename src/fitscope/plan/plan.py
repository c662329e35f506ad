"""The watches resolved against one model, before the first step. A plan is frozen.

`resolve` checks watches against a model's anatomy and rejects those that do not fit. The plan then answers the two questions of
the hot path: which watches are due at this turn, and what is wanted at a place in the step.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fitscope.errors import WatchError, one_of
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.nonlinearity import FAMILIES, nonlinearity
from fitscope.plan.selection import is_input, select, shown
from fitscope.plan.wants import BESIDE, LEARNING_RATE, LOSS_SCALE, SAMPLE_LOSS, Want, Wants
from fitscope.schedule import Schedule, Turn
from fitscope.sites import Place
from fitscope.watch import KINDS_IN, LAYER_KINDS, Watch, several

Watches = frozenset[int]  #: watches of a plan, by index


@dataclass(frozen=True, slots=True)
class Due:
    """The watches due at one turn."""

    now: Watches
    if_last: Watches  #: due only if this turns out to be the last turn of its epoch
    next: Watches  #: due at the next turn, which will be compared with this one

    @property
    def all(self) -> Watches:
        # This turn returns everything that the next one wants: a second program that returns less would have to be compiled.
        return self.now | self.if_last | self.next


#: No watch is due, the usual case; always this object, so callers compare with `is`.
NOTHING = Due(frozenset(), frozenset(), frozenset())

_ITS_VALUE = Want(stats=True)
_REFERENCE = Want(reference=True)


@dataclass(frozen=True, eq=False)
class Plan:
    """Watches resolved against a model."""

    anatomy: Anatomy
    watches: tuple[Watch, ...]
    schedules: tuple[Schedule, ...]  #: one per watch
    places: tuple[frozenset[Place], ...]  #: one set per watch
    on: tuple[tuple[str, ...], ...]  #: parts of fit, one per watch
    families: Mapping[str, str] = field(default_factory=dict)  #: families of nonlinearities by path
    _wants: dict[tuple[Watches, str], Wants] = field(default_factory=dict, repr=False)
    _passes: dict[str, list[tuple[Schedule, Watches]]] = field(default_factory=dict, repr=False)

    def same(self, other: Plan) -> bool:
        """Whether both plans want the same from one model. Their schedules may differ."""
        return (
            self.anatomy.same(other.anatomy)
            and self.places == other.places
            and self.families == other.families
            and [_want(w) for w in self.watches] == [_want(w) for w in other.watches]
        )

    @property
    def all(self) -> Watches:
        """Every watch."""
        return frozenset(range(len(self.watches)))

    @property
    def on_validation(self) -> bool:
        """Whether anything is wanted from a validation."""
        return bool(self.in_pass("validation"))

    def due(self, turn: Turn) -> Due:
        """The watches due at this turn; `NOTHING` itself if there are none."""
        now, if_last = self._due(turn)
        following = self._none
        if self._compares:
            after = turn.following()
            soon = self._none.union(*self._due(after)) if after is not None else self._none
            following = soon if soon & self._compares else self._none
        return Due(now, if_last, following) if now or if_last or following else NOTHING

    def rest(self, step: int) -> int:
        """The number of training steps after this one for which nothing is certainly due."""
        ahead = 1 if self._compares else 0  # the previous batch is captured too
        return min((s.rest(step) for s, _ in self.in_pass("train")), default=sys.maxsize) - ahead

    def _due(self, turn: Turn) -> tuple[Watches, Watches]:
        now = if_last = self._none
        for schedule, watches in self.in_pass(turn.in_pass):
            answer = schedule.due(turn)
            if answer is True:
                now |= watches
            elif answer == "last":
                if_last |= watches
        return now, if_last

    def in_pass(self, in_pass: str) -> list[tuple[Schedule, Watches]]:
        """When a watch is due in a pass, and which watches have data there: each schedule once."""
        if in_pass not in self._passes:
            fit = in_pass in ("train", "validation")
            found: dict[int, tuple[Schedule, Watches]] = {}
            for i, (watch, schedule, on) in enumerate(
                zip(self.watches, self.schedules, self.on, strict=True)
            ):
                if (watch.of or watch.kind) in KINDS_IN[in_pass] and (in_pass in on or not fit):
                    # A pass is recorded completely unless the watch has its own schedule: the scope's `every` counts training steps.
                    when = schedule if in_pass == "train" else watch.every or _ALWAYS
                    known = found.get(id(when), (when, self._none))
                    found[id(when)] = when, known[1] | {i}
            self._passes[in_pass] = list(found.values())
        return self._passes[in_pass]

    _none: ClassVar[Watches] = frozenset()

    def paced(self, due: Iterable[Due]) -> tuple[int, int]:
        """How many of these turns are captured by watches without their own schedule, and at how many those have data."""
        some = [each for each in due if each is not NOTHING]
        captured = sum(bool(each.now & self._paced) for each in some)
        return captured, sum(bool(each.all & self._paced) for each in some)

    @functools.cached_property
    def _paced(self) -> Watches:
        return frozenset(i for i, watch in enumerate(self.watches) if watch.every is None)

    @functools.cached_property
    def _compares(self) -> Watches:
        return frozenset(i for i, watch in enumerate(self.watches) if watch.kind == "changes")

    def wants(self, due: Watches, in_pass: str = "train") -> Wants:
        """The wants at each place when these watches are due. Cached, because the same few sets repeat."""
        if (due, in_pass) in self._wants:
            return self._wants[due, in_pass]
        found = self._wants[due, in_pass] = Wants()
        for i in sorted(due):
            for place in self.places[i]:
                if place[0] in KINDS_IN[in_pass] or place in BESIDE:
                    want = _want(self.watches[i], self.families.get(place[1], ""))
                    found.add(place, _ITS_VALUE if place in BESIDE else want)
        return found

    def items(self, due: Due, watches: Watches, in_pass: str) -> Wants:
        """The wants at each place at one turn, for some of the due watches, and the values that the next turn needs."""
        compared = due.next & self._compares
        if not compared:
            return self.wants(watches, in_pass)
        found = Wants(self.wants(watches, in_pass))
        for place in self.wants(compared, in_pass):
            if place not in BESIDE:
                found.add(place, _REFERENCE)
        return found

    def describe(self) -> list[dict[str, Any]]:
        """The plan as stored in the run."""
        return [
            {
                "kind": watch.kind,
                "layers": [shown(selector) for selector in watch.layers],
                "keep": [name for name in ("stats", "tensor", "average") if getattr(watch, name)],
                "samples": watch.samples,
                "every": schedule.text,
                "on": list(on),
                "places": sorted(path for kind, path in places if path and kind != "taps"),
                **({"of": watch.of} if watch.of else {}),
                **({"exact": True} if watch.exact else {}),
                **({"local": True} if watch.local else {}),
                **({"per_sample": True, "ids": watch.ids} if watch.per_sample else {}),
            }
            for watch, schedule, places, on in zip(
                self.watches, self.schedules, self.places, self.on, strict=True
            )
        ]


_ALWAYS = Schedule(lambda turn: True, "every batch")  # noqa: ARG005


def _want(watch: Watch, family: str = "") -> Want:
    if watch.kind == "changes":
        return Want(change=True)
    if watch.kind == "activity":
        return Want(activity=family, exact=watch.exact)
    if watch.kind == "data":
        return Want(data=True, exact=watch.exact)
    return Want(watch.stats, watch.tensor, watch.samples, watch.average, exact=watch.exact, local=watch.local)


def resolve(
    watches: Iterable[Watch], anatomy: Anatomy, every: Schedule, on: tuple[str, ...] = ("train",)
) -> Plan:
    """Resolves the watches against a model. A selector that matches nothing is an error that lists the layers."""
    watches = several(watches)
    if any(watch.kind == "activity" for watch in watches):
        found = {part.path: FAMILIES.get(nonlinearity(part.layer) or "", "") for part in anatomy.layers}
        families = {path: family for path, family in found.items() if family}
    else:
        families = {}
    return Plan(
        anatomy,
        watches,
        tuple(watch.every or every for watch in watches),
        tuple(frozenset(_places(watch, anatomy, families)) for watch in watches),
        tuple(watch.on or on for watch in watches),
        families,
    )


def _places(watch: Watch, anatomy: Anatomy, families: Mapping[str, str]) -> list[Place]:
    if watch.kind == "data":
        return [("inputs", ""), ("targets", ""), ("predictions", "")]
    if watch.kind == "activity":
        return [("activations", path) for path in _with_units(watch, anatomy, families)]
    if watch.kind == "taps":
        return [("taps", str(pattern)) for pattern in watch.layers or ("*",)]
    kind = watch.of or watch.kind
    places = [(kind, path) for path in _paths(watch, kind, anatomy)]
    if watch.per_sample:
        places.append(SAMPLE_LOSS)
    if places and kind in ("gradients", "weight_gradients") and scaled_dynamically(anatomy.model):
        places.append(LOSS_SCALE)
    # A session's graph has no optimizer object.
    if places and watch.kind == "updates" and (anatomy.optimizers or hasattr(anatomy.model, "optimizer")):
        places.append(LEARNING_RATE)
    return places


def scaled_dynamically(model: Any) -> bool:
    """Whether the model's optimizer adapts a loss scale (`mixed_float16`)."""
    return hasattr(getattr(model, "optimizer", None), "initial_scale")


def _with_units(watch: Watch, anatomy: Anatomy, families: Mapping[str, str]) -> list[str]:
    """The layers of an activity watch whose units can be stuck."""
    paths = _paths(watch, "activations", anatomy)
    found = [path for path in paths if path in families]
    if watch.layers and not found:
        raise WatchError(
            "fs.activity(...) to name a layer with a ReLU, sigmoid, tanh, softmax or similar activation",
            ", ".join(paths[:5]),
            one_of(families, paths[0]),
        )
    return found


def _paths(watch: Watch, kind: str, anatomy: Anatomy) -> list[str]:
    if kind not in LAYER_KINDS:
        return [""]
    who = f"fs.{watch.kind}(...)"
    if kind in ("activations", "gradients"):
        layers = [part for part in anatomy.layers if not is_input(part)]
        chosen = select(who, watch.layers, layers)
        # A Tap layer is recorded under `taps/`.
        twice = [
            part for part in layers if kind == "activations" and getattr(part.layer, "shows_itself", False)
        ]
        by_default = [part for part in layers if not (part.container or part.looped or part in twice)]
        return [part.path for part in (chosen if watch.layers else by_default)]
    weights = [w for w in anatomy.weights if kind != "weight_gradients" or w.variable.trainable]
    return [weight.path for weight in (select(who, watch.layers, weights) if watch.layers else weights)]
