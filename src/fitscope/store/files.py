"""A store in a local directory, with plain system calls.

An object is written to a temporary file and renamed, which POSIX makes atomic. `create` uses a hard link, which fails if the name
is taken. The page cache survives the death of a process, so written data survives `kill -9` without fsync. It may not survive a
power cut: with `durable=True` each object is on the disk, including its name, before `put` returns. That costs more than half of
the write speed, so it is not the default. If only the sync of the name fails, `put` raises although readers find the new object: a
power cut could take it.

Temporary files are in `.tmp/` at the top of the directory, not next to their target, because `pandas.read_parquet(directory)`
lists a directory and then opens every file. A killed process may leave one there; the next writer removes it.

The store follows symbolic links, because a user who names a directory means its contents. Links inside a run came with the run:
a reader of the run uses `links=False`, and so does a server that shows a directory to others.
"""

# Plain calls: one put is four of them, and pathlib would double its cost.
# ruff: noqa: PTH102, PTH103, PTH105, PTH108, PTH112, PTH114, PTH116, PTH120

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from fitscope.store import direct
from fitscope.store._base import Data, Objects, within

STAGE = ".tmp"
STALE_SECONDS = 24 * 3600.0  # far beyond any single write: no temporary file in use is removed

_serial = itertools.count()


class Files(Objects):
    """Objects as files under `root`, which is created with the first object.

    With `links=False` it neither lists nor reads the targets of symbolic links below `root`.
    """

    def __init__(self, root: str | os.PathLike[str], *, durable: bool = False, links: bool = True) -> None:
        self.root = Path(root).expanduser().absolute()
        self.durable = durable
        self.links = links
        self._top = self.root  # the directory that the user named: a link on the way there is intended
        self._stage_folder = f"{self.root}{os.sep}{STAGE}"
        self._swept = False

    def __repr__(self) -> str:
        return f"Files({str(self.root)!r}{', durable=True' if self.durable else ''})"

    def put(self, key: str, data: Data) -> None:
        target = self._path(key)
        staged = self._stage(data)
        try:
            self._into_place(os.replace, staged, target)
        except BaseException:
            _remove(staged)
            raise

    def create(self, key: str, data: Data) -> bool:
        target = self._path(key)
        staged = self._stage(data)
        try:
            self._into_place(_link, staged, target)
        except FileExistsError:
            return False
        finally:
            _remove(staged)
        return True

    def get(self, key: str, most: int | None = None) -> bytes:
        path = self._readable(key)
        try:
            # Not blocking: opening a pipe would wait for a writer.
            fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
            with open(fd, "rb", buffering=0) as file:
                size = _regular(os.fstat(fd), path)
                within(size, most, path)
                # At most this, even if the file grows meanwhile.
                return file.read() if most is None else file.read(size)
        # An object store does not tell these apart.
        except (NotADirectoryError, IsADirectoryError) as problem:
            raise FileNotFoundError(*problem.args, problem.filename) from problem

    def size(self, key: str) -> int:
        path = self._readable(key)
        return _regular(os.stat(path), path)

    def list(self, folder: str = "") -> builtins.list[str]:
        try:
            with os.scandir(self._readable(folder)) as entries:
                return sorted(
                    e.name + "/" * _is_folder(e)
                    for e in entries
                    if e.name != STAGE and (self.links or not e.is_symlink())
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            if problem.errno == errno.ELOOP:  # a link to itself has no target
                return []
            raise

    def folder(self, name: str) -> Files:
        inner = Files(self.root / name, durable=self.durable, links=self.links)
        inner._top = self._top
        inner._stage_folder = self._stage_folder  # never in a folder that other tools list
        return inner

    def without_links(self) -> Files:
        """The same directory as a store that follows no link below it."""
        if not self.links:
            return self
        same = Files(self.root, durable=self.durable, links=False)
        same._stage_folder = self._stage_folder
        return same

    def describe(self, key: str = "") -> str:
        return str(self.root / key)

    def staged(self, name: str) -> str:
        """The path of a new temporary file, which no reader lists."""
        return f"{self._stage_folder}{os.sep}{os.getpid()}-{next(_serial)}-{name}"

    def _path(self, key: str) -> str:
        return f"{self.root}{os.sep}{key}"

    def _readable(self, key: str = "") -> str:
        """The path of an object to read. A key that leads out of the directory does not exist."""
        if ".." in key.split("/") or "\0" in key:
            raise FileNotFoundError(
                errno.ENOENT, "the path leads out of the directory or contains a null character", key
            )
        path = self._path(key) if key else str(self.root)
        if not self.links:
            way = str(self._top)
            for name in Path(path).relative_to(self._top).parts:
                way = f"{way}{os.sep}{name}"
                if os.path.islink(way):
                    raise FileNotFoundError(
                        errno.ENOENT,
                        "it is a symbolic link, which fitscope does not follow inside a run",
                        way,
                    )
        return path

    def _stage(self, data: Data) -> str:
        """Writes `data` to a separate temporary file and returns its name."""
        stage = self._stage_folder
        name = f"{stage}{os.sep}{os.getpid()}-{next(_serial)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        if not self._swept:
            os.makedirs(stage, exist_ok=True)
            _sweep(stage)
            self._swept = True
        try:
            fd = os.open(name, flags, 0o666)
        except FileNotFoundError:  # `.tmp`, or the whole directory, was deleted
            os.makedirs(stage, exist_ok=True)
            fd = os.open(name, flags, 0o666)
        try:
            rest = memoryview(data).cast("B")
            rest = rest[direct.write(fd, rest) :]
            while rest:
                rest = rest[os.write(fd, rest) :]  # one call writes at most 2 GB
            if self.durable:
                os.fsync(fd)
        except BaseException:
            os.close(fd)
            _remove(name)
            raise
        os.close(fd)
        return name

    def _into_place(self, move: Callable[[str, str], None], staged: str, target: str) -> None:
        try:
            move(staged, target)
        except FileNotFoundError:
            # The folder is missing: cheaper to fail once per folder than to check before every put.
            self._make_folder(os.path.dirname(target))
            move(staged, target)
        if self.durable:
            _fsync_folder(os.path.dirname(target))

    def _make_folder(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for name in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name)
            if self.durable:
                _fsync_folder(os.path.dirname(name))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder. A link to itself is none. One that cannot be examined counts: reading it raises the error."""
    try:
        return entry.is_dir()
    except OSError as problem:
        return problem.errno != errno.ELOOP


def _regular(found: os.stat_result, path: str) -> int:
    """The bytes of a regular file. It refuses pipes, sockets and devices, because reading one may never end."""
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return found.st_size


def _link(staged: str, target: str) -> None:
    """Renames a file without replacing another."""
    try:
        os.link(staged, target)
    except OSError as problem:
        if problem.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
            raise
        # No hard links here (FAT, some network shares). Claim the name, then fill it: a reader may for an
        # instant see an empty object, which it takes for one that is not there yet.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.replace(staged, target)


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


def _sweep(stage: str) -> None:
    """Deletes old temporary files of killed processes."""
    with contextlib.suppress(OSError), os.scandir(stage) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > STALE_SECONDS:
                    os.unlink(entry.path)


def _fsync_folder(folder: str) -> None:
    if os.name == "nt":  # Windows cannot open a directory
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
