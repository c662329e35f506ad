"""The taps of the TensorFlow backend: the collector of tensors while a step is traced or runs, and the request to the tape for
gradients.

A tap only remembers the tensor; the layer's own output goes on. It must not even be wrapped in `tf.identity`: Keras looks
for the `Softmax` op behind the model's output to use its logits, an identity hides it, and the numbers change.
For gradients, the training step's own call of `tf.GradientTape.gradient` also gets the tapped tensors as sources, next to the
weights. fitscope replaces that method while a tapped step is traced (or runs eagerly), for that thread only, and restores it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._harvest import NO_GRADIENT, NO_NUMBERS, NOT_FLOATING, Harvest
from fitscope.capture.backends._tensorflow_shadow import handed_out
from fitscope.capture.backends._tensorflow_weights import Values, taps_on_weights
from fitscope.capture.collector import kept, numbers_inside
from fitscope.capture.losses import Losses
from fitscope.capture.patch import taps_on
from fitscope.pipeline.handover import Thin
from fitscope.plan.wants import LOSS, SAMPLE_LOSS
from fitscope.sites import Site


class Collector:
    """The target of the taps of one trace, or of one eager step."""

    def __init__(self) -> None:
        self.harvest = Harvest()
        self.failed = self.harvest.failed
        self.noted = self.harvest.noted
        self.losses = Losses(self)
        self.graph = _graph()
        self.ungraded: dict[Site, Any] = {}  # site → tensor that still needs its gradient from a tape
        self.logits: dict[Site, Site] = {}  # site → the site of its logits
        self.recomputing = False
        self.again: dict[
            Site, Any
        ] = {}  # site → tensor that a backward pass computed again, for its own tape
        self.rematerialized: set[Site] = set()

    def see(self, site: Site, tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor | tf.RaggedTensor):
            what = "sparse" if isinstance(tensor, tf.SparseTensor) else "ragged"
            numbers = tensor.values if what == "sparse" else tensor.flat_values
            self.see(numbers_inside(self, site, what), numbers)
        elif getattr(tensor, "dtype", None) in _NO_NUMBERS and site.place != SAMPLE_LOSS:
            self.failed[site] = NO_NUMBERS
        elif self._reachable(site, tensor):
            self.harvest.sites[site] = site
            # Gradients of embeddings come as slices of a tensor that is zero elsewhere.
            self.harvest.tensors[site] = tensor if isinstance(tensor, Thin) else tf.convert_to_tensor(tensor)
        return tensor

    def see_gradient(self, site: Site, tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
            self.failed[site] = NOT_FLOATING
        elif self._reachable(site, tensor):
            self.harvest.sites[site] = site
            self.ungraded[site] = tensor
            logits = _logits_of(tensor)
            if logits is not None:
                behind = site.but(suffix=f"{site.suffix}/logits")
                self.logits[site] = behind
                self.harvest.sites[behind] = behind
                self.ungraded[behind] = logits
        return tensor

    def see_again(self, site: Site, tensor: Any) -> None:
        self.rematerialized.add(site)
        if tensor is not None and site in self.ungraded and self._reachable(site, tensor):
            self.again[site] = tensor

    def no_more_gradients(self) -> None:
        """Ends the gradients of the step: each missing one gets its reason."""
        for name, behind in self.logits.items():
            if name in self.ungraded and behind not in self.ungraded:
                del self.ungraded[name]
                self.failed[name] = (
                    f"Keras computes the loss from the logits, so no gradient passes here; theirs is {behind}"
                )
            else:  # the gradient arrived at the expected site, or at none
                self.ungraded.pop(behind, None)
                self.harvest.sites.pop(behind, None)
                self.harvest.tensors.pop(behind, None)
        for name in self.ungraded:
            self.failed[name] = REMATERIALIZED if name in self.rematerialized else NO_GRADIENT

    def graded(self, names: list[Site], gradients: list[Any]) -> None:
        """Takes the gradients that a tape returned."""
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None and name in self.ungraded:
                with kept(self, name):
                    del self.ungraded[name]
                    self.harvest.tensors[name] = tf.convert_to_tensor(gradient)

    def _reachable(self, site: Site, tensor: Any) -> bool:
        tensor = tensor.rows if isinstance(tensor, Thin) else tensor
        graph = None if isinstance(tensor, np.ndarray | int | float) else getattr(tensor, "graph", None)
        if graph is not None and graph is not self.graph:
            self.failed[site] = "it is computed inside a loop, a branch or a nested tf.function"
            return False
        return True


#: Why a call of a layer has no gradient, if the layer is called several times and `keras.remat` computes it again.
REMATERIALIZED = "the backward pass computes the layer again, to save memory, and does not tell to which of its calls a gradient belongs"

#: Types that hold no numbers.
_NO_NUMBERS = (tf.string, tf.variant, tf.resource)


def _logits_of(tensor: Any) -> Any | None:
    """The input of a softmax or sigmoid: Keras computes a cross-entropy from it, past the softmax."""
    logits = getattr(tensor, "_keras_logits", None)
    if logits is None and not tf.executing_eagerly() and tensor.op.type in ("Softmax", "Sigmoid"):
        logits = tensor.op.inputs[0]
    return logits


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def asking_tapes(collector: Collector, wants_loss: bool) -> AbstractContextManager[None]:
    """Makes every tape of this thread also return gradients of the tapped tensors, in the call that asks for the weights."""
    thread = threading.get_ident()
    return asking_tapes_of(lambda: collector if threading.get_ident() == thread else None, wants_loss)


@contextmanager
def asking_tapes_of(mine: Callable[[], Collector | None], wants_loss: bool) -> Iterator[None]:
    """Makes tapes report to the collector of the thread that uses them. None leaves its tapes alone."""
    original = tf.GradientTape.gradient

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        # The step itself takes gradients with respect to anything but weights, for example for a penalty.
        of_weights = any(hasattr(source, "assign") for source in tf.nest.flatten(sources))
        collector = mine()
        if collector is None or _graph() is not collector.graph or not (of_weights or collector.recomputing):
            return original(tape, target, sources, *args, **kwargs)
        if collector.recomputing:  # the tape of a custom gradient: it knows only the recomputed tensors
            wanted, collector.again = collector.again, {}
        else:
            wanted = collector.ungraded
            if wants_loss:
                with kept(collector, Site.at(LOSS)):
                    collector.losses.differentiated(target)
        names, before = list(wanted), collector.recomputing
        collector.recomputing = True
        try:
            answer, gradients = original(
                tape, target, [sources, [wanted[name] for name in names]], *args, **kwargs
            )
        finally:
            collector.recomputing = before
        collector.graded(names, gradients)
        return answer

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original


def single_step(ask: Ask, collector: Collector, run: Any) -> Any:
    """The user's own step with taps, and the taps on its effect on the weights."""
    with taps_on(ask.anatomy, ask.wants, collector), asking_tapes(collector, LOSS in ask.wants):
        result = weighed(ask, collector, run)
    with kept(collector):
        collector.no_more_gradients()
    return result


def weighed(ask: Ask, collector: Collector, run: Any) -> Any:
    """Runs the step, with the taps on its effect on the weights."""
    with taps_on_weights(ask, collector, _VALUES):
        return run()


def _now(ask: Ask, weight: Any, site: Site) -> Any:
    """The value of a weight at this point of the step, or the needed part of it."""
    return ask.finish.thin(site, tf.convert_to_tensor(weight.variable.value))


def _minus(new: Any, old: Any) -> Any:
    if isinstance(new, Thin):
        return Thin(_minus(new.rows, old.rows), new.shape)
    return new - old if new.dtype != tf.bool else tf.not_equal(new, old)


_VALUES = Values(_now, _now, _minus)


def detach(collector: Collector, zero: Any) -> None:
    """Replaces the returned tensors by ones whose use does not change how the compiler treats the rest of the graph.

    XLA needs `zero` for that; it is None if XLA does not compile the graph.
    """
    tensors = collector.harvest.tensors
    shadows: dict[Any, Any] = {}
    for name, tensor in tensors.items():
        site = collector.harvest.sites[name]
        try:
            if isinstance(tensor, Thin):
                if zero is not None:
                    tensors[name] = Thin(_own_copy(tensor.rows, zero), tensor.shape)
            elif zero is not None:
                tensors[name] = _own_copy(tensor, zero)
            else:
                forward = site.base in ("activations", "predictions")
                tensors[name] = handed_out(tensor, shadows, forward=forward)
        except Exception as error:
            collector.failed[site] = f"{type(error).__name__}: {error}"


#: An integer type of the same width.
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


def _own_copy(x: Any, zero: Any) -> Any:
    """A value with the same bits, from an operation that XLA can fuse: see the JAX adapter for the reason."""
    bits = _BITS.get(x.dtype.size)
    if bits is None or not (x.dtype.is_floating or x.dtype.is_integer):
        return x
    return tf.bitcast(tf.bitwise.bitwise_xor(tf.bitcast(x, bits), tf.cast(zero, bits)), x.dtype)
