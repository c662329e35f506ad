"""Supports a second run of a JAX step: keeps the arguments that the first run uses up, and compares two runs.

A step is a function of its arguments, so a second run only needs arguments that still exist. The donated state of the user's own
program is copied for the run that does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fitscope.capture.backends._base import Call, Held
from fitscope.capture.bits import same_bits


class HeldArguments(Held):
    """The arguments of a function; another run needs copies of those that a run uses up."""

    def __init__(self, call: Call, copy: Any) -> None:
        self._call = call
        self._copy = copy
        self._saved: Call | None = None

    def save(self) -> None:
        self._saved = self._copy()
        jax.block_until_ready(_arrays(self._saved))  # if memory runs out, this raises

    def call(self) -> Call:
        return self._call

    def rehearsal(self) -> Call:
        assert self._saved is not None
        saved, self._saved = self._saved, None
        return saved

    def after(self, result: Any) -> Any:
        jax.block_until_ready(_arrays(result))
        return result

    def result(self, after: Any) -> Any:
        return after

    def numbers(self, after: Any) -> int:
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(after))

    def same(self, one: Any, other: Any) -> str | None:
        return _differing(one, other)


class HeldBatches(HeldArguments):
    """The state and the batches of a call of Keras's own step."""

    def __init__(self, state: Any, batches: list[Any]) -> None:
        super().__init__(Call((), {}), lambda: Call((copied(state), iter(batches)), {}))
        self.state = state
        self.batches = batches
        self.signature = signature(batches)

    def call(self) -> Call:
        return Call((self.state, iter(self.batches)), {})


def held_batches(model: Any, call: Call) -> HeldBatches:
    """Draws the batches of one call of Keras's own step, and holds them. Raises the errors of drawing."""
    state, iterator = call.args
    batches = list(itertools.islice(iterator, model.steps_per_execution))
    if not batches:
        raise StopIteration
    return HeldBatches(state, batches)


def _arrays(tree: Any) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda value: isinstance(value, Iterator))  # over batches
    return [leaf for leaf in leaves if isinstance(leaf, jax.Array)]


def used_up(tree: Any) -> bool:
    return any(array.is_deleted() for array in _arrays(tree))


def copied(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: _copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def _copy(array: jax.Array) -> jax.Array:
    """A separate copy in memory. `Array.copy` compiles a program for each shape; `device_put` does not.

    No device is named: that would commit the array to it, and JAX compiles a program again for committed arguments.
    """
    if len(array.sharding.device_set) > 1:
        return array.copy()
    return jax.device_put(array, may_alias=False)


def signature(tree: Any) -> Hashable:
    """The shapes and dtypes of the arguments. JAX compiles one program for each combination."""
    leaves, structure = jax.tree.flatten(tree)
    # Making the text of a dtype would take longer than everything else here.
    return structure, tuple([(np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in leaves])


def _differing(one: Any, other: Any) -> str | None:
    """The number of arrays in two structures that differ in any bit, as text; None if none does."""
    left, right = jax.tree.flatten_with_path(one)[0], jax.tree.leaves(other)
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} arrays came back"
    found = [jax.tree_util.keystr(path) for (path, a), b in zip(left, right, strict=True) if not _same(a, b)]
    return f"{len(found)} of {len(left)} arrays differ, first result{found[0]}" if found else None


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, jax.Array) or not isinstance(b, jax.Array):
        return bool(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=np.asarray(a).dtype.kind in "fc"))
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    if a.dtype != b.dtype or a.shape != b.shape or not a.sharding.is_equivalent_to(b.sharding, a.ndim):
        return False
    if all(device.platform == "cpu" for device in a.devices() | b.devices()):
        return all(
            same_bits(np.asarray(x.data), np.asarray(y.data))
            for x, y in zip(_shards(a), _shards(b), strict=False)
        )
    return same_on_device(a, b)


def _shards(array: Any) -> list[Any]:
    return sorted(array.addressable_shards, key=lambda shard: shard.device.id)


def same_on_device(a: Any, b: Any) -> bool:
    """Compares like `_differing`, without a copy to this machine's memory."""
    if a.dtype == jnp.bool_ or jnp.issubdtype(a.dtype, jnp.complexfloating):
        return bool(jnp.array_equal(a, b, equal_nan=a.dtype != jnp.bool_))
    bits = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    left, right = (jax.lax.bitcast_convert_type(x, bits) for x in (a, b))
    both_nan = jnp.isnan(a) & jnp.isnan(b)
    return bool(((left == right) | both_nan).all())
