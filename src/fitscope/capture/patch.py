"""Adds the taps to a model for one step or one trace, and removes them again.

A tap is an identity: the layer's own `call` runs, the collector gets its output, and the output goes on. Patches are on instances
(never on a Keras class), inside a `with` block, and are undone in reverse order in any case. Outside that block the model is the
user's own, so saving, cloning and exporting are not affected.

The collector belongs to the adapter: `see(site, tensor)` for a value, `see_gradient(site, tensor)` for the gradient that will
flow back through it. Both return the tensor to continue with. Nothing here raises into the user's step: an error at a site goes
to `collector.failed`, and that site has no tap. If no taps can be added, the step runs without them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fitscope.capture.collector import Collector, guarded, kept, leaves
from fitscope.capture.layer_taps import Taps, show_sample
from fitscope.capture.optimizer_taps import OptimizerTaps
from fitscope.capture.shield import shield
from fitscope.capture.tap import listening
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.wants import SAMPLE_LOSS, Wants
from fitscope.sites import Site

__all__ = ["guarded", "leaves", "patched", "show_batch", "taps_on", "taps_on_replicas"]


@contextmanager
def taps_on(
    anatomy: Anatomy, wants: Wants, collector: Collector, *, stateless: bool = False
) -> Iterator[None]:
    """Adds taps at the wanted places of the model inside the block.

    `stateless` means that the step is custom and may pass the weights through as bare arrays.
    """
    with (
        _installed(anatomy, wants, [collector], lambda makes: makes[0], stateless=stateless) as taps,
        ExitStack() as undo,
    ):
        for one in taps:
            undo.enter_context(listening(one.show))
        yield


@contextmanager
def taps_on_replicas(
    anatomy: Anatomy, wants: Wants, collectors: Sequence[Collector], here: Callable[[], int | None]
) -> Iterator[list[Taps]]:
    """Adds taps for a step that runs once for each replica, with one collector each.

    Replicas run in threads that take turns in the middle of a layer, so every replica has its own taps: `here` is the number of
    the replica that this thread runs, or None. Yields the taps of each replica; none if they could not be added.
    """

    def by_replica(makes: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            tapped = [make(original) for make in makes]

            def chosen(*args: Any, **kwargs: Any) -> Any:
                number = here()
                return (original if number is None else tapped[number])(*args, **kwargs)

            return chosen

        return make

    with _installed(anatomy, wants, collectors, by_replica) as taps:
        yield taps


@contextmanager
def _installed(
    anatomy: Anatomy,
    wants: Wants,
    collectors: Sequence[Collector],
    choose: Callable[[Sequence[Callable[[Any], Any]]], Callable[[Any], Any]],
    *,
    stateless: bool = False,
) -> Iterator[list[Taps]]:
    """Patches the model with the taps of each collector; `choose` makes one patch of those at one place."""
    undo: list[patched] = []
    taps: list[Taps] = []
    try:
        try:
            patches = []
            for collector in collectors:
                taps.append(Taps(anatomy, wants, collector))
                of_optimizers = OptimizerTaps(anatomy, wants, collector, stateless)
                patches.append([*taps[-1].patches(), *of_optimizers.patches()])
            for same in zip(*patches, strict=True):
                owner, name, _ = same[0]
                patch = patched(owner, name, choose([make for _, _, make in same]))
                undo.append(patch)  # before the patch: an interruption may come after either line
                patch.__enter__()
        except Exception as error:  # all or nothing: the user's step has not begun
            _undo(undo)
            taps = []
            for collector in collectors:
                _break(collector, error)
        yield taps
        for one in taps:
            with shield(functools.partial(_break, one.collector)):
                one.account()
                one.collector.harvest.rename(one.collector.losses.names())
    finally:
        _undo(undo)


def _undo(patches: list[patched]) -> None:
    while patches:
        patches.pop().__exit__()


def _break(collector: Collector, error: Exception) -> None:
    collector.harvest.broken = error


class patched:  # noqa: N801 - used as a function
    """Replaces `owner.name` by `make(original)` on this instance alone.

    It writes to the instance's dictionary, because Keras and torch track attribute assignment, and a tap is not part of the model.
    """

    __slots__ = ("_before", "_make", "_name", "_own", "_owner")

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._own = vars(owner)
        # Before anything else, so that fitscope can always undo the patch.
        self._before = self._own.get(name, _MISSING)

    def __enter__(self) -> None:
        self._own[self._name] = self._make(getattr(self._owner, self._name))

    def __exit__(self, *_: object) -> None:
        if self._before is _MISSING:
            self._own.pop(self._name, None)
        else:
            self._own[self._name] = self._before


_MISSING = object()


def show_batch(wants: Wants, anatomy: Anatomy, collector: Collector, data: Any) -> None:
    """Reports the arguments of the step. A custom step may have any arguments: all of them count as its input."""
    with kept(
        collector, *(Site(kind) for kind in ("inputs", "targets", "sample_loss") if (kind, "") in wants)
    ):
        from keras.src.trainers.data_adapters.data_adapter_utils import unpack_x_y_sample_weight

        model = anatomy.model
        try:
            x, y, _ = unpack_x_y_sample_weight(data)
        except ValueError:
            x, y = data, None
        for kind, value, names in (
            ("inputs", x, [tensor.name for tensor in getattr(model, "inputs", None) or ()]),
            ("targets", y, getattr(model, "output_names", None)),
        ):
            if (kind, "") in wants:
                for suffix, tensor in leaves(value, names):
                    guarded(collector, Site(kind, suffix=suffix), tensor)
            if kind == "inputs" and SAMPLE_LOSS in wants:
                show_sample(collector, "x", value, names)
