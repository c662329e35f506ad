"""A store in this process's memory, for tests, experiments and temporary runs.

It fulfils the contract of a store, except that it ends with the process and cannot be pickled.
"""

from __future__ import annotations

import builtins
import threading

from fitscope.store._base import Data, Objects, within


class Memory(Objects):
    """Objects in a dictionary. `Memory.named` returns the same store to all code in this process."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._prefix = ""
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Memory({self.name!r})" if self.name else "Memory()"

    @staticmethod
    def named(name: str) -> Memory:
        """The store behind ``memory://name``."""
        return _named.setdefault(name, Memory(name))

    def put(self, key: str, data: Data) -> None:
        self._objects[self._prefix + key] = bytes(data)

    def create(self, key: str, data: Data) -> bool:
        with self._lock:
            if self._prefix + key in self._objects:
                return False
            self.put(key, data)
            return True

    def get(self, key: str, most: int | None = None) -> bytes:
        try:
            data = self._objects[self._prefix + key]
        except KeyError:
            raise FileNotFoundError(f"nothing at {self.describe(key)}") from None
        within(len(data), most, self.describe(key))
        return data

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, folder: str = "") -> builtins.list[str]:
        start = self._prefix + (f"{folder.rstrip('/')}/" if folder else "")
        names = set()
        for key in tuple(self._objects):
            if key.startswith(start):
                name, slash, _ = key[len(start) :].partition("/")
                names.add(name + slash)
        return sorted(names)

    def folder(self, name: str) -> Memory:
        inner = Memory(self.name)
        inner._prefix = f"{self._prefix}{name.rstrip('/')}/"
        inner._objects, inner._lock = self._objects, self._lock
        return inner

    def describe(self, key: str = "") -> str:
        return f"memory://{self.name}/{self._prefix}{key}".rstrip("/")


_named: dict[str, Memory] = {}
