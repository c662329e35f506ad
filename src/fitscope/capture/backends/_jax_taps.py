"""The taps of the JAX backend: a primitive that marks a value in the traced program, and the collector of the marked values.

A tap computes nothing. Inside a compiled step it marks a value in the traced program (the jaxpr); `harvest` evaluates that
program and returns the marked values with its results. In an eager step the same primitive reports the value when it runs.
A tap of a value is outside the data flow: the layer's own output goes on unchanged. For a gradient, the output
passes through an identity whose backward pass taps the cotangent.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax._src import api  # fitscope patches api.vjp: see _compat.jax_differentiators
from jax.experimental.sparse import JAXSparse
from jax.interpreters import ad, batching, mlir

from fitscope._compat import copy_keras_mask, jax_bind, jax_differentiators
from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._harvest import NOT_FLOATING, Harvest
from fitscope.capture.collector import kept, numbers_inside
from fitscope.capture.losses import Losses
from fitscope.capture.patch import patched, taps_on
from fitscope.plan.wants import LOSS
from fitscope.sites import Site

_tap_p = jex.Primitive("fitscope_tap")
_running = threading.local()  # `.collector`: that of the eager step that runs in this thread


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Sends the taps of an eager step to the collector inside the block."""
    _running.collector = collector
    try:
        yield
    finally:
        _running.collector = None


def _tap(x: Any, name: str) -> None:
    """Marks a value. The result is dropped: the primitive stays in the program because it was traced into it."""
    _tap_p.bind(x, name=name)


@_tap_p.def_impl
def _impl(x: Any, *, name: str) -> Any:
    collector = getattr(_running, "collector", None)
    if collector is not None:
        collector.harvest.tensors.setdefault(name, x)
    return x


_tap_p.def_abstract_eval(lambda x, *, name: x)  # noqa: ARG005
mlir.register_lowering(_tap_p, lambda ctx, x, *, name: [x])  # noqa: ARG005
batching.defvectorized(_tap_p)


def _jvp(primals: Any, tangents: Any, *, name: str) -> Any:
    return _tap_p.bind(*primals, name=name), tangents[0]


ad.primitive_jvps[_tap_p] = _jvp


@functools.cache
def _gradient_tap(name: str) -> Any:
    """An identity whose backward pass taps the gradient."""

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    def backward(_: None, cotangent: Any) -> tuple[Any]:
        _tap(cotangent, name)
        return (cotangent,)

    identity.defvjp(lambda x: (x, None), backward)
    return identity


class Collector:
    """The target of the taps of one trace, or of one eager step."""

    recomputing = False  # for `keras.remat`, JAX repeats its own program and calls no layer again

    def __init__(self) -> None:
        self.harvest = Harvest()
        self.failed = self.harvest.failed
        self.noted = self.harvest.noted
        self.losses = Losses(self)

    def see(self, site: Site, tensor: Any) -> Any:
        if isinstance(tensor, JAXSparse):
            self.see(numbers_inside(self, site, "sparse"), tensor.data)
            return tensor
        self.harvest.sites[site] = site
        _tap(jnp.asarray(tensor), str(site))
        return tensor

    def see_again(self, site: Site, tensor: Any) -> None:
        """Is never called."""

    def see_gradient(self, site: Site, tensor: Any) -> Any:
        if not isinstance(tensor, jax.Array) or not jnp.issubdtype(tensor.dtype, jnp.floating):
            self.failed[site] = NOT_FLOATING
            return tensor
        self.harvest.sites[site] = site
        out = _gradient_tap(str(site))(tensor)
        # Keras attaches a mask to its tensor, and this tensor is a new one.
        copy_keras_mask(tensor, out)
        return out


def harvest(jaxpr: Any, consts: Any, args: Any, found: dict[str, Any], *, silent: bool = False) -> list[Any]:
    """Evaluates a traced program and keeps the values that taps marked.

    Sub-programs without taps run as one equation. Those that are only wrappers (jit, remat, custom derivative rules that autodiff
    has already used) are entered. A tap inside a loop or a branch has no single value and stays unseen. `silent` omits pure
    effects, such as printing.
    """
    env: dict[Any, Any] = {}

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jex.Literal) else env[var]

    env.update(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        values = [read(var) for var in eqn.invars]
        frame = _frame(eqn)
        if eqn.primitive is _tap_p:
            found.setdefault(eqn.params["name"], values[0])
            results = values
        elif silent and eqn.effects and not eqn.outvars:
            continue
        elif frame is not None and (_has_taps(frame.jaxpr) or (silent and eqn.effects)):
            results = harvest(frame.jaxpr, frame.consts, values, found, silent=silent)
        else:
            results = jax_bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def lasting_effects(jaxpr: Any) -> list[str]:
    """The names of effects that `silent` cannot omit."""
    found: list[str] = []
    for eqn in jaxpr.eqns:
        if eqn.effects and eqn.outvars:
            frame = _frame(eqn)
            found += [eqn.primitive.name] if frame is None else lasting_effects(frame.jaxpr)
    return found


def own_copy(x: Any, zero: Any) -> Any:
    """A value with the same bits, computed by an operation that the compiler can fuse. A value that is known while tracing needs none."""
    if not isinstance(x, jax.core.Tracer) or not (
        jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)
    ):
        return x
    bits = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(x, bits) ^ zero.astype(bits), x.dtype)


#: Equations that only wrap a program, and the parameter that holds it.
_FRAMES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


def _frame(eqn: Any) -> Any | None:
    inner = eqn.params.get(_FRAMES.get(eqn.primitive.name, ""))
    if inner is None:
        return None
    return inner if hasattr(inner, "consts") else jex.ClosedJaxpr(inner, [])


def _has_taps(jaxpr: Any) -> bool:
    for eqn in jaxpr.eqns:
        frame = _frame(eqn)
        if eqn.primitive is _tap_p or (frame is not None and _has_taps(frame.jaxpr)):
            return True
    return False


@contextmanager
def tagging(ask: Ask, collector: Collector) -> Iterator[None]:
    with ExitStack() as stack:
        stateless = ask.function is not None
        stack.enter_context(taps_on(ask.anatomy, ask.wants, collector, stateless=stateless))
        if LOSS in ask.wants:
            for owner, name in jax_differentiators(jax, api):
                make = _with_loss(collector, ask) if name == "vjp" else _with_loss_of_public(collector)
                stack.enter_context(patched(owner, name, make))
        yield


def _with_loss(collector: Collector, ask: Ask) -> Any:
    """Finds the loss of a custom step that never calls `compute_loss`: the value that it differentiates with respect to weights.

    All of JAX's gradient functions end in `vjp`, even one that was made before the step.
    """
    weights = {tuple(weight.variable.shape) for weight in ask.anatomy.weights}

    def make(vjp: Any) -> Any:
        def wrapped(fun: Any, *primals: Any, **kwargs: Any) -> Any:
            # The step itself takes a gradient with respect to one array, for a penalty, unless that array is a weight.
            alone = [x for x in primals if isinstance(x, jax.Array)]
            if len(alone) == len(primals) and not all(x.shape in weights for x in alone):
                return vjp(fun, *primals, **kwargs)

            @functools.wraps(fun)  # its signature tells JAX which arguments have names
            def seen(*args: Any, **kwargs_: Any) -> Any:
                out = fun(*args, **kwargs_)
                with kept(collector, Site.at(LOSS)):
                    collector.losses.differentiated(out[0] if kwargs.get("has_aux") else out)
                return out

            return vjp(seen, *primals, **kwargs)

        return wrapped

    return make


def _with_loss_of_public(collector: Collector) -> Any:
    """Like `_with_loss`, for a JAX version with other internal names. It covers gradient functions made in the step."""

    def make(transform: Any) -> Any:
        def wrapped(fun: Any, *args: Any, **kwargs: Any) -> Any:
            @functools.wraps(fun)
            def seen(*fun_args: Any, **fun_kwargs: Any) -> Any:
                out = fun(*fun_args, **fun_kwargs)
                with kept(collector, Site.at(LOSS)):
                    collector.losses.differentiated(out[0] if isinstance(out, tuple) else out)
                return out

            return transform(seen, *args, **kwargs)

        return wrapped

    return make
