"""SECURITY.md names a test for each line, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for path in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > 15
    for name in named:
        assert f"def {name}(" in written, name


def test_every_promise_of_the_threat_model_has_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| they")]
    assert len(rows) > 12
    assert all("test_" in row.split("|")[2] or "tests/" in row.split("|")[2] for row in rows)
