"""The contract of a store: whole objects under keys, and nothing else.

A run is only ever written through these six calls. So a directory and an object store look the same to the rest of fitscope, and
these calls decide what a crash can do.

An implementation promises:

* **Whole.** `put` replaces an object atomically. A reader of the key, at any moment and in any process,
  gets the complete old object or the complete new one. If `put` raises, the key still holds what it held
  before.
* **In order.** When `put` has returned, every later `get`, by any process, sees that object or a newer one. A
  writer that puts B after A was put may rely on this: no reader sees B without A. The run's commit order depends on this.
* **Once.** If many processes call `create` for one key, exactly one of the calls returns True.
* **No residue.** Temporary files of an implementation are never listed.

Nothing is appended, nothing is changed in place, nothing is deleted: there are no calls for it.

Keys are relative, separated by ``/``, without empty, ``.`` or ``..`` parts. Errors are OSError:
FileNotFoundError where there is no such object, the file system's own errno where there is one. Every
implementation may be used from several threads, can be pickled unless it lives in this process's memory,
and owns nothing that must be closed.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod

Data = bytes | bytearray | memoryview


class Objects(ABC):
    """Whole objects under keys. The module lists what an implementation promises."""

    @property
    def requests(self) -> int | None:
        """The number of requests so far, if the store charges for them; else None."""
        return None

    @abstractmethod
    def put(self, key: str, data: Data) -> None:
        """Stores `data` under `key` and replaces any earlier object."""

    @abstractmethod
    def create(self, key: str, data: Data) -> bool:
        """Puts only if the key is free. Otherwise returns False and changes nothing."""

    @abstractmethod
    def get(self, key: str, most: int | None = None) -> bytes:
        """The object under `key`. OSError (EFBIG), before any of it is read, if it has more than `most` bytes."""

    @abstractmethod
    def size(self, key: str) -> int:
        """The bytes of the object under `key`."""

    @abstractmethod
    def list(self, folder: str = "") -> list[str]:
        """The names directly in `folder`, sorted. Names of folders end with ``/``."""

    @abstractmethod
    def folder(self, name: str) -> Objects:
        """The objects under `name/`, with keys relative to it."""

    @abstractmethod
    def describe(self, key: str = "") -> str:
        """The place of the object, for people: a path or a URL."""


def within(size: int, most: int | None, where: str) -> None:
    """Refuses an object that is too large for its reader."""
    if most is not None and size > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, more than the {most:,} that are read", where)
