"""The child process that gets killed, and how to check what it left."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def child() -> ModuleType:
    """`child.py` as a module, for the values it writes."""
    spec = importlib.util.spec_from_file_location("faults_child", Path(__file__).with_name("child.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
