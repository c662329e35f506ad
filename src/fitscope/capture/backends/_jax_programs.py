"""How a tapped step runs on JAX: instead of the user's own, compared with it, or alongside it.

The arguments of a second run are kept in `_jax_second_run`. The twin, which runs alongside the user's own program, is
compiled for that alone. It donates nothing and returns only the tapped tensors, so XLA removes the update unless it is watched. It
leaves out pure effects such as printing, because the user's own program has them.

An eager step is Python, which may count its calls or do anything else, so it runs once. A tap of a value leaves it as it is. A tap of a
gradient is an identity in the data flow. If a value is used both through the tap and past it, gradients are added in another order than
without it, so such a step cannot be proven. `identity="twin"` leaves these taps out.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fitscope.capture.backends._base import Call, Held, Obstacle, Outcome, Program, TapFailed
from fitscope.capture.backends._harvest import Harvest
from fitscope.capture.backends._jax_second_run import (
    HeldArguments,
    HeldBatches,
    copied,
    held_batches,
    signature,
    used_up,
)

_ZERO = np.uint32(0)
IN_ANOTHER_ORDER = "an eager step is Python, which must not run twice, and taps of gradients can change the order of their sums"


@dataclass(slots=True)
class Traced:
    """The result of tracing a program."""

    seen: Harvest = field(default_factory=Harvest)  #: sites and failures
    effects: bool = False  #: whether it prints or calls back
    lasting: list[str] = field(default_factory=list)  #: callbacks with a result, which cannot be left out

    def harvest(self, tensors: dict[str, Any]) -> Harvest:
        return Harvest(tensors, self.seen.sites, self.seen.failed, self.seen.noted, self.seen.broken)

    @property
    def obstacle(self) -> Obstacle | None:
        if self.lasting:
            names = ", ".join(dict.fromkeys(self.lasting))
            return Obstacle(
                f"the step calls back into Python ({names}), which must not happen twice", beside=False
            )
        if self.effects:
            return Obstacle(
                "the step prints or calls back into Python, which must not happen twice", beside=True
            )
        return None


class Eager(Program):
    """A step that runs as Python."""

    def __init__(self, without_gradients: Program | None) -> None:
        self._without_gradients = without_gradients
        if without_gradients is None:
            self.identical = "an eager step runs the same operations in the same order, and a tap of a value does not change them"

    def signature(self, call: Call) -> Hashable:  # noqa: ARG002
        return ()

    def hold(self, call: Call) -> Held:
        return HeldArguments(call, lambda: call)

    def obstacle(self, held: Held) -> Obstacle:  # noqa: ARG002
        return Obstacle(IN_ANOTHER_ORDER, beside=False, instead=self._without_gradients)


class EagerStep(Eager):
    """A custom step that is a plain function."""

    def __init__(self, step: Callable[..., Outcome], without_gradients: Program | None) -> None:
        super().__init__(without_gradients)
        self._step = step

    def take(self, call: Call) -> Outcome:
        return call.of(self._step)


class Step(Program):
    """A custom step, jitted with the user's static and donated arguments."""

    def __init__(self, program: Callable[..., Any], options: dict[str, Any]) -> None:
        self._traced = Traced()
        self._options = options

        def whole(*args: Any, fitscope_zero: Any, **kwargs: Any) -> Any:
            return program(self._traced, fitscope_zero, args, kwargs, silent=False)

        def shown(*args: Any, fitscope_zero: Any, **kwargs: Any) -> Any:
            return program(self._traced, fitscope_zero, args, kwargs, silent=True)[1]

        self._whole = jax.jit(whole, **options)
        kept = {name: value for name, value in options.items() if not name.startswith("donate")}
        self._shown = jax.jit(shown, **kept)

    def take(self, call: Call) -> Outcome:
        try:
            result, tensors = self._whole(*call.args, fitscope_zero=_ZERO, **call.kwargs)
        except Exception as error:
            if used_up(call):
                raise  # it ran
            raise TapFailed(error, call) from error
        return result, [self._traced.harvest(tensors)]

    def signature(self, call: Call) -> Hashable:
        return signature(call)

    def hold(self, call: Call) -> Held:
        numbers, names = self._options.get("donate_argnums", ()), self._options.get("donate_argnames", ())
        numbers = (numbers,) if isinstance(numbers, int) else numbers
        names = (names,) if isinstance(names, str) else names

        def copy() -> Call:
            return Call(
                tuple(copied(value) if i in numbers else value for i, value in enumerate(call.args)),
                {name: copied(value) if name in names else value for name, value in call.kwargs.items()},
            )

        return HeldArguments(call, copy)

    def obstacle(self, held: Held) -> Obstacle | None:
        call = held.call()
        try:
            self._whole.trace(*call.args, fitscope_zero=_ZERO, **call.kwargs)
        except Exception as error:
            raise TapFailed(error, call) from error
        return self._traced.obstacle

    def look(self, held: Held) -> list[Harvest]:
        call = held.call()
        return [self._traced.harvest(_alone(self._shown(*call.args, fitscope_zero=_ZERO, **call.kwargs)))]


def _alone(results: Any) -> Any:
    """The result of the twin. With several processes it waits for the twin, whose messages must not meet those of the user's program."""
    return jax.block_until_ready(results) if jax.process_count() > 1 else results


class _Keras(Program):
    """The step of `fit`, `evaluate` or `predict`: several if Keras runs several in one call."""

    def __init__(self, model: Any, phase: str) -> None:
        self._model = model
        self._phase = phase

    def _one(self, state: Any, data: Any) -> tuple[Any, Any, Harvest]:
        """One step: its logs, the new state, and the tapped values."""
        raise NotImplementedError

    def take(self, call: Call) -> Outcome:
        state, iterator = call.args
        logs: Any = None
        outputs: list[Any] = []
        harvests: list[Harvest] = []
        for done, data in enumerate(self._drawn(iterator)):
            try:
                logs, state, harvest = self._one(state, data)
            except Exception as error:
                if used_up(state):
                    raise  # it ran
                rest = itertools.islice(
                    itertools.chain([data], iterator), self._model.steps_per_execution - done
                )
                raise TapFailed(error, Call((state, rest), {}), harvests) from error
            harvests.append(harvest)
            outputs.append(logs)
        if not outputs:
            raise StopIteration
        if self._phase == "predict" and len(outputs) > 1:
            logs = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
        return (logs, state), harvests

    def _drawn(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The batches of one call."""
        return itertools.islice(iterator, self._model.steps_per_execution)


class EagerFit(_Keras, Eager):
    """The same, run as Python."""

    def __init__(
        self, model: Any, phase: str, one: Callable[..., Any], without_gradients: Program | None
    ) -> None:
        _Keras.__init__(self, model, phase)
        Eager.__init__(self, without_gradients)
        self._one = one  # type: ignore[method-assign]


class Fit(_Keras):
    """The same, compiled."""

    def __init__(self, model: Any, phase: str, program: Callable[..., Any]) -> None:
        super().__init__(model, phase)
        self._traced = Traced()

        def whole(state: Any, data: Any, zero: Any) -> Any:
            return program(self._traced, state, data, zero, silent=False)

        def beside(state: Any, data: Any, zero: Any) -> Any:
            return program(self._traced, state, data, zero, silent=True)

        self._jit = functools.partial(jax.jit, whole, donate_argnums=0)
        self._jitted: Any = None
        self._shown = jax.jit(lambda state, data, zero: beside(state, data, zero)[1])
        self._beside = jax.jit(beside)

    def _whole(self, state: Any) -> Any:
        """The compiled program. Under a distribution it keeps the sharding of the state, as Keras does."""
        if self._jitted is None:
            from keras.distribution import distribution

            spread = None if distribution() is None else jax.tree.map(lambda leaf: leaf.sharding, state)
            self._jitted = self._jit() if spread is None else self._jit(out_shardings=((None, spread), None))
        return self._jitted

    def _one(self, state: Any, data: Any) -> tuple[Any, Any, Harvest]:
        (logs, state), tensors = self._whole(state)(state, data, _ZERO)
        return logs, state, self._traced.harvest(tensors)

    def hold(self, call: Call) -> Held:
        return held_batches(self._model, call)

    def obstacle(self, held: Held) -> Obstacle | None:
        assert isinstance(held, HeldBatches)
        try:
            for data in held.batches:
                self._whole(held.state).trace(held.state, data, _ZERO)
        except Exception as error:
            raise TapFailed(error, held.call()) from error
        return self._traced.obstacle

    def look(self, held: Held) -> list[Harvest]:
        assert isinstance(held, HeldBatches)
        if len(held.batches) == 1:
            return [self._traced.harvest(_alone(self._shown(held.state, held.batches[0], _ZERO)))]
        harvests, state = [], held.state
        for data in held.batches:  # the next batch needs the state after this one
            (_, state), tensors = _alone(self._beside(state, data, _ZERO))
            harvests.append(self._traced.harvest(tensors))
        return harvests
