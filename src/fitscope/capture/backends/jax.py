"""The adapter of the JAX backend: makes the tapped values outputs of the user's own program.

The step is traced with taps in it (`_jax_taps`). `_traced` evaluates that trace inside one `jax.jit` and returns the tapped
values with its results, so nothing is computed twice and no tracer leaks out of `value_and_grad`. `_jax_programs` knows
how such a program runs in place of the user's own, compared with it, or alongside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fitscope._compat import jax_traced_apart, jit_options, nnx_enabled
from fitscope.capture.backends._base import PHASES, Adapter, Ask, Program, steps_of
from fitscope.capture.backends._black_box import Keeper
from fitscope.capture.backends._draws import own_draws
from fitscope.capture.backends._harvest import NO_GRADIENT, Harvest, finished, no_local
from fitscope.capture.backends._jax_black_box import JaxKeeper
from fitscope.capture.backends._jax_constants import Known
from fitscope.capture.backends._jax_programs import IN_ANOTHER_ORDER, EagerFit, EagerStep, Fit, Step, Traced
from fitscope.capture.backends._jax_shards import assembled, divide, spread
from fitscope.capture.backends._jax_taps import (
    Collector,
    collecting,
    harvest,
    lasting_effects,
    own_copy,
    tagging,
)
from fitscope.capture.collector import kept
from fitscope.capture.patch import guarded, show_batch
from fitscope.pipeline.handover import SMALL, Shard, Thin
from fitscope.plan.sampling import as_rows, stride
from fitscope.sites import Site

_TRACES = itertools.count(1)  # their numbers
#: Bytes of a joined vector. XLA divides the copy of a longer one among its worker threads. Waking them at each step takes many times
#: as long as the copy: with tiny layers, as long as the step itself.
LONGEST = 65_536


def _single_step(ask: Ask, collector: Collector, state: Any, data: Any) -> Any:
    """The user's own step with taps, and the taps on its arguments and on its effect on the weights."""
    model, wants = ask.anatomy.model, ask.wants
    with tagging(ask, collector):
        show_batch(wants, ask.anatomy, collector, data)
        before: dict[int, Any] = {}
        with kept(collector, *(Site.at(place) for place in wants if place[0] in ("weights", "updates"))):
            before = _weights(model, state)
            _show(collector, ask, "weights", before)
        logs, after_state = getattr(model, PHASES[ask.phase][1])(state, data)
        if ask.phase == "predict":  # Keras's predict step returns only the state that may change
            after_state = (state[0], after_state)
        if ask.phase == "train" and before:
            with kept(collector, *(Site.at(place) for place in wants if place[0] == "updates")):
                after = _weights(model, after_state)
                _show(collector, ask, "updates", {k: (after[k], before[k]) for k in after})
    return logs, after_state


def _show(collector: Collector, ask: Ask, kind: str, values: dict[int, Any]) -> None:
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
    """The results of a step and its tapped values, inside the program that is being traced."""
    ask.traced()
    collector = Collector()
    # A function under `jax.jit` or `jax.checkpoint` inside the step may close over the weights, which are tracers here. JAX caches its
    # trace. In this block JAX neither reads nor leaves such a trace, so the user's own step never meets our tracers or taps, nor this
    # trace those of the user's step.
    with jax_traced_apart(jax, next(_TRACES)), own_draws():
        jaxpr, shape = jax.make_jaxpr(fresh(collector), return_shape=True)(*args)
    traced.effects = bool(jaxpr.effects)
    traced.lasting = lasting_effects(jaxpr.jaxpr) if jaxpr.effects else []
    found: dict[str, Any] = {}
    flat = harvest(jaxpr.jaxpr, jaxpr.consts, jax.tree.leaves(args), found, silent=silent)
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
    no_local(seen, ask)
    result = jax.tree.unflatten(jax.tree.structure(shape), flat)
    return result, jax.tree.map(
        lambda value: own_copy(value, zero), ask.finish(found, collector.harvest.sites)
    )


def _eager_function(ask: Ask) -> Program:
    """A custom step that is a plain function."""
    function: Any = ask.function

    def step(*args: Any, **kwargs: Any) -> tuple[Any, list[Harvest]]:
        collector = Collector()
        with collecting(collector), tagging(ask, collector):
            result = function(*args, **kwargs)
        return result, [finished(collector.harvest, ask)]

    less = ask.without_gradients(IN_ANOTHER_ORDER)
    return EagerStep(step, _eager_function(less) if less is not None else None)


def _eager_fit(ask: Ask) -> Program:
    """The model's own step, run as Python."""

    def step(state: Any, data: Any) -> tuple[Any, Any, Harvest]:
        collector = Collector()
        with collecting(collector):
            logs, state = _single_step(ask, collector, state, data)
        return logs, state, finished(collector.harvest, ask)

    less = ask.without_gradients(IN_ANOTHER_ORDER)
    return EagerFit(ask.anatomy.model, ask.phase, step, _eager_fit(less) if less is not None else None)


def _function(ask: Ask, function: Any) -> Program:
    """A custom step with taps: jitted with the user's static and donated arguments, or run as a plain function."""
    body = getattr(function, "__wrapped__", None)
    if body is None or not hasattr(function, "lower"):
        return _eager_function(ask)
    options = jit_options(function)
    static = set(options.get("static_argnums", ())), set(options.get("static_argnames", ()))

    def program(traced: Traced, zero: Any, args: Any, kwargs: Any, *, silent: bool) -> Any:
        fixed = {i: value for i, value in enumerate(args) if i in static[0]}
        named = {name: value for name, value in kwargs.items() if name in static[1]}
        varying = (
            {i: value for i, value in enumerate(args) if i not in fixed},
            {name: value for name, value in kwargs.items() if name not in named},
        )

        def fresh(collector: Collector) -> Any:
            def step(positional: Any, keywords: Any) -> Any:
                given = {**fixed, **positional}
                with tagging(ask, collector):
                    return body(*(given[i] for i in range(len(args))), **named, **keywords)

            return step

        return _traced(ask, fresh, varying, zero, traced, silent=silent)

    return Step(program, options)


class JaxAdapter(Adapter):
    name = "jax"

    def why_not(self, model: Any) -> str | None:  # noqa: ARG002
        return (
            "Keras runs its JAX backend through Flax NNX, whose step is not a plain program"
            if nnx_enabled()
            else None
        )

    def tapped(self, ask: Ask) -> Program:
        if ask.function is not None:
            return _function(ask, ask.function)
        model = ask.anatomy.model
        if not model.jit_compile or model.run_eagerly:
            return _eager_fit(ask)

        def program(traced: Traced, state: Any, data: Any, zero: Any, *, silent: bool) -> Any:
            # A fresh function each time: JAX caches traces by the function's identity, and would give back an older
            # one, made without taps.
            def fresh(collector: Collector) -> Any:
                return lambda state, data: _single_step(ask, collector, state, data)

            return _traced(ask, fresh, (state, data), zero, traced, silent=silent)

        return Fit(model, ask.phase, program)

    def lockstep(self) -> bool:
        return jax.process_count() > 1

    def divided(self, harvest: Harvest) -> None:
        if self.lockstep():
            divide(harvest)

    def keeper(self, model: Any, optimizers: Sequence[Any] = ()) -> Keeper:
        return JaxKeeper(model, optimizers)

    def thinned(self, tensor: Any, *, batched: bool) -> Any:
        if spread():  # rows of a tensor on several devices would have to travel between them
            return tensor
        rows, length = as_rows(tensor.shape, batched=batched)
        step = stride(rows, length)
        if step == 1:
            return tensor
        return Thin(tensor.reshape(rows, length)[::step], Known(tuple(tensor.shape)))

    def small(self, tensor: Any) -> bool:
        real = not jnp.issubdtype(tensor.dtype, jnp.complexfloating)
        return not spread() and real and isinstance(tensor, jax.core.Tracer) and tensor.size <= SMALL

    def joined(self, tensors: dict[int, Any]) -> list[tuple[Any, Any]]:
        groups: list[dict[int, Any]] = [{}]
        room = LONGEST
        for number, x in tensors.items():
            size = x.size * x.dtype.itemsize
            if groups[-1] and size > room:
                groups.append({})
                room = LONGEST
            groups[-1][number] = x
            room -= size
        return [_joined(group) for group in groups]

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        if isinstance(tensor, Known):
            return tensor.array
        return assembled(tensor) if isinstance(tensor, Shard) else np.asarray(tensor)

    def nbytes(self, tensor: Any) -> int:
        if isinstance(tensor, Known):
            return 0
        if isinstance(tensor, Shard):
            return math.prod(tensor.extent) * int(tensor.dtype.itemsize)
        return int(tensor.nbytes)

    def settle(self, values: Any) -> None:
        leaves = jax.tree.leaves(values, is_leaf=lambda value: isinstance(value, Iterator))  # over batches
        jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])

    def iterations(self, optimizer: Any) -> int:
        return int(steps_of(optimizer))

    def on_accelerator(self) -> bool:
        return jax.default_backend() != "cpu"


def _joined(tensors: dict[int, Any]) -> tuple[Any, Known]:
    """Tensors as one vector, with their numbers, ranks and shapes."""
    layout = [n for number, x in tensors.items() for n in (number, x.ndim, *x.shape)]
    return jnp.concatenate([x.reshape(-1) for x in tensors.values()]), Known(tuple(layout))


def _unseen(site: Site) -> str:
    if site.base == "gradients":
        return f"{NO_GRADIENT}; or it is computed inside {_INSIDE}"
    return f"it is computed inside {_INSIDE}"


_INSIDE = (
    "a loop, a branch, or a function that JAX compiles or computes again by itself (`jax.jit`, `keras.remat`), "
    "and does not leave it"
)

ADAPTER = JaxAdapter()
