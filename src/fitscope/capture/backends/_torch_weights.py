"""Records the weights before a torch step, and the updates that the step makes.

A step changes weights in place, so fitscope copies them before it. Copies and differences of all small weights are one vector each. The
others are taken one by one, and so is everything where small tensors do not leave the step joined.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from keras.src.backend.common.global_state import get_global_attribute

from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._torch_joined import Layout, flat, layout_of, small
from fitscope.capture.collector import guarded, kept
from fitscope.capture.shield import shield
from fitscope.pipeline.handover import Thin
from fitscope.sites import Site

if TYPE_CHECKING:
    from fitscope.capture.backends._torch_taps import Collector


class _Wanted(NamedTuple):
    """A weight whose value, update or both are recorded."""

    variable: Any
    weights: Site | None
    updates: Site | None


class _Group:
    """Small weights of one dtype, and the layouts of their values and updates."""

    def __init__(self, wanted: list[_Wanted], shapes: list[Any]) -> None:
        self.wanted = wanted
        self.shapes = shapes
        self.sizes = [shape.numel() for shape in shapes]
        self.weights = self._part([one.weights for one in wanted])
        self.updates = self._part([one.updates for one in wanted])

    def _part(self, sites: list[Site | None]) -> tuple[list[Site], list[int], Layout | None]:
        """The wanted sites, their positions if not all are wanted, and their layout."""
        here = [(k, site) for k, site in enumerate(sites) if site is not None]
        names = [site for _, site in here]
        layout = layout_of(names, [self.shapes[k] for k, _ in here]) if here else None
        return names, [] if len(here) == len(sites) else [k for k, _ in here], layout

    def show(
        self, collector: Collector, part: tuple[list[Site], list[int], Layout | None], vector: Any
    ) -> None:
        """Hands over the wanted part of a vector."""
        names, chosen, layout = part
        if layout is not None:
            split = vector.split(self.sizes) if chosen else ()
            collector.see_joined(names, (flat([split[k] for k in chosen]) if chosen else vector, layout))


class WeightTaps:
    """The taps on the weights of one request. Made once, used at each of its steps."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._wanted: list[_Wanted] = []
        for weight in ask.anatomy.weights:
            sites = [ask.wants.site((kind, weight.path)) for kind in ("weights", "updates")]
            if any(sites):
                self._wanted.append(_Wanted(weight.variable, *sites))
        self._known: list[Any] = []  # the tensors of these groups, and their shapes
        self._shapes: list[Any] = []
        self._groups: list[tuple[_Group, list[int]]] = []  # each group, with the positions of its weights
        self._rest: list[_Wanted] = self._wanted

    @contextmanager
    def on(self, collector: Collector) -> Iterator[None]:
        """Runs a step inside, and shows the weights before it and the updates that it makes."""
        copies: list[tuple[_Group, list[int], Any]] = []
        single: list[tuple[_Wanted, Any]] = []
        rest = self._wanted
        if collector.joins:
            with shield(lambda error: None):  # noqa: ARG005 - then each is taken by itself, with its own reason
                values = self._values()
                self._sort(values)
                copies = [
                    (group, chosen, flat([values[k] for k in chosen])) for group, chosen in self._groups
                ]
                rest = self._rest
        with shield(lambda error: setattr(collector.harvest, "broken", error)):
            for wanted in rest:
                with kept(collector, *_sites(wanted)):
                    single.append((wanted, self._copy(wanted)))
        yield
        for group, chosen, old in copies:
            with shield(lambda error: setattr(collector.harvest, "broken", error)):
                self._show(collector, group, chosen, old)
        for wanted, old in single:
            self._show_one(collector, wanted, old)

    # ---- before the step -------------------------------------------------------------------------------------

    def _sort(self, values: list[Any]) -> None:
        """Finds the small weights, unless they are those of the previous step."""
        shapes = [value.shape for value in values]
        if all(map(operator.is_, values, self._known)) and shapes == self._shapes:
            return
        self._known, self._shapes, self._rest = values, shapes, []
        of_dtype: dict[Any, list[int]] = {}
        for k, value in enumerate(values):
            if small(value):
                of_dtype.setdefault(value.dtype, []).append(k)
            else:
                self._rest.append(self._wanted[k])
        self._groups = [
            (_Group([self._wanted[k] for k in chosen], [shapes[k] for k in chosen]), chosen)
            for chosen in of_dtype.values()
        ]

    def _values(self) -> list[Any]:
        """The tensors of all weights. Outside of Keras's scopes that is the tensor a variable holds; asking the variable takes 4 µs."""
        if any(get_global_attribute(scope) is not None for scope in ("stateless_scope", "autocast_scope")):
            return [one.variable.value for one in self._wanted]
        held = [getattr(one.variable, "_value", None) for one in self._wanted]
        return [
            one.variable.value if value is None else value
            for one, value in zip(self._wanted, held, strict=True)
        ]

    def _copy(self, wanted: _Wanted) -> Any:
        """A copy of a weight, or of the needed part."""
        value = self._now(wanted)
        return value if isinstance(value, Thin) else value.clone()

    def _now(self, wanted: _Wanted) -> Any:
        site = next(_sites(wanted))
        return self._ask.finish.thin(site, wanted.variable.value.detach())

    # ---- after the step --------------------------------------------------------------------------------------

    def _show(self, collector: Collector, group: _Group, chosen: list[int], old: Any) -> None:
        """Shows small weights, and how they moved."""
        values = self._values()
        after = [values[k] for k in chosen]
        if [value.shape for value in after] == group.shapes:
            group.show(collector, group.weights, old)
            if group.updates[2] is not None:
                group.show(collector, group.updates, minus(flat(after), old))
        else:  # a weight was replaced: record each by itself
            each = zip(group.wanted, old.split(group.sizes), group.shapes, strict=True)
            for wanted, value, shape in each:
                self._show_one(collector, wanted, value.view(shape))

    def _show_one(self, collector: Collector, wanted: _Wanted, old: Any) -> None:
        if wanted.weights is not None:
            guarded(collector, wanted.weights, old)
        if wanted.updates is not None:
            with kept(collector, wanted.updates):
                guarded(collector, wanted.updates, minus(self._now(wanted), old))


def _sites(wanted: _Wanted) -> Iterator[Site]:
    return (site for site in wanted[1:] if site is not None)


def minus(new: Any, old: Any) -> Any:
    """The difference of two values of a weight."""
    if isinstance(new, Thin):
        return Thin(minus(new.rows, old.rows), new.shape)
    return new - old if new.dtype is not torch.bool else new ^ old
