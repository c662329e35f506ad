"""Taps for the JAX backend: name a value while the step is traced, then make it an output of the same program.

A tap is a primitive of our own that computes nothing. Inside a compiled step it marks a value in the traced program
(the jaxpr); `_harvest` evaluates that very program and hands out the marked values beside its results, all inside
one `jax.jit`, so nothing is computed twice and no tracer leaks out of `value_and_grad`. In an eager step
the same primitive simply reports the value when it runs.

For a value the tap stands beside the data flow: the layer's own output goes on, untouched. For the gradient of the loss
with respect to it, the output passes through an identity whose backward pass taps the cotangent.
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
import numpy as np
from jax._src import api  # its `vjp`, see `_compat`
from jax.experimental.sparse import JAXSparse
from jax.interpreters import ad, batching, mlir

from fitscope._compat import jax_bind, jax_differentiators, jit_options
from fitscope.capture.backends._base import (
    NO_GRADIENT,
    NOT_FLOATING,
    PHASES,
    Adapter,
    Ask,
    Harvest,
    Program,
    finished,
    numbers_inside,
    steps_of,
)
from fitscope.capture.backends._jax_programs import EagerFit, EagerStep, Fit, Step, Traced
from fitscope.capture.collector import kept
from fitscope.capture.losses import Losses
from fitscope.capture.patch import attached, guarded, patched, show_batch
from fitscope.pipeline.handover import SMALL, Thin
from fitscope.plan.plan import LOSS
from fitscope.plan.sampling import as_rows, stride
from fitscope.sites import Site

_tap_p = jex.Primitive("fitscope_tap")
_running = threading.local()  # .collector: of the eager step that runs in this thread


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
    """An identity whose backward pass taps what flows back through it."""

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    def backward(_: None, cotangent: Any) -> tuple[Any]:
        _tap(cotangent, name)
        return (cotangent,)

    identity.defvjp(lambda x: (x, None), backward)
    return identity


class _Collector:
    """Where the taps of one trace, or of one eager step, report to."""

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

    def see_gradient(self, site: Site, tensor: Any) -> Any:
        if not isinstance(tensor, jax.Array) or not jnp.issubdtype(tensor.dtype, jnp.floating):
            self.failed[site] = NOT_FLOATING
            return tensor
        self.harvest.sites[site] = site
        out = _gradient_tap(str(site))(tensor)
        # Keras keeps a mask beside the tensor it belongs to; ours is a new one.
        from keras.src import backend

        mask = backend.get_keras_mask(tensor)
        if mask is not None:
            backend.set_keras_mask(out, mask)
        return out


def _harvest(jaxpr: Any, consts: Any, args: Any, found: dict[str, Any], *, silent: bool = False) -> list[Any]:
    """Evaluates a traced program and keeps the values that taps marked in it.

    Sub-programs without taps are run as the one equation they are. Those that are only a frame (jit, remat, custom
    derivative rules that autodiff has already used) are entered. A tap inside a loop or a branch has no single value
    and stays unseen. `silent` leaves out what only has an effect, such as printing.
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
            results = _harvest(frame.jaxpr, frame.consts, values, found, silent=silent)
        else:
            results = jax_bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _lasting_effects(jaxpr: Any) -> list[str]:
    """The names of what has an effect and cannot be left out, as `silent` does."""
    found: list[str] = []
    for eqn in jaxpr.eqns:
        if eqn.effects and eqn.outvars:
            frame = _frame(eqn)
            found += [eqn.primitive.name] if frame is None else _lasting_effects(frame.jaxpr)
    return found


def _own_copy(x: Any, zero: Any) -> Any:
    """The same bits, by an operation the compiler can fuse."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)):
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
def _tagging(ask: Ask, collector: _Collector) -> Iterator[None]:
    with ExitStack() as stack:
        stateless = ask.function is not None
        stack.enter_context(attached(ask.anatomy, ask.wants, collector, stateless=stateless))
        if LOSS in ask.wants:
            for owner, name in jax_differentiators(jax, api):
                make = _with_loss(collector, ask) if name == "vjp" else _with_loss_of_public(collector)
                stack.enter_context(patched(owner, name, make))
        yield


def _with_loss(collector: _Collector, ask: Ask) -> Any:
    """A custom step may never call `compute_loss`; then its loss is what it differentiates with respect to weights.

    All of JAX's gradient functions end in `vjp`, also one that was made before the step and is only called in it.
    """
    weights = {tuple(weight.variable.shape) for weight in ask.anatomy.weights}

    def make(vjp: Any) -> Any:
        def wrapped(fun: Any, *primals: Any, **kwargs: Any) -> Any:
            # A gradient with respect to one array is one of the step's own making (a penalty), unless it is that of a weight.
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


def _with_loss_of_public(collector: _Collector) -> Any:
    """The same for a JAX whose inner parts are named differently: of gradient functions that are made in the step."""

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


def _single_step(ask: Ask, collector: _Collector, state: Any, data: Any) -> Any:
    """The user's own step with taps, and the taps on what it was given and what it did to the weights."""
    model, wants = ask.anatomy.model, ask.wants
    with _tagging(ask, collector):
        show_batch(wants, ask.anatomy, collector, data)
        before: dict[int, Any] = {}
        with kept(collector, *(Site.at(place) for place in wants if place[0] in ("weights", "updates"))):
            before = _weights(model, state)
            _show(collector, ask, "weights", before)
        logs, after_state = getattr(model, PHASES[ask.phase][1])(state, data)
        if ask.phase == "predict":  # its step returns only what may have changed
            after_state = (state[0], after_state)
        if ask.phase == "train" and before:
            with kept(collector, *(Site.at(place) for place in wants if place[0] == "updates")):
                after = _weights(model, after_state)
                _show(collector, ask, "updates", {k: (after[k], before[k]) for k in after})
    return logs, after_state


def _show(collector: _Collector, ask: Ask, kind: str, values: dict[int, Any]) -> None:
    for weight in ask.anatomy.weights:
        if (kind, weight.path) in ask.wants and id(weight.variable) in values:
            value = values[id(weight.variable)]
            if kind == "updates":
                value = value[0] ^ value[1] if value[0].dtype == jnp.bool_ else value[0] - value[1]
            guarded(collector, Site.at((kind, weight.path)), value)


def _weights(model: Any, state: Any) -> dict[int, Any]:
    """The model's weights within the state that Keras carries through the step."""
    pairs = [*zip(model.trainable_variables, state[0], strict=True)]
    pairs += zip(model.non_trainable_variables, state[1], strict=True)
    return {id(variable): value for variable, value in pairs}


def _traced(ask: Ask, fresh: Any, args: tuple[Any, ...], zero: Any, traced: Traced, *, silent: bool) -> Any:
    """What a step returns, and the values that were tapped in it, inside the program that is being traced."""
    ask.traced()
    collector = _Collector()
    jaxpr, shape = jax.make_jaxpr(fresh(collector), return_shape=True)(*args)
    traced.effects = bool(jaxpr.effects)
    traced.lasting = _lasting_effects(jaxpr.jaxpr) if jaxpr.effects else []
    found: dict[str, Any] = {}
    flat = _harvest(jaxpr.jaxpr, jaxpr.consts, jax.tree.leaves(args), found, silent=silent)
    names: dict[str, str] = dict(collector.losses.names().items())
    found = {names.get(name, name): value for name, value in found.items()}
    seen = traced.seen
    seen.sites.update(collector.harvest.sites)
    seen.failed.update(collector.failed)
    seen.noted[:] = collector.noted
    seen.broken = collector.harvest.broken
    for name, site in collector.harvest.sites.items():
        if name not in found and site not in seen.failed:
            seen.failed[site] = _unseen(site)
    found = {name: _own_copy(value, zero) for name, value in found.items()}
    result = jax.tree.unflatten(jax.tree.structure(shape), flat)
    return result, ask.finish(found, collector.harvest.sites)


def _gradients(ask: Ask) -> bool:
    return any(kind == "gradients" for kind, _ in ask.wants)


def _function(ask: Ask, function: Any) -> Program:
    """The user's own step with taps: compiled as it was given to `jax.jit`, or run as it is."""
    body = getattr(function, "__wrapped__", None)
    if body is None or not hasattr(function, "lower"):

        def eager(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
            collector = _Collector()
            _running.collector = collector
            try:
                with _tagging(ask, collector):
                    result = function(*args, **kwargs)
            finally:
                _running.collector = None
            return result, [finished(collector.harvest, ask.finish)]

        return EagerStep(eager, gradients=_gradients(ask))
    options = jit_options(function)
    static = set(options.get("static_argnums", ())), set(options.get("static_argnames", ()))

    def program(traced: Traced, zero: Any, args: Any, kwargs: Any, *, silent: bool) -> Any:
        fixed = {i: value for i, value in enumerate(args) if i in static[0]}
        named = {name: value for name, value in kwargs.items() if name in static[1]}
        varying = (
            {i: value for i, value in enumerate(args) if i not in fixed},
            {name: value for name, value in kwargs.items() if name not in named},
        )

        def fresh(collector: _Collector) -> Any:
            def step(positional: Any, keywords: Any) -> Any:
                given = {**fixed, **positional}
                with _tagging(ask, collector):
                    return body(*(given[i] for i in range(len(args))), **named, **keywords)

            return step

        return _traced(ask, fresh, varying, zero, traced, silent=silent)

    return Step(program, options)


class JaxAdapter(Adapter):
    name = "jax"

    def why_not(self, model: Any) -> str | None:  # noqa: ARG002
        from keras.src.backend.config import is_nnx_enabled

        return (
            "Keras runs its JAX backend through Flax NNX, whose step is not a plain program"
            if is_nnx_enabled()
            else None
        )

    def tapped(self, ask: Ask) -> Program:
        if ask.function is not None:
            return _function(ask, ask.function)
        model = ask.anatomy.model
        compiled = model.jit_compile and not model.run_eagerly

        def eager(state: Any, data: Any) -> tuple[Any, Any, Harvest]:
            collector = _Collector()
            _running.collector = collector
            try:
                logs, state = _single_step(ask, collector, state, data)
            finally:
                _running.collector = None
            return logs, state, finished(collector.harvest, ask.finish)

        def program(traced: Traced, state: Any, data: Any, zero: Any, *, silent: bool) -> Any:
            # A fresh function each time: JAX caches traces by the function's identity, and would give back an older
            # one, made without taps.
            def fresh(collector: _Collector) -> Any:
                return lambda state, data: _single_step(ask, collector, state, data)

            return _traced(ask, fresh, (state, data), zero, traced, silent=silent)

        if not compiled:
            return EagerFit(model, ask.phase, eager, gradients=_gradients(ask))
        return Fit(model, ask.phase, program)

    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        rows, length = as_rows(tensor.shape, batched=batched)
        step = stride(rows, length)
        if step == 1:
            return tensor
        return Thin(tensor.reshape(rows, length)[::step], np.array(tensor.shape, np.int32))

    def small(self, tensor: Any) -> bool:
        real = not jnp.issubdtype(tensor.dtype, jnp.complexfloating)
        return real and isinstance(tensor, jax.core.Tracer) and tensor.size <= SMALL

    def joined(self, tensors: dict[int, Any]) -> tuple[Any, Any]:
        layout = [n for number, x in tensors.items() for n in (number, x.ndim, *x.shape)]
        return jnp.concatenate([x.reshape(-1) for x in tensors.values()]), np.array(layout, np.int32)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor)

    def nbytes(self, tensor: Any) -> int:
        return int(tensor.size * tensor.dtype.itemsize)

    def settle(self, values: Any) -> None:
        leaves = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, Iterator))  # of batches
        jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])

    def iterations(self, optimizer: Any) -> int:
        return int(steps_of(optimizer))

    def on_accelerator(self) -> bool:
        return jax.default_backend() != "cpu"


def _unseen(site: Site) -> str:
    if site.base == "gradients":
        return f"{NO_GRADIENT}; or the step does so in a loop or a branch, where it has no single value"
    return "it is computed inside a loop or a branch, where it has no single value"


ADAPTER = JaxAdapter()
