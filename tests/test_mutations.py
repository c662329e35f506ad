"""Every mutation names a line that exists, and tests that exist: `make mutations` runs them, rarely."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_matches_one_line_of_the_code(mutation: Mutation) -> None:
    text = (ROOT / "src/fitscope" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1
    assert mutation.old != mutation.new
    words = mutation.tests.split()
    paths = words[: words.index("-k")] if "-k" in words else words
    assert paths
    assert [path for path in paths if not Path(ROOT, path).exists()] == []
    chosen = words[len(paths) + 1] if "-k" in words else "test_"
    given = [Path(ROOT, path) for path in paths]
    places = [place for path in given for place in (path.rglob("test_*.py") if path.is_dir() else [path])]
    names = [name for place in places for name in re.findall(r"def (test_\w+)", place.read_text("utf-8"))]
    assert [name for name in names if chosen in name], f"-k {chosen} chooses no test"
