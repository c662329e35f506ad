"""Everything that depends on the version of something else. No other file checks a version."""

from __future__ import annotations

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
    """How a function was given to `jax.jit`, as far as JAX tells."""
    info = getattr(function, "_jit_info", None)
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    return {name: getattr(info, name) for name in names if getattr(info, name, None)}
