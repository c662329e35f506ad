"""Error messages: three clauses, and a guess at the name that was meant."""

from __future__ import annotations

import pytest

import fitscope as fs
from fitscope.errors import FitscopeError, one_of

SITES = ["activations/conv1", "activations/head", "gradients/conv1", "metrics/accuracy"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ("gradient/conv1", "gradients/conv1"),
        ("conv11", "activations/conv1"),
        ("acuracy", "metrics/accuracy"),
        ("nothing like it", None),
        ("", None),
    ],
)
def test_a_wrong_name_leads_to_the_one_that_was_meant(wanted: str, meant: str | None) -> None:
    said = one_of(SITES, wanted)
    assert ("Did you mean" in said) == (meant is not None)
    assert meant is None or f"Did you mean {meant!r}?" in said
    assert "There are: 'activations/conv1', " in said


@pytest.mark.parametrize("end", [".", "?", "!"])
def test_a_quoted_message_keeps_its_own_end(end: str) -> None:
    assert str(FitscopeError("a", f"b{end}", "Do c")) == f"Expected a. Received: b{end} Do c"


def test_python_can_suggest_the_public_name_that_was_meant() -> None:
    with pytest.raises(AttributeError) as error:
        fs.activatoins  # noqa: B018
    assert (error.value.name, error.value.obj) == ("activatoins", fs)


def test_a_watch_shows_itself_in_a_few_words() -> None:
    assert repr(fs.activations("conv*", every=5)) == "<Watch: activations of conv* (every 5)>"
    assert repr([fs.loss()]) == "[<Watch: loss>]"
