"""However a script's training ends, everything captured is on disk and the run tells how it ended. On every backend.

One try of each kind, in a process of its own; `make endings TRIES=100` makes more of them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.per_backend


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults_endings", Path(__file__).with_name("endings.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


endings = _module()


@pytest.fixture(scope="module")
def start() -> Iterator[object]:
    with endings.starter(fresh=False) as made:
        yield made


@pytest.mark.parametrize("name", endings.kinds(os.environ["KERAS_BACKEND"]))
def test_the_run_of_a_script_records_how_its_training_ended(start: object, name: str) -> None:
    row = endings.tried(start, name, tries=1)
    assert row.fine, (endings.line(row), row.wrong)


def test_the_page_has_the_counts_that_are_kept() -> None:
    assert endings.page(endings.counts()) in endings.PAGE.read_text(encoding="utf-8")
