"""Which compiled step runs next: the user's own, or one with taps.

Before a step that is to be captured, `install` puts a stand-in where Keras keeps its compiled function. Keras calls it once;
the first thing it does is put the user's function back. Steps that are not captured are therefore run by
Keras itself, through its own function, and no stand-in outlives the step it was made for, whatever is raised
and wherever. Several scopes that want the same step share one stand-in, and one tapped step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fitscope.anatomy import Anatomy
from fitscope.backends import Adapter, Ask, Harvest, TapFailed, TappedStep
from fitscope.backends._base import PHASES, Finish
from fitscope.plan import Place, Want


@dataclass(frozen=True, slots=True)
class Request:
    """One scope's wish for the next call: what it wants to see, and whom to give it to."""

    key: object  #: equal keys want the same things of the same model
    wants: Mapping[Place, Want]
    deliver: Callable[[list[Harvest]], None]
    failed: Callable[[BaseException], None]  #: the step with taps could not be built
    raised: Callable[[BaseException], None]  #: the user's own step raised


@dataclass(slots=True)
class TappedSteps:
    """The tapped steps built so far for one model, by what they show. Building one again would compile it again."""

    adapter: Adapter
    anatomy: Anatomy
    finish: Callable[[Mapping[Place, Want]], Finish]
    built: dict[object, tuple[Any, TappedStep | None]] = field(default_factory=dict)
    first_calls: list[float] = field(default_factory=list)  #: seconds; tracing and compiling happen in them

    def get(self, phase: str, plain: Any, requests: list[Request]) -> tuple[object, TappedStep | None]:
        key = (phase, tuple(request.key for request in requests))
        made_for, step = self.built.get(key, (None, None))
        if made_for is not plain:  # not built yet, or the model was compiled anew
            wants: dict[Place, Want] = {}
            for request in requests:
                for place, want in request.wants.items():
                    wants[place] = wants[place] | want if place in wants else want
            step = self.adapter.tapped(Ask(self.anatomy, wants, phase, self.finish(wants)))
            step = self._timed(step)
            self.built[key] = (plain, step)
        return key, step

    def _timed(self, step: TappedStep) -> TappedStep:
        called = False

        def timed(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
            nonlocal called
            if called:
                return step(*args, **kwargs)
            called = True
            began = time.perf_counter()
            try:
                return step(*args, **kwargs)
            finally:
                self.first_calls.append(time.perf_counter() - began)

        return timed

    def give_up(self, key: object) -> None:
        """This one cannot be built: do not try again."""
        self.built[key] = (self.built[key][0], None)


class StandIn:
    """Stands in for a model's compiled function for one call."""

    def __init__(self, steps: TappedSteps, phase: str, plain: Any) -> None:
        self.steps = steps
        self.phase = phase
        self.plain = plain
        self.requests: list[Request] = []

    def remove(self) -> None:
        own = vars(self.steps.anatomy.model)
        if own.get(PHASES[self.phase][0]) is self:
            own[PHASES[self.phase][0]] = self.plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.remove()
        key, step = self.steps.get(self.phase, self.plain, self.requests)
        if step is None:
            return self.plain(*args, **kwargs)
        try:
            result, harvests = step(*args, **kwargs)
        except TapFailed as failure:
            self.steps.give_up(key)
            for request in self.requests:
                request.failed(failure.error)
            harvests = failure.harvests
            result = self.plain(*failure.rest)
        except BaseException as error:
            for request in self.requests:
                request.raised(error)
            raise
        for request in self.requests:
            request.deliver(harvests)
        return result


def install(steps: TappedSteps, phase: str, request: Request) -> None:
    """Has the next call of the model's compiled function show what the request wants."""
    own = vars(steps.anatomy.model)
    attribute = PHASES[phase][0]
    current = own[attribute]
    if not isinstance(current, StandIn):
        current = own[attribute] = StandIn(steps, phase, current)
    # A stand-in that was never called (something raised in between) may still hold an older wish of this scope.
    current.requests[:] = [other for other in current.requests if other.key != request.key] + [request]
