"""What a run says of its identity, whoever wrote the documents."""

from __future__ import annotations

import pytest

from fitscope.read.identity import identity_of


def said(**phases):
    return {
        "identity": {
            name: {"status": s, "steps": list(at), "why": why} for name, (s, at, why) in phases.items()
        }
    }


def test_a_proven_identity_lists_its_steps():
    found = identity_of([said(train=("proven", (0, 9), ""), validation=("proven", (5,), ""))])
    assert found == "proven"
    assert (found.steps, found.why) == ([0, 5, 9], "")
    assert found.passes["validation"].steps == [5]
    assert found.sentence == "bit-identical, proven at step 0, 5, 9"
    assert found.short == "bit-identical, proven"


def test_a_run_has_the_worst_identity_of_its_attempts_ranks_and_phases():
    found = identity_of([
        said(train=("proven", (0,), "")),
        said(train=("twin", (), "it differs"), validation=("proven", (5,), "")),
    ])  # fmt: skip
    assert (found, found.why) == ("twin", "it differs")
    assert found.passes["train"] == "twin"
    found = identity_of(
        [said(train=("twin", (), "it differs"), predict=("not provable", (), "it asks Python"))]
    )
    assert (found, found.why) == ("not provable", "it asks Python")
    assert "it asks Python" in found.sentence


@pytest.mark.parametrize(
    "document",
    [{}, {"identity": None}, {"identity": "proven"}, {"identity": {"train": 3}}, {"identity": {"train": {}}}],
)
def test_a_run_without_identity_facts_is_not_provable(document):
    found = identity_of([document])
    assert not found.known
    assert found.short == ""
    assert found == "not provable"


def test_a_run_without_captures_counts_as_unchanged():
    assert identity_of([{"identity": {}}]) == "proven"
