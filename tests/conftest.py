"""What all tests share. One process tests one Keras backend: the one in KERAS_BACKEND.

`make test` runs one process per backend, the first with every test in it, the others with `--not-once`: without
those that no backend can change.
"""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports Keras.
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
import pytest

import amx

# Also before: processes that tests start inherit what it sets.
BFLOAT16 = amx.settle(os.environ, amx.features(), amx.probe)

# Many tests compile the same small programs, as do the processes that they start: JAX keeps them here.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# The same examples at every run, so that a change is judged by what it changes. FITSCOPE_SEARCH=1 looks for new ones.
hypothesis.settings.register_profile("same", derandomize="FITSCOPE_SEARCH" not in os.environ, deadline=None)
hypothesis.settings.load_profile("same")

#: Folders and files whose tests no backend can change. Whatever is not listed runs on every backend, and so
#: does a test marked `per_backend`.
ONCE = (
    "bench",  # processes of their own
    "capture",  # decisions, with programs that are made up
    "browser",  # looks at runs with a browser
    "cli",  # prints runs, written without a backend
    "diagnose",  # rules over evidence that is made up
    "diagnosis/test_corpus.py",  # plain data, and a few programs that every backend trains alike
    "diagnosis/test_sample.py",  # a process of its own, on JAX
    "multiprocess",  # processes of their own
    "docs",  # but for the examples and the README, which are marked
    "export",  # rewrites runs
    "faults",  # the store, under kill and full disks
    "fuzz/test_tables.py",  # plain data
    "pipeline",  # a queue, and processes of their own
    "programs/test_harness.py",  # compares and counts
    "reduce/test_compiled.py",  # numba
    "reduce/test_host.py",  # numba
    "reduce/test_stats.py",  # arithmetic
    "show",  # draws numbers
    "store",  # files
    "test_mutations.py",  # plain data
    "test_errors.py",  # plain data
    "test_watch.py",  # plain data
)


#: Folders whose tests need a process of their own, by the marker that asks for them: `pytest -m tf1`.
ALONE = {"tf1": "tf1", "legacy": "legacy"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    asked = config.option.markexpr
    for folder, marker in ALONE.items():
        if collection_path == here / folder and marker not in asked.split():
            return True
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow_compile: waits for torch.compile, in a process of its own")
    config.addinivalue_line("markers", "bfloat16: computes in bfloat16, as do tests whose parameters name it")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--not-once", action="store_true", help="leave out the tests that need no backend")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here) if item.path.is_relative_to(here) else item.path
        listed = any(place.is_relative_to(name) for name in ONCE)
        if listed and item.get_closest_marker("per_backend") is None:
            item.add_marker(pytest.mark.once)
        if amx.FINE != BFLOAT16 and _computes_in_bfloat16(item):
            item.add_marker(pytest.mark.skip(reason=BFLOAT16))
    alone = [
        item for item in items for marker in ALONE.values()
        if item.get_closest_marker(marker) and marker not in config.option.markexpr.split()
    ]  # fmt: skip
    if alone:
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]
    if config.getoption("--not-once"):
        gone = [item for item in items if item.get_closest_marker("once")]
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if not item.get_closest_marker("once")]


def _computes_in_bfloat16(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return item.get_closest_marker("bfloat16") is not None or "bfloat16" in str(list(parameters.values()))
