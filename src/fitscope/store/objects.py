"""A store in an object store (S3, Google Cloud, Azure, …), through obstore.

The contract costs nothing here: a PUT is whole, and every later GET returns it. `create` is a conditional PUT,
which S3 has since 2024; a server without it answers with an error rather than with two winners.

obstore is an optional dependency, imported with the first URL. Credentials and endpoints come from
the places where the provider's own tools find them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …); for anything else
make the obstore store yourself: `Remote(obstore.store.S3Store("bucket", …))`.
"""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from fitscope.errors import StoreError
from fitscope.store._base import Data, Objects, within

T = TypeVar("T")

RETRY_SECONDS = 5.0  #: seconds for which obstore repeats a request; `outages` handles longer failures


class Remote(Objects):
    """Objects in an obstore `store`, under `prefix`."""

    def __init__(self, store: Any, *, name: str | None = None, prefix: str = "") -> None:
        self.store = store
        self.name = repr(store) if name is None else name
        self._prefix = prefix
        self._made = [0]  # the number of requests, including those of the folders below

    @classmethod
    def at(cls, url: str) -> Remote:
        """The objects under a URL such as ``s3://bucket/folder``."""
        _obstore(url)
        from obstore.store import from_url

        try:
            return cls(from_url(url, retry_config=_retries()), name=url.rstrip("/"))
        except Exception as problem:  # obstore raises its own kinds, ValueError and OSError alike
            raise StoreError(
                "the URL of an object store", f"{url!r} ({_first_line(problem)})", "Check the address"
            ) from problem

    def __repr__(self) -> str:
        return f"Remote({self.describe()})"

    @property
    def requests(self) -> int:
        return self._made[0]

    def put(self, key: str, data: Data) -> None:
        import obstore

        # fitscope's objects are too small for attributes and multipart uploads: one object, one request
        self._call(lambda: obstore.put(self.store, self._prefix + key, data, use_multipart=False))

    def create(self, key: str, data: Data) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            self._call(
                lambda: obstore.put(self.store, self._prefix + key, data, mode="create", use_multipart=False)
            )
        except AlreadyExistsError:
            return False
        return True

    def get(self, key: str, most: int | None = None) -> bytes:
        import obstore

        found = self._call(lambda: obstore.get(self.store, self._prefix + key))
        within(int(found.meta["size"]), most, self.describe(key))  # the size is known before the body is read
        return self._call(lambda: bytes(found.bytes()), of=0)

    def size(self, key: str) -> int:
        import obstore

        return int(self._call(lambda: obstore.head(self.store, self._prefix + key))["size"])

    def list(self, folder: str = "") -> builtins.list[str]:
        import obstore

        start = f"{self._prefix}{folder}".rstrip("/")
        found = self._call(lambda: obstore.list_with_delimiter(self.store, start or None))
        skip = len(start) + 1 if start else 0
        folders = (str(name)[skip:] + "/" for name in found["common_prefixes"])
        return sorted([*folders, *(str(item["path"])[skip:] for item in found["objects"])])

    def folder(self, name: str) -> Remote:
        inner = Remote(self.store, name=self.name, prefix=f"{self._prefix}{name.rstrip('/')}/")
        inner._made = self._made
        return inner

    def describe(self, key: str = "") -> str:
        return f"{self.name}/{self._prefix}{key}".rstrip("/")

    def _call(self, request: Callable[[], T], of: int = 1) -> T:
        from obstore.exceptions import AlreadyExistsError, BaseError

        self._made[0] += of
        try:
            return request()
        except AlreadyExistsError:
            raise
        except BaseError as problem:
            raise OSError(errno.EIO, f"{self.name}: {_first_line(problem)}") from problem


def _obstore(url: str) -> None:
    try:
        import obstore  # noqa: F401
    except ImportError as problem:
        raise StoreError(
            "obstore to be installed for a run in an object store",
            f"{url!r} and no obstore",
            "Install it: pip install 'fitscope[objects]'",
        ) from problem


def _retries() -> Any:
    """Limits how long obstore repeats a request: by default three minutes, in which the writer could do nothing else."""
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1), "base": 2}
    return {"backoff": backoff, "max_retries": 10, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}


def _first_line(problem: BaseException) -> str:
    """The first line of an obstore message, which is followed by a page of Rust structures."""
    return str(problem).partition("\n")[0]
