"""Everything that depends on the version of another package. No other module checks a version."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import Any

#: The first version of each framework that no test has run with. It may still work: `make matrix` tries.
UNSEEN = {"keras": (3, 16), "jax": (0, 13), "tensorflow": (2, 22), "torch": (2, 14)}


def versions(*names: str) -> str:
    """The versions of the loaded packages, for an error or a warning: `jax 0.10.2, keras 3.15.0`."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def unseen(*names: str) -> str:
    """The frameworks that are newer than every tested version, with their versions; empty if there is none."""
    return ", ".join(
        f"{name} {version}"
        for name in names
        if (version := str(getattr(sys.modules.get(name), "__version__", "")))
        and _number(version) >= UNSEEN[name]
    )


def _number(version: str) -> tuple[int, ...]:
    found = [part for part in version.split(".")[:2] if part.isdigit()]
    return tuple(int(part) for part in found)


def copy_keras_mask(source: Any, target: Any) -> None:
    """Gives a tensor the mask that Keras keeps with another. Keras 3.16 moved the functions for it."""
    for name in ("keras.src.backend", "keras.src.backend.common.masking"):
        module = importlib.import_module(name)
        if hasattr(module, "get_keras_mask"):
            mask = module.get_keras_mask(source)
            if mask is not None:
                module.set_keras_mask(target, mask)
            return
    mask = getattr(source, "_keras_mask", None)
    if mask is not None:
        target._keras_mask = mask


def nnx_enabled() -> bool:
    """Whether Keras runs its JAX backend through Flax NNX. A Keras without this switch does not."""
    config = importlib.import_module("keras.src.backend.config")
    return bool(getattr(config, "is_nnx_enabled", lambda: False)())


def jax_bind(eqn: Any, values: list[Any]) -> list[Any]:
    """Runs one equation of a traced JAX program."""
    # JAX 0.10 moved the parameters of sub-programs into a separate dict; before, they came as positional functions.
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        if isinstance(bind_params, tuple):
            subfuns, params = bind_params
            results = eqn.primitive.bind(*subfuns, *values, **params)
        else:
            results = eqn.primitive.bind(*values, **bind_params)
    return list(results) if eqn.primitive.multiple_results else [results]


def jit_options(function: Any) -> dict[str, Any]:
    """The arguments that a function was jitted with, as far as JAX reports them."""
    info = getattr(function, "_jit_info", None)
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    return {name: getattr(info, name) for name in names if getattr(info, name, None)}


def jax_differentiators(jax: Any, api: Any) -> list[tuple[Any, str]]:
    """The functions to patch to see every function that is differentiated: an owner (`jax`, or `jax._src.api`) and a name in it.

    Since JAX 0.10 all gradient functions call `vjp` of one module at run time. In older versions fitscope patches the public functions that
    make gradient functions.
    """
    code = inspect.unwrap(api.value_and_grad).__code__
    made = [inner for inner in code.co_consts if hasattr(inner, "co_names")]
    if hasattr(api, "vjp") and any("vjp" in code.co_names for code in made):
        return [(api, "vjp")]
    return [(jax, "value_and_grad"), (jax, "grad")]


def jax_traced_apart(jax: Any, number: int) -> Any:
    """A block in which JAX neither finds nor leaves a trace of a nested function, unless it was made under the same number.

    JAX keeps traces by function and context. Every version has this number in its context; it means something to some compilers, and
    nothing is compiled in the block.
    """
    config = importlib.import_module("jax._src.config")
    number_of = getattr(config, "jax_xla_profile_version", None)
    return number_of(number) if number_of is not None else _jax_context(jax)(number)


@functools.cache
def _jax_context(jax: Any) -> Any:
    """The public form, since JAX 0.8. It must be made while no other thread uses JAX, so it is the second choice."""
    return jax.make_user_context(0)


def jax_store() -> Any:
    """The key-value store of `jax.distributed`, which JAX does not make public; None if there is none."""
    state = getattr(importlib.import_module("jax._src.distributed"), "global_state", None)
    store = getattr(state, "client", None)
    return store if hasattr(store, "key_value_set") and hasattr(store, "blocking_key_value_get") else None


def torch_store() -> Any:
    """The key-value store of the default process group of `torch.distributed`; None if it cannot be had."""
    find = getattr(importlib.import_module("torch.distributed.distributed_c10d"), "_get_default_store", None)
    store = find() if find is not None else None
    return store if hasattr(store, "compare_set") else None


def torch_compile_apart(torch: Any, function: Any, **options: Any) -> Any:
    """Compiles a function without counting against the limits of the user's own.

    After some recompilations of a function torch runs it eagerly, which rounds differently. By default it counts the recompilations of all
    functions with the same code. Older versions have no option to count them separately.
    """
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    return torch.compile(function, **options)


def torch_in_backward(torch: Any) -> bool:
    """Whether this thread is inside a backward pass of autograd. False if this torch cannot tell."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and bool(task() != -1)
