"""The destination of an export: a file that appears complete or not at all, or a directory.

An export overwrites nothing without `force`. With it, it replaces regular files only, never a directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from fitscope.errors import StoreError
from fitscope.store.places import new_file_at
from fitscope.store.schema import site_path

_LONGEST = 120  # a name still gets a number and an ending, and most file systems allow 255 bytes


@contextlib.contextmanager
def new_file(out: Path, force: bool) -> Iterator[Path]:
    """A temporary path to write to, which becomes `out` unless an error occurs."""
    out = new_file_at(out)
    if out.exists() and out.stat().st_size and not force:
        raise _exists(f"{str(out)!r}, which exists")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".fitscope-{uuid.uuid4().hex}")
    try:
        yield unfinished
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)


def beside(out: Path, name: str) -> Path:
    """The file for a second table: `run.samples.parquet` for `run.parquet`."""
    return out.with_name(f"{out.stem}.{name}{out.suffix}")


def folder(out: Path, force: bool) -> Path:
    """A directory to write to, created if it does not exist."""
    if out.exists() and not out.is_dir():
        raise StoreError("a directory", f"{str(out)!r}, a file", "Choose another name")
    if out.exists() and any(out.iterdir()) and not force:
        raise _exists(f"{str(out)!r}, which is not empty")
    out.mkdir(parents=True, exist_ok=True)
    return out


def flat(name: str) -> str:
    """A name as one part of a file name: ``/`` becomes ``~``, unusual characters are percent-encoded.

    Different names stay different; a name that is too long is cut and gets a hash.
    """
    text = site_path(name).replace("/", "~")
    if len(text) > _LONGEST:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        text = f"{text[:60]}+{digest}"
    return text


def _exists(what: str) -> StoreError:
    return StoreError(
        "a place for something new", what, "Choose another, or force=True (--force) to replace it"
    )
