"""Random numbers of Python and NumPy in a trace that the user's program does not make.

A step that draws from `random` or `np.random` draws once, when it is traced: the number becomes a constant of the program. A trace of
fitscope draws as well. If it drew from the generators that the whole process shares, everything drawn later would be another number: the
order of the data, the first weights of the next model. Putting the state of the generators back would not do either, because a
thread that loads data may draw at the same time. So inside the block the functions of both modules draw, in this thread alone,
from a copy of the generator.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

_copies = threading.local()  # `.of`: the copies that this thread draws from, by module; only inside a block
_lock = threading.Lock()
_blocks = 0  # the number of blocks that threads are in
_shared: list[tuple[ModuleType, str, Any]] = []  # the functions that are replaced, while there is a block


@contextmanager
def own_draws() -> Iterator[None]:
    """Lets this thread draw from a copy of the generators of `random` and `np.random` inside the block."""
    python, numpy = random.Random(), np.random.RandomState()
    python.setstate(random.getstate())
    numpy.set_state(np.random.get_state())
    outer = getattr(_copies, "of", None)
    _copies.of = outer or {random: python, np.random: numpy}
    _enter()
    try:
        yield
    finally:
        _leave()
        _copies.of = outer


def _enter() -> None:
    global _blocks
    with _lock:
        _blocks += 1
        if _blocks > 1:
            return
        for module, owner in ((random, random._inst), (np.random, np.random.mtrand._rand)):
            for name, function in list(vars(module).items()):
                if getattr(function, "__self__", None) is owner or (module, name) == (np.random, "seed"):
                    _shared.append((module, name, function))
                    setattr(module, name, _by_thread(module, name, function))


def _leave() -> None:
    global _blocks
    with _lock:
        _blocks -= 1
        while not _blocks and _shared:
            setattr(*_shared.pop())


def _by_thread(module: ModuleType, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        copies = getattr(_copies, "of", None)
        return (function if copies is None else getattr(copies[module], name))(*args, **kwargs)

    return drawn
