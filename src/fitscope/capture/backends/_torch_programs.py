"""How a tapped step runs on PyTorch: instead of the user's own, compared with it, or alongside it.

An eager step with taps is the user's own step: the same Python runs the same operations in the same order, and draws the same
random numbers. A tap keeps a reference; a hook on a tensor adds no node to autograd's graph and returns nothing. So there
is nothing to prove, and the step, which may do anything that Python can, is never run twice.

`torch.compile` makes another program of a step with taps. The state of `fit`'s own step is known (the variables of model, optimizer and
metrics, the gradients, the random state), so it is saved and restored around a proof. The state of a custom compiled step
is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fitscope.capture.backends._base import Call, Held, Obstacle, Outcome, Program

_BY_CONSTRUCTION = (
    "an eager step runs the same operations in the same order; a tap keeps a reference, "
    "and a hook adds nothing to autograd's graph"
)


class Eager(Program):
    """An eager step, which runs unchanged."""

    identical: str | None = _BY_CONSTRUCTION

    def __init__(self, step: Callable[..., Outcome]) -> None:
        self._step = step

    def take(self, call: Call) -> Outcome:
        return call.of(self._step)

    def hold(self, call: Call) -> Held:
        return _State(call, None)


class Compiled(Eager):
    """A step that `torch.compile` compiles: of this model's `fit`, or (without a model) a custom one."""

    identical = None

    def __init__(self, step: Callable[..., Outcome], model: Any) -> None:
        super().__init__(step)
        self._model = model

    def hold(self, call: Call) -> Held:
        return _State(call, self._model)

    def signature(self, call: Call) -> Hashable:
        return tuple(
            (tuple(leaf.shape), str(leaf.dtype)) for leaf in _leaves(call) if isinstance(leaf, torch.Tensor)
        )

    def obstacle(self, held: Held) -> Obstacle | None:  # noqa: ARG002
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Obstacle(
                "processes exchange gradients in the step, so none may run it twice", beside=False
            )
        if self._model is None:
            return Obstacle(
                "the state of a compiled step of your own is not known, so it runs once", beside=False
            )
        return None


class _State(Held):
    """The arguments of a step, and everything that `fit`'s own step changes."""

    def __init__(self, call: Call, model: Any) -> None:
        self._call = call
        self._model = model
        self._saved: list[Any] = []

    def call(self) -> Call:
        return self._call

    rehearsal = call

    def save(self) -> None:
        self._saved = self._now()

    def restore(self) -> None:
        self._put(self._saved)

    def after(self, result: Any) -> tuple[Any, list[Any]]:
        return [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in _leaves(result)
        ], [
            result,
            *self._now(),
        ]

    def result(self, after: Any) -> Any:
        return after[1][0]

    def adopt(self, after: Any) -> None:
        self._put(after[1][1:])

    def numbers(self, after: Any) -> int:
        return sum(
            leaf.numel() for leaf in _leaves([after[0], after[1][1:]]) if isinstance(leaf, torch.Tensor)
        )

    def same(self, one: Any, other: Any) -> str | None:
        left, right = (_leaves([after[0], after[1][1:]]) for after in (one, other))
        if len(left) != len(right):
            return f"{len(left)} and {len(right)} tensors came back"
        differing = sum(not _same(a, b) for a, b in zip(left, right, strict=True))
        return f"{differing} of {len(left)} results and variables differ" if differing else None

    def _variables(self) -> list[Any]:
        model = self._model
        optimizer = getattr(model, "optimizer", None)  # predict() needs no compile()
        known = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
        known += [variable for metric in model.metrics for variable in metric.variables]
        return [variable.value for variable in {id(v): v for v in known}.values()]

    def _now(self) -> list[Any]:
        """Copies of the whole state, including the random state of the host."""
        values = self._variables()
        grads = [None if value.grad is None else value.grad.detach().clone() for value in values]
        devices = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
        return [[value.detach().clone() for value in values], grads, torch.get_rng_state(), devices]

    def _put(self, saved: list[Any]) -> None:
        values, grads, host, devices = saved
        with torch.no_grad():
            for variable, value, grad in zip(self._variables(), values, grads, strict=True):
                variable.copy_(value)
                variable.grad = None if grad is None else grad.clone()
        torch.set_rng_state(host)
        for device in devices:
            torch.cuda.set_rng_state(device)


def _leaves(structure: Any) -> list[Any]:
    leaves: list[Any] = torch.utils._pytree.tree_leaves(structure)
    return [leaf for leaf in leaves if leaf is not None]


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype is torch.bool or a.is_complex() or not a.numel():
        return torch.equal(a, b)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    left, right = (x.contiguous().view(bits) for x in (a, b))
    # As in `same_bits`, one NaN is like another.
    return torch.equal(left, right) or bool(((left == right) | (a.isnan() & b.isnan())).all())
