"""A sample of every attack of `make campaign`."""

from __future__ import annotations

import pytest

from campaign.attacks import ATTACKS


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_no_harm(name: str) -> None:
    done = ATTACKS[name][1](12345)
    assert done.failures == []
    assert done.tried == done.survived > 0
    assert done.lost == 0
