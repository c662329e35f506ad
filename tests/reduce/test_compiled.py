"""Where machine code cannot be kept on disk, it is made again: nothing else changes."""

from __future__ import annotations

import errno
import importlib.util
import sys

import numpy as np
import pytest
from numba.core import caching

from fitscope.reduce.compiled import compiled, fetch, writable

SOURCE = """
from fitscope.reduce.compiled import compiled

@compiled()
def double(x):
    return 2 * x
"""


def load(path):
    """The module anew, as another process would see it."""
    spec = importlib.util.spec_from_file_location("doubling", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["doubling"] = module  # numba asks for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "doubling.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop("doubling", None)


def kept(path):
    return sorted((path.parent / "__pycache__").glob("*.nb[ic]"))


def test_compiled_code_is_cached_on_disk(path):
    assert load(path).double(2) == 4
    assert kept(path)
    again = load(path).double
    assert again(3) == 6
    assert sum(again.stats.cache_hits.values()) == 1


def test_code_compiles_without_a_cache_directory(path, monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert load(path).double(2) == 4
    assert not kept(path)


def test_a_full_disk_costs_only_the_cache(path, monkeypatch):
    def save(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", save)
    assert load(path).double(2) == 4
    assert not kept(path)


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_truncated_cache_file_is_compiled_again(path, left):
    assert load(path).double(2) == 4
    for file in kept(path):
        file.write_bytes(file.read_bytes()[:left])
    assert load(path).double(3) == 6


@pytest.mark.parametrize(
    "pickled", [b"cnumba.core.types.gone\nFloat\n.", b"cnumba.core.types\nGone\n.", b"I1\n.", b"(I1\nI2\nt."]
)
def test_machine_code_of_another_numba_is_compiled_again(path, pickled):
    """Two processes with different versions share the cache of one checkout: the index of one, and the data of the other."""
    assert load(path).double(2) == 4
    for file in kept(path):
        if file.suffix == ".nbc":
            file.write_bytes(pickled)
    again = load(path).double
    assert again(3) == 6
    assert not again.stats.cache_hits


def test_the_prefetch_and_writable_instructions_do_not_change_values():
    @compiled()
    def look(array):
        for i in range(array.size):
            fetch(array, i)
        return writable(array).sum()

    array = np.arange(10.0)
    array.flags.writeable = False
    assert look(array) == 45.0
    assert not array.flags.writeable
