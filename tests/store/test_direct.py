"""Large objects go to the disk past the page cache: the same bytes, whatever their number, and the same errors."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fitscope.store import Files, direct

SIZES = [0, 1, direct.FROM - 1, direct.FROM, direct.FROM + 1, direct.FROM + direct.BLOCK, (9 << 20) + 123]


@pytest.fixture
def here() -> Any:
    """A directory on the disk that the tests run from: in memory there is nothing to go past."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        yield Path(folder)


def some(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("durable", [False, True])
def test_written_data_can_be_read(here: Path, size: int, durable: bool) -> None:
    store, data = Files(here, durable=durable), some(size)
    store.put("a", data)
    assert store.get("a") == data
    assert store.size("a") == size
    store.put("a", data[::-1])  # over it
    assert store.get("a") == data[::-1]


def test_large_data_is_written_directly(here: Path) -> None:
    fd = os.open(here / "f", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl = pytest.importorskip("fcntl")
        before = fcntl.fcntl(fd, fcntl.F_GETFL)
        written = direct.write(fd, memoryview(some(direct.FROM + 7)))
        assert written in (0, direct.FROM)  # nothing, where the file system has no such thing
        assert fcntl.fcntl(fd, fcntl.F_GETFL) == before
        assert os.lseek(fd, 0, os.SEEK_CUR) == written
    finally:
        os.close(fd)


def test_unaligned_arrays_are_written_whole(here: Path) -> None:
    array = np.frombuffer(b"x" + some(3 << 20), np.uint8)[1:]
    Files(here).put("a", array.data)
    assert Files(here).get("a") == array.tobytes()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_direct_writes_gets_normal_ones(
    here: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    data, real = some((9 << 20) + 5), os.write
    calls = []

    def write(fd: int, piece: Any) -> int:
        calls.append(len(piece))
        if len(calls) == 2:  # after the first piece
            raise OSError(code, "no")
        return real(fd, piece)

    monkeypatch.setattr(os, "write", write)
    Files(here).put("a", data)
    monkeypatch.undo()
    assert Files(here).get("a") == data


def test_a_full_disk_raises_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(fd: int, piece: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="full"):
        Files(here).put("a", some(5 << 20))
    monkeypatch.undo()
    assert Files(here).list() == []
    assert list((here / ".tmp").iterdir()) == []
    Files(here).put("a", some(5 << 20))  # and the next one is none the worse
    assert Files(here).get("a") == some(5 << 20)


def test_several_threads_write_at_once(here: Path) -> None:
    store = Files(here)

    def work(name: str) -> None:
        for _ in range(5):
            store.put(name, some(3 << 20) + name.encode())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [f"t{n}" for n in range(4)]))
    assert all(store.get(f"t{n}") == some(3 << 20) + f"t{n}".encode() for n in range(4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_has_a_separate_buffer(here: Path) -> None:
    """One that is shared would mix what two processes write at the same time."""
    Files(here).put("first", some(direct.FROM))
    if direct._buffer is None:
        pytest.skip("this file system has no direct writes")
    direct._buffer[:5] = b"ours!"
    child = os.fork()
    if not child:
        direct._buffer[:5] = b"child"
        os._exit(0)
    os.waitpid(child, 0)
    assert direct._buffer[:5] == b"ours!"
