"""What the watches mean for one model, decided before the first step and frozen.

`resolve` reads watches against a model's anatomy and refuses what does not fit. The plan then answers the only two
questions the hot path asks: which watches are due at this turn, and what is wanted at a place in the step.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fitscope.anatomy import Anatomy, LayerPart, WeightPart
from fitscope.errors import WatchError, one_of
from fitscope.watch import LAYER_KINDS, Schedule, Turn, Watch

Place = tuple[str, str]  #: a kind of site, and the path of a layer or weight ("" where there is only one)
Due = frozenset[int]  #: indices of the watches that are due


@dataclass(frozen=True, slots=True)
class Want:
    """What is wanted at one place, all watches taken together."""

    stats: bool
    tensor: bool
    samples: int | None

    def __or__(self, other: Want) -> Want:
        both = [want.samples for want in (self, other) if want.tensor]
        return Want(
            self.stats or other.stats,
            self.tensor or other.tensor,
            None if None in both or not both else max(n for n in both if n is not None),
        )


_ITS_VALUE = Want(stats=True, tensor=False, samples=None)

#: Under loss scaling gradients are multiples of what they mean; the factor is recorded with them.
LOSS_SCALE: Place = ("loss_scale", "")


@dataclass(frozen=True, eq=False)
class Plan:
    """Watches resolved against a model."""

    anatomy: Anatomy
    watches: tuple[Watch, ...]
    schedules: tuple[Schedule, ...]  #: one per watch
    places: tuple[frozenset[Place], ...]  #: one set per watch
    _wants: dict[Due, dict[Place, Want]] = field(default_factory=dict, repr=False)

    def same(self, other: Plan) -> bool:
        """Whether both want the same of one model. When they want it does not matter."""
        return (
            self.anatomy.same(other.anatomy)
            and self.places == other.places
            and [(w.stats, w.tensor, w.samples) for w in self.watches]
            == [(w.stats, w.tensor, w.samples) for w in other.watches]
        )

    def due(self, turn: Turn) -> tuple[Due, Due]:
        """The watches due at this turn, and those due only if it turns out to be the last of its epoch."""
        answers = [schedule.due(turn) for schedule in self.schedules]
        return (
            frozenset(i for i, answer in enumerate(answers) if answer is True),
            frozenset(i for i, answer in enumerate(answers) if answer == "last"),
        )

    def wants(self, due: Due) -> Mapping[Place, Want]:
        """What is wanted where, when these watches are due. The same few sets come again at every step."""
        if due in self._wants:
            return self._wants[due]
        found = self._wants[due] = {}
        for i in sorted(due):
            watch = self.watches[i]
            want = Want(watch.stats, watch.tensor, watch.samples)
            for place in self.places[i]:
                here = _ITS_VALUE if place == LOSS_SCALE else want
                found[place] = found[place] | here if place in found else here
        return found

    def describe(self) -> list[dict[str, Any]]:
        """The plan as the run keeps it."""
        return [
            {
                "kind": watch.kind,
                "layers": [_shown(selector) for selector in watch.layers],
                "keep": [name for name in ("stats", "tensor") if getattr(watch, name)],
                "samples": watch.samples,
                "every": schedule.text,
                "places": sorted(path for _, path in places if path),
            }
            for watch, schedule, places in zip(self.watches, self.schedules, self.places, strict=True)
        ]


def resolve(watches: Iterable[Watch], anatomy: Anatomy, every: Schedule) -> Plan:
    """Reads the watches against a model. A selector that matches nothing is an error that names what there is."""
    watches = tuple(watches)
    for watch in watches:
        if not isinstance(watch, Watch):
            raise WatchError(
                "`watch` to hold watches",
                repr(watch),
                "Make them with fs.activations(...), fs.gradients(...), fs.loss() and so on",
            )
    return Plan(
        anatomy,
        watches,
        tuple(watch.every or every for watch in watches),
        tuple(frozenset(_places(watch, anatomy)) for watch in watches),
    )


def _places(watch: Watch, anatomy: Anatomy) -> list[Place]:
    places = [(watch.kind, path) for path in _paths(watch, anatomy)]
    if places and watch.kind in ("gradients", "weight_gradients") and scaled_dynamically(anatomy.model):
        places.append(LOSS_SCALE)
    return places


def scaled_dynamically(model: Any) -> bool:
    """Whether the model's optimizer chooses a loss scale as it goes (`mixed_float16`)."""
    return hasattr(getattr(model, "optimizer", None), "initial_scale")


def _paths(watch: Watch, anatomy: Anatomy) -> list[str]:
    if watch.kind not in LAYER_KINDS:
        return [""]
    if watch.kind in ("activations", "gradients"):
        layers = [part for part in anatomy.layers if not _is_input(part)]
        return _select(
            watch, layers, by_default=[part for part in layers if not part.container and not part.looped]
        )
    weights = [w for w in anatomy.weights if watch.kind != "weight_gradients" or w.variable.trainable]
    return _select(watch, weights, by_default=weights)


def _select(
    watch: Watch, parts: list[LayerPart] | list[WeightPart], by_default: list[LayerPart] | list[WeightPart]
) -> list[str]:
    if not watch.layers:
        return [part.path for part in by_default]
    found: list[str] = []
    for selector in watch.layers:
        matching = [part.path for part in parts if _matches(selector, part) and not _looped(part)]
        if not matching:
            names = [part.path for part in parts if not _looped(part)]
            inside = next((part for part in parts if _matches(selector, part)), None)
            if inside is not None:
                raise WatchError(
                    f"fs.{watch.kind}(...) to name a layer that runs once in a step",
                    f"{_shown(selector)}, which {_looped(inside)!r} runs once per time step",
                    f"Watch {_looped(inside)!r}: with return_sequences=True its output holds all time steps",
                )
            raise WatchError(
                f"fs.{watch.kind}(...) to name a layer of the model",
                _shown(selector),
                one_of(names, selector if isinstance(selector, str) else "", limit=40),
            )
        found.extend(matching)
    return found


def _matches(selector: Any, part: LayerPart | WeightPart) -> bool:
    owner = part if isinstance(part, LayerPart) else part.owner
    if isinstance(selector, str):
        names = {part.path, owner.path, getattr(owner.layer, "name", owner.path)}
        return any(fnmatch.fnmatchcase(name, selector) for name in names)
    if isinstance(selector, type):
        return isinstance(owner.layer, selector)
    return owner.layer is selector


def _looped(part: LayerPart | WeightPart) -> str:
    return part.looped if isinstance(part, LayerPart) else ""  # a weight is one, however often it is used


def _is_input(part: LayerPart) -> bool:
    """Input layers compute nothing: what goes in is the site `inputs`."""
    return type(part.layer).__name__ == "InputLayer"


def _shown(selector: Any) -> str:
    if isinstance(selector, str):
        return repr(selector)
    return selector.__name__ if isinstance(selector, type) else getattr(selector, "name", repr(selector))
