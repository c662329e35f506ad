"""Puts the taps into a model for the length of one step or one trace, and takes them out again.

A tap is an identity: the layer's own `call` runs, its output is shown to the collector, and goes on. What is patched is
patched on the instances (never on a Keras class), inside a `with` block, and undone in reverse order whatever
happens. Outside that block the model is the user's own, so that saving, cloning and exporting never meet us.

The collector is the adapter's: `see(site, tensor)` for a value, `see_gradient(site, tensor)` for the gradient that will
flow back through it; both return the tensor to go on with. Nothing in here raises into the user's step: an error
at a site is kept in `collector.failed` and that site is left alone; if the taps cannot be put in at all, the step runs without.
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
from fitscope.plan.plan import SAMPLE_LOSS, Wants
from fitscope.sites import Site

__all__ = ["attached", "guarded", "leaves", "patched", "show_batch"]


@contextmanager
def attached(
    anatomy: Anatomy, wants: Wants, collector: Collector, *, stateless: bool = False
) -> Iterator[None]:
    """The model with taps at the wanted places, for the length of the block.

    `stateless`: the step is the user's own and may carry the weights through it as bare arrays.
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
    """`owner.name` replaced by `make(original)` on this instance alone.

    Written straight into the instance's dictionary: Keras and torch watch attribute assignment, and a tap is not a part
    of the model.
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
    """Reports what the step was given. A custom step may be given anything: then all of it is its input."""
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
