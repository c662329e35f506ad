"""Every mutation names a line that exists, and tests that exist: `make mutations` runs them, rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_breaks_one_line_of_today(mutation: Mutation) -> None:
    text = (ROOT / "src/fitscope" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1
    assert mutation.old != mutation.new
    words = mutation.tests.split()
    paths = words[: words.index("-k")] if "-k" in words else words
    assert paths
    assert [path for path in paths if not Path(ROOT, path).exists()] == []
