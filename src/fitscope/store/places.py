"""Converts a path, a URL or a store that the user passed to a store.

It reports every problem of a place that can be detected before the training, in the user's words. It creates nothing, so a
scope that is never used leaves no trace.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fitscope.errors import StoreError
from fitscope.store._base import Objects
from fitscope.store.files import Files
from fitscope.store.memory import Memory
from fitscope.store.objects import Remote
from fitscope.store.schema import RUN

#: The kinds of URL that lead to an object store.
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


def place(to: str | os.PathLike[str] | Objects, *, writing: bool = True) -> Objects:
    """The store at `to`; with `writing`, it must be writable, as far as can be checked without writing."""
    if isinstance(to, Objects):
        return to
    if not isinstance(to, (str, os.PathLike)):
        raise StoreError(
            "a directory, a URL or a store",
            f"{to!r}",
            "Name a place for the runs, such as 'runs' or 's3://bucket/runs'",
        )
    text = to if isinstance(to, str) else str(path_of(to, "a directory"))
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _directory(text, writing)
    if scheme == "file":
        return _directory(unquote(urlsplit(text).path), writing)
    if scheme == "memory":
        return Memory.named(rest.strip("/"))
    if scheme in SCHEMES:
        return Remote.at(text)
    known = ", ".join(f"{name}://" for name in ("file", "memory", *SCHEMES))
    raise StoreError(
        "a directory or a URL of a known kind", f"{text!r}", f"Use a plain path, or one of {known}"
    )


def path_of(to: str | os.PathLike[str], what: str) -> Path:
    """An absolute path on this machine, or an error that names what was expected there."""
    try:
        text = os.fspath(to)
        if isinstance(text, str) and "\0" not in os.fsencode(text).decode("latin-1"):
            return Path(text).expanduser().absolute()
        problem = "it is not text" if not isinstance(text, str) else "it contains a null character"
    except (TypeError, UnicodeEncodeError):
        problem = "it is not text that a path can have"
    except (RuntimeError, OSError) as error:  # there is no such user, or the current directory was deleted
        problem = str(error)
    raise StoreError(what, f"{to!r} ({problem})", "Choose another path")


def new_file_at(to: str | os.PathLike[str]) -> Path:
    """The absolute path of a file to write. An existing one must be a regular file: fitscope never replaces a device or a pipe."""
    path = path_of(to, "the name of a file")
    try:
        path = path.resolve()
        kind = path.stat().st_mode
    except FileNotFoundError:
        return path
    except RuntimeError as problem:  # a link to itself, before Python 3.13
        raise OSError(errno.ELOOP, str(problem), str(path)) from problem
    if stat.S_ISDIR(kind):
        raise StoreError("the name of a file", f"the directory {str(path)!r}", "Name a file in it")
    if not stat.S_ISREG(kind):
        raise StoreError("the name of a file", f"{str(path)!r}, a device or a pipe", "Name a file")
    return path


def _directory(text: str, writing: bool) -> Files:
    files = Files(path_of(text, "a directory"))
    there = files.root
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise StoreError(
            "a directory",
            f"{text!r}, where {str(there)!r} is a file",
            "Choose another directory, or move that file away",
        )
    if writing and not os.access(there, os.W_OK | os.X_OK):
        raise StoreError(
            "a directory that can be written to",
            f"{text!r}, where {str(there)!r} is not writable for this user",
            "Choose another directory, or change its permissions",
        )
    return files


def in_utf8(path: str) -> str:
    """The path with a question mark for each byte that is not UTF-8: Arrow, DuckDB and SQLite take nothing else."""
    return path.encode("utf-8", "replace").decode()


def alone(objects: Objects) -> Objects:
    """A run's own objects. A link inside a run came with the run and may lead to any file, so fitscope follows none."""
    return objects.without_links() if isinstance(objects, Files) else objects


def is_local(objects: Objects) -> Path | None:
    """The directory of a local store; None for other stores."""
    return objects.root if isinstance(objects, Files) else None


def existing(to: str | os.PathLike[str] | Objects) -> tuple[str, str] | None:
    """If `to` is itself a run: the place of its runs, and its id. None if it is a place for runs."""
    if isinstance(to, Objects):
        return None
    text = os.fspath(to).rstrip("/")
    runs, _, run_id = text.rpartition("/")
    try:
        is_run = RUN in place(text).list()
    except FileNotFoundError:
        return None
    return (runs or ".", run_id) if is_run else None
