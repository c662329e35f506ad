"""What long campaigns have counted so far, and the parts of the docs that are written from it.

Counts are kept in the repository, so that a campaign goes on in another checkout and no seed counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def stretches(seeds: Iterable[Iterable[int]]) -> list[list[int]]:
    """Stretches of seeds, first and last, with neighbours joined."""
    joined: list[list[int]] = []
    for first, last in sorted(map(tuple, seeds)):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def within(seeds: Iterable[Iterable[int]], seed: int) -> bool:
    """Whether a seed lies in one of the stretches."""
    return any(first <= seed <= last for first, last in seeds)


def put_into(page: Path, by: str, text: str) -> None:
    """Replaces the part of a page that a tool writes: all between its marker and the next `until here`."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- written by {by} -->\n")
    _, end, after = rest.partition("<!-- until here -->")
    if not begin or not end:
        raise ValueError(f"{page.name} has no part written by {by}.")
    page.write_text(f"{before}{begin}{text.rstrip()}\n{end}{after}", encoding="utf-8")
