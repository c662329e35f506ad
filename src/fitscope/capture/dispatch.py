"""Chooses the compiled step that runs next: the user's own, or one with taps.

Before a captured step, `install` replaces Keras's compiled function with a stand-in. Keras calls it once; the stand-in first
restores the user's function. So Keras runs all other steps itself, with its own function, and no stand-in outlives its step, even
if an error is raised. Several scopes that want the same step share one stand-in and one tapped step.

A model that is built by its first step (on TensorFlow) cannot be watched before it. `when_built` installs another kind of
stand-in, which builds the model just before that step.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fitscope.capture.backends import Adapter, Ask, Call, Harvest, Program, TapFailed
from fitscope.capture.backends._base import PHASES
from fitscope.capture.black_box import Keeping
from fitscope.capture.identity import STRICTEST, Checked, Ran, weakly
from fitscope.capture.own_function import WHY, is_users_own
from fitscope.capture.shield import shield
from fitscope.pipeline.handover import Finish
from fitscope.pipeline.identity import Standing
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.budget import Timing
from fitscope.plan.wants import Wants


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one scope for the next call: what to record, and where to send it."""

    who: object  #: the recording that makes the request
    key: object  #: equal keys: the same wants from the same model
    wants: Wants
    step: int  #: the number of the first step of the call
    identity: str  #: how to make sure that the call changes nothing: see `identity.py`
    #: takes the tapped tensors of the step, or the error if it could not be built with taps
    deliver: Callable[[list[Harvest], BaseException | None], None]
    stands: Callable[[Standing], None]  #: receives the knowledge about the tapped program
    failed: Callable[[BaseException], None]  #: reports an error of fitscope itself
    raised: Callable[[BaseException], None]  #: the user's own step raised
    timing: Timing | None = None  #: times the call
    keeping: Keeping | None = None  #: the black box that keeps the call


@dataclass(slots=True)
class TappedSteps:
    """The tapped steps of one model, by what they record. Building one again would compile it again."""

    adapter: Adapter
    anatomy: Anatomy
    finish: Callable[[Wants], Finish]
    built: dict[object, tuple[Callable[[], Any], Checked | None]] = field(
        default_factory=dict
    )  #: each program, with a reference to the function it was made for
    first_calls: list[float] = field(default_factory=list)  #: seconds of the calls that traced and compiled
    _traced: int = 0  # the number of traced programs so far

    def get(self, phase: str, plain: Any, requests: list[Request]) -> Checked | None:
        """The step that records the request; None if it is known that it cannot be built."""
        key = _key(phase, requests)
        made_for, step = self.built.get(key, (lambda: None, None))
        if made_for() is not plain:  # not built yet, or the model was compiled again
            wants = Wants()
            for request in requests:
                for place, want in request.wants.items():
                    wants.add(place, want)
            function = plain if phase == "step" else None
            ask = Ask(self.anatomy, wants, phase, self.finish(wants), function, self._trace)
            strictest = min((request.identity for request in requests), key=STRICTEST.index)
            if strictest == "proven" and self.adapter.lockstep():
                strictest = "lockstep"
            program = self._timed(self._program(ask, plain))
            step = Checked(program, plain, strictest, lambda: sum(self.first_calls))
            self.built[key] = (weakly(plain), step)
        return step

    def _program(self, ask: Ask, plain: Any) -> Program:
        """The step with taps. A function of the user's own is never replaced: it may do more than the step of the model."""
        if ask.phase in PHASES and is_users_own(plain):
            around = self.adapter.around(ask, plain)
            if around is None:
                raise NotImplementedError(WHY.format(*PHASES[ask.phase]))
            return around
        return self.adapter.tapped(ask)

    @property
    def proofs(self) -> list[float]:
        """The seconds of each proof so far, because a step with a proof takes longer."""
        return [
            seconds for _, step in list(self.built.values()) if step is not None for seconds in step.proofs
        ]

    def _trace(self) -> None:
        self._traced += 1

    def _timed(self, program: Program) -> Program:
        """Makes the program measure its own calls that trace and compile."""
        first = True  # the first run may do extra work: torch compiles without notice
        tracing = 0.0  # seconds of tracing a program that is not compiled yet

        def timed(run: Callable[..., Any], *given: Any, runs: bool) -> Any:
            nonlocal first, tracing
            known, began = self._traced, time.perf_counter()
            try:
                return run(*given)
            finally:
                # A batch of another size traces again.
                if self._traced > known or (runs and (tracing or first)):
                    tracing += time.perf_counter() - began
                    if runs:
                        self.first_calls.append(tracing)
                        first, tracing = False, 0.0

        for name, runs in (("obstacle", False), ("take", True), ("look", True)):
            setattr(program, name, functools.partial(timed, getattr(program, name), runs=runs))
        return program

    def give_up(self, phase: str, plain: Any, requests: list[Request]) -> None:
        """Marks this step as impossible to build."""
        self.built[_key(phase, requests)] = (weakly(plain), None)


def _key(phase: str, requests: list[Request]) -> object:
    return phase, tuple((request.key, request.identity) for request in requests)


class StandIn:
    """Replaces a model's compiled function for one call."""

    def __init__(self, steps: TappedSteps, phase: str, plain: Any) -> None:
        self.steps = steps
        self.phase = phase
        self.plain = plain
        self.requests: list[Request] = []

    @property
    def _stands(self) -> bool:
        """Whether Keras calls this next. A custom step has no place on a model."""
        return self.phase in PHASES and vars(self.steps.anatomy.model).get(PHASES[self.phase][0]) is self

    def remove(self) -> None:
        if self._stands:
            vars(self.steps.anatomy.model)[PHASES[self.phase][0]] = self.plain

    def withdraw(self, who: object) -> None:
        """Drops a request that was not fulfilled, and with the last one the stand-in."""
        self.requests[:] = [request for request in self.requests if request.who != who]
        if not self.requests:
            self.remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._step(*args, **kwargs)
        except BaseException as error:  # also Ctrl-C during the handover, which no other hook sees on torch
            with shield(self._failed):
                for request in self.requests:
                    request.raised(error)
            raise
        finally:
            if not self._stands:
                self.plain = None  # see `weakly`

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        timings: list[Timing] = []
        with shield(self._failed):
            self.remove()
        boxes = [request.keeping for request in self.requests if request.keeping is not None]
        for box in boxes:
            args, kwargs = box.before(Call(args, kwargs), self.plain)
        with shield(self._failed):
            # A plain step of one scope is not plain if another scope captures it.
            asking = self._asking
            timings = [r.timing for r in self.requests if r.timing is not None and (r.wants or not asking)]
            if timings and self._settled((args, kwargs)):
                for timing in timings:
                    timing.start()
        result, harvests, failure = self._run(*args, **kwargs)
        for box in boxes:
            box.ran(result)
        with shield(self._failed):
            for harvest in harvests:
                self.steps.adapter.divided(harvest)
        for request in self._asking:
            with shield(request.failed):
                request.deliver(harvests, failure)
        with shield(self._failed):
            if timings and self._settled(result):
                for timing in timings:
                    timing.stop()
        return result

    def _failed(self, error: BaseException) -> None:
        for request in self.requests:
            request.failed(error)

    def _settled(self, values: Any) -> bool:
        """Waits until these values are computed. The user gets any error from their next use."""
        try:
            self.steps.adapter.settle(values)
        except Exception:
            return False
        return True

    @property
    def _asking(self) -> list[Request]:
        """The requests that record something, and do not only measure time."""
        return [request for request in self.requests if request.wants]

    def _run(self, *args: Any, **kwargs: Any) -> Ran:
        """Runs the step with taps, or the user's own step on the same batch if there are no taps."""
        failure: BaseException | None = None
        harvests: list[Harvest] = []
        asking = self._asking
        step: Checked | None = None
        call = Call(args, kwargs)
        try:
            step = self.steps.get(self.phase, self.plain, asking) if asking else None
        except Exception as error:  # any error here is fitscope's, because nothing has run
            failure = error
        try:
            if step is not None:
                ran = step(call, asking[0].step)
                for request in asking:
                    request.stands(step.standing)
                if ran.failure is not None:
                    self.steps.give_up(self.phase, self.plain, asking)
                return ran
        except TapFailed as failed:
            failure, call, harvests = failed.error, failed.call, failed.harvests
        if failure is not None:
            self.steps.give_up(self.phase, self.plain, asking)
        # Outside the handlers, so that errors of the user's own step do not show fitscope's failure as their context.
        return Ran(call.of(self.plain), harvests, failure)


def run(steps: TappedSteps, function: Callable[..., Any], request: Request, *args: Any, **kwargs: Any) -> Any:
    """Runs a custom step that belongs to no model, and records what the request wants."""
    stand_in = StandIn(steps, "step", function)
    stand_in.requests.append(request)
    return stand_in(*args, **kwargs)


def install(steps: TappedSteps, phase: str, request: Request) -> StandIn:
    """Makes the next call of the model's compiled function record what the request wants."""
    own = vars(steps.anatomy.model)
    attribute = PHASES[phase][0]
    current = own[attribute]
    if not isinstance(current, StandIn):
        current = own[attribute] = StandIn(steps, phase, current)
    # A stand-in that was never called, because something raised, may still hold an older request of this scope.
    current.requests[:] = [other for other in current.requests if other.who != request.who] + [request]
    return current


class FirstCall:
    """Replaces the compiled function of a model that is not built yet, for one call."""

    def __init__(self, adapter: Adapter, model: Any, phase: str, plain: Any) -> None:
        self.adapter = adapter
        self.model = model
        self.phase = phase
        self.plain = plain
        self.waiting: list[Callable[[BaseException | None], None]] = []

    def remove(self) -> None:
        own = vars(self.model)
        if own.get(PHASES[self.phase][0]) is self:
            own[PHASES[self.phase][0]] = self.plain

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with shield(lambda error: None):  # noqa: ARG005 - nothing depends on it, and no recorder exists yet
            self.remove()
        failure: BaseException
        try:
            args = self.adapter.build(self.model, self.phase, *args)
        except TapFailed as failed:
            failure, args = failed.error, failed.call.args
        except Exception as error:  # the first step builds it, as without a scope, and is not recorded
            failure = error
        else:
            for begin in self.waiting:
                begin(None)
            return vars(self.model)[PHASES[self.phase][0]](*args, **kwargs)
        result = self.plain(*args, **kwargs)
        for begin in self.waiting:
            begin(failure)
        return result


def when_built(
    adapter: Adapter, model: Any, phase: str, begin: Callable[[BaseException | None], None]
) -> Callable[[], None]:
    """Calls `begin` when the model is built: before its first step, or after it with the reason why.

    Returns a function that undoes this.
    """
    own = vars(model)
    attribute = PHASES[phase][0]
    if not isinstance(own[attribute], FirstCall):
        own[attribute] = FirstCall(adapter, model, phase, own[attribute])
    current: FirstCall = own[attribute]
    current.waiting.append(begin)

    def cancel() -> None:
        current.waiting[:] = [other for other in current.waiting if other is not begin]
        if not current.waiting:
            current.remove()

    return cancel
