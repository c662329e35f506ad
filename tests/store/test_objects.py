"""The contract of a store, sentence by sentence, for every store there is."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fitscope.errors import StoreError
from fitscope.store import Files, Memory, Objects, Remote, place


def test_get_returns_what_was_put(objects: Objects) -> None:
    objects.put("a/b/c.json", b"one")
    assert objects.get("a/b/c.json") == b"one"
    assert objects.size("a/b/c.json") == 3


def test_put_replaces_an_object(objects: Objects) -> None:
    objects.put("k", b"first")
    objects.put("k", b"")
    assert objects.get("k") == b""
    assert objects.size("k") == 0
    assert objects.list() == ["k"]


def test_put_takes_any_buffer(objects: Objects) -> None:
    objects.put("a", bytearray(b"abc"))
    objects.put("b", memoryview(b"xabcx")[1:4])
    assert objects.get("a") == objects.get("b") == b"abc"


def test_a_missing_object_raises_file_not_found(objects: Objects) -> None:
    with pytest.raises(FileNotFoundError):
        objects.get("nothing/here")
    with pytest.raises(FileNotFoundError):
        objects.size("nothing/here")
    assert objects.list() == []
    assert objects.list("nothing/here") == []


def test_an_object_is_created_only_once(objects: Objects) -> None:
    assert objects.create("a/0", b"mine") is True
    assert objects.create("a/0", b"yours") is False
    assert objects.get("a/0") == b"mine"
    assert objects.list("a") == ["0"]


def test_of_many_creators_one_wins(objects: Objects) -> None:
    barrier = threading.Barrier(8)

    def attempt(number: int) -> bool:
        barrier.wait()
        return objects.create("prize", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(8)))
    assert sum(won) == 1
    assert objects.get("prize") == b"%d" % won.index(True)


def test_list_returns_one_level(objects: Objects) -> None:
    for key in ("run/a/1", "run/a/2", "run/b", "run2/c", "top"):
        objects.put(key, b"x")
    assert objects.list() == ["run/", "run2/", "top"]
    assert objects.list("run") == ["a/", "b"]
    assert objects.list("run/a") == ["1", "2"]
    assert objects.list("ru") == []


def test_folder_is_a_view(objects: Objects) -> None:
    inner = objects.folder("x").folder("y")
    inner.put("z", b"1")
    assert objects.get("x/y/z") == b"1"
    assert objects.folder("x/y").get("z") == b"1"
    assert inner.list() == ["z"]
    assert inner.create("z", b"2") is False
    assert inner.describe("z").endswith("x/y/z")


def test_keys_with_special_characters_are_kept(objects: Objects) -> None:
    for key in ("a+1/data/c.0.0", "%2E%2E/x", "dense%232/y", "+/z", "A_b-c.d/w"):
        objects.put(key, key.encode())
    for key in ("a+1/data/c.0.0", "%2E%2E/x", "dense%232/y", "+/z", "A_b-c.d/w"):
        assert objects.get(key) == key.encode()
    assert objects.list() == sorted(["a+1/", "%2E%2E/", "dense%232/", "+/", "A_b-c.d/"])


def test_readers_never_see_half_an_object(objects: Objects) -> None:
    size, rounds = (300_000, 60) if not isinstance(objects, Remote) else (100_000, 15)
    objects.put("k", bytes(size))
    stop, seen = threading.Event(), threading.Semaphore(0)

    def watch() -> None:
        while not stop.is_set():
            data = objects.get("k")
            assert len(data) == size
            assert data.count(data[:1]) == size, f"it begins with {data[:4]!r}"
            seen.release()

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(watch) for _ in range(2)]
        try:
            for number in range(rounds):
                objects.put("k", bytes([number]) * size)
            assert seen.acquire(timeout=30), "nothing was read"
        finally:
            stop.set()
        for reader in readers:
            reader.result()


@pytest.mark.parametrize("durable", [False, True])
def test_files_leave_nothing_behind(tmp_path: Path, durable: bool) -> None:
    files = Files(tmp_path / "runs", durable=durable)
    for number in range(5):
        files.put(f"stats/part-{number}", b"x")
        files.create("once", b"x")
    files.folder("stats").put("more", b"x")
    left = [path for path in tmp_path.rglob("*") if ".tmp" in path.parts and path.is_file()]
    assert left == []
    # staged at the top, never in a folder that other tools list
    assert [path.parent.name for path in tmp_path.rglob(".tmp")] == ["runs"]


def test_files_removes_temporary_files_of_dead_processes(tmp_path: Path) -> None:
    import os
    import time

    stage = tmp_path / ".tmp"
    stage.mkdir()
    old, new = stage / "1-1", stage / "1-2"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 90_000,) * 2)
    Files(tmp_path).put("k", b"x")
    assert not old.exists()
    assert new.exists()


def test_a_file_system_without_hard_links_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", refuse)
    files = Files(tmp_path)
    assert files.create("k", b"1") is True
    assert files.create("k", b"2") is False
    assert files.get("k") == b"1"


def test_files_do_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = Files("runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    files.put("k", b"1")
    assert (tmp_path / "runs" / "k").read_bytes() == b"1"


def test_pickled_files_are_the_same_place(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put("k", b"1")
    assert pickle.loads(pickle.dumps(files)).get("k") == b"1"


def test_a_failed_put_changes_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put("folder/k", b"old")
    with pytest.raises(OSError):  # noqa: PT011 - which errno is the file system's affair
        files.put("folder", b"a folder is in the way")
    with pytest.raises(OSError):  # noqa: PT011
        files.put("folder/k/below-a-file", b"x")
    assert files.get("folder/k") == b"old"
    assert list((tmp_path / ".tmp").iterdir()) == []


class TestPlace:
    def test_place_returns_the_store_for_a_path_a_url_or_a_store(self, tmp_path: Path) -> None:
        assert isinstance(place(tmp_path), Files)
        assert isinstance(place(str(tmp_path / "new" / "deep")), Files)
        assert place(f"file://{tmp_path}/a%20b").describe() == str(tmp_path / "a b")
        store = Memory()
        assert place(store) is store
        assert isinstance(place("s3://bucket/runs"), Remote)

    def test_place_creates_no_directory(self, tmp_path: Path) -> None:
        place(tmp_path / "new")
        assert list(tmp_path.iterdir()) == []

    def test_memory_is_shared_by_name(self) -> None:
        place("memory://shared").put("k", b"1")
        assert place("memory://shared").get("k") == b"1"
        assert place("memory://other").list() == []

    def test_a_path_that_is_a_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("x")
        with pytest.raises(StoreError, match=r"Expected a directory\. Received: .*is a file\. Choose"):
            place(tmp_path / "f")
        with pytest.raises(StoreError, match="is a file"):
            place(tmp_path / "f" / "runs")

    def test_a_path_that_is_not_writable_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.access", lambda *_: False)  # the tests may run as root, who may do everything
        with pytest.raises(StoreError, match="not writable"):
            place(tmp_path / "runs")
        assert place(tmp_path / "runs", writing=False)

    def test_an_unknown_scheme_is_an_error(self) -> None:
        with pytest.raises(StoreError, match=r"ftp://somewhere.*one of file://, memory://, s3://"):
            place("ftp://somewhere")

    def test_an_object_that_is_not_a_place_is_an_error(self) -> None:
        with pytest.raises(StoreError, match="Received: 42"):
            place(42)  # type: ignore[arg-type]

    def test_a_url_without_obstore_names_the_package(self) -> None:
        code = (
            "import sys; sys.modules['obstore'] = None\n"
            "from fitscope.store import place\n"
            "try: place('s3://bucket')\n"
            "except Exception as problem: print(type(problem).__name__, problem)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert out.startswith("StoreError")
        assert "pip install 'fitscope[objects]'" in out


@pytest.mark.parametrize("links", [True, False])
def test_symbolic_links_are_followed_unless_disabled(tmp_path: Path, links: bool) -> None:
    outside = Files(tmp_path / "outside")
    for key in ("one/deep/k", "file"):
        outside.put(key, b"secret")
    Files(tmp_path / "inside").put("run/own/k", b"ours")
    (tmp_path / "inside/linked").symlink_to(tmp_path / "outside")
    (tmp_path / "inside/run/deep").symlink_to(tmp_path / "outside/one/deep")
    (tmp_path / "inside/run/file").symlink_to(tmp_path / "outside/file")
    (tmp_path / "named").symlink_to(tmp_path / "inside")
    inside = Files(tmp_path / "named", links=links)
    assert inside.get("run/own/k") == b"ours", "the directory that was named may be a link"
    assert inside.list("run/own/") == ["k"]
    assert inside.list() == (["linked/", "run/"] if links else ["run/"])
    assert inside.folder("run").list() == (["deep/", "file", "own/"] if links else ["own/"])
    for folder, key in (("", "linked/one/deep/k"), ("linked", "file"), ("run", "deep/k"), ("run/deep", "k"),
                        ("run", "file")):  # fmt: skip
        there = inside.folder(folder) if folder else inside
        if links:
            assert there.get(key) == b"secret"
            assert there.size(key) == 6
        else:
            for read in (there.get, there.size):
                with pytest.raises(FileNotFoundError):
                    read(key)
    for store, folder in ((inside, "linked"), (inside.folder("linked"), ""), (inside.folder("run"), "deep/")):
        assert bool(store.list(folder)) == links
