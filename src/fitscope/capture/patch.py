"""Adds the taps to a model for one step or one trace, and removes them again.

A tap is an identity: the layer's own `call` runs, the collector gets its output, and the output goes on. Patches are on instances
(never on a Keras class), inside a `with` block, and are undone in reverse order in any case. Outside that block the model is the
user's own, so saving, cloning and exporting are not affected.

The collector belongs to the adapter: `see(site, tensor)` for a value, `see_gradient(site, tensor)` for the gradient that will
flow back through it. Both return the tensor to continue with. Nothing here raises into the user's step: an error at a site goes
to `collector.failed`, and that site has no tap. If no taps can be added, the step runs without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

__all__ = ["guarded", "leaves", "patched", "show_batch", "taps_on"]


@contextmanager
def taps_on(
    anatomy: Anatomy, wants: Wants, collector: Collector, *, stateless: bool = False
) -> Iterator[None]:
    """Adds taps at the wanted places of the model inside the block.

    `stateless` means that the step is custom and may pass the weights through as bare arrays.
    """
    with ExitStack() as undo:
        taps: Taps | None = None
        try:
            taps = Taps(anatomy, wants, collector)
            of_optimizers = OptimizerTaps(anatomy, wants, collector, stateless)
            undo.enter_context(listening(taps.show))
            for owner, name, make in (*taps.patches(), *of_optimizers.patches()):
                undo.enter_context(patched(owner, name, make))
        except Exception as error:  # all or nothing: the step is the user's, and has not begun
            undo.close()
            taps = None
            collector.harvest.broken = error
        yield
        if taps is not None:
            with shield(lambda error: setattr(collector.harvest, "broken", error)):
                taps.account()
                collector.harvest.rename(collector.losses.names())


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces `owner.name` by `make(original)` on this instance alone.

    It writes to the instance's dictionary, because Keras and torch track attribute assignment, and a tap is not part of the model.
    """
    own = vars(owner)
    missing = object()
    before = own.get(name, missing)
    own[name] = make(getattr(owner, name))
    try:
        yield
    finally:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before


def show_batch(wants: Wants, anatomy: Anatomy, collector: Collector, data: Any) -> None:
    """Reports the arguments of the step. A custom step may have any arguments: then all of them are its input."""
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
