"""Everything that depends on the version of another package. No other module checks a version."""

from __future__ import annotations

import inspect
from typing import Any


def jax_bind(eqn: Any, values: list[Any]) -> list[Any]:
    """Runs one equation of a traced JAX program."""
    # JAX 0.10 moved the parameters of sub-programs into a dict of their own; before, they came as positional functions.
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
