"""The compiler support of the kernel: compilation, a cache on disk, and two instructions.

numba caches machine code per source file and compiles again when that file changes. It does not notice changes of other files. So
all code that affects numbers is in `kernel`, and none is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[F], F]:
    """njit with a cache on disk if possible, and without one otherwise."""

    def compile_(function: F) -> F:
        try:
            dispatcher = njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # neither the directory of the source nor the user's cache is writable
            dispatcher = njit(error_model="numpy", **options)(function)
        cache = dispatcher._cache  # numba 0.61–0.68 raises errors of the disk in the first call
        cache.load_overload = _unless_lost(cache.load_overload)
        cache.save_overload = _unless_lost(cache.save_overload)
        return dispatcher  # type: ignore[no-any-return]

    return compile_


def _unless_lost(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or None instead of any error. Both ways read from the cache.

    A disk may be full, a folder gone, a file cut short by a power failure. And a process with another numba may have written its code
    in between: then any name in it may be missing.
    """

    def wrapper(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            return None

    return wrapper


@intrinsic  # type: ignore[untyped-decorator]
def fetch(context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Prefetches the cache line of an element that will be needed soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (address.type,), kind)
        # arguments: for reading, keep near, data cache.
        builder.call(prefetch, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic  # type: ignore[untyped-decorator]
def writable(context: Any, array: Any) -> Any:  # noqa: ARG001
    """The array, typed as writable.

    For numba this is part of the type. With it, a block of the array and a copy of that block have one type, so everything is
    compiled once.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return array.copy(readonly=False)(array), generate
