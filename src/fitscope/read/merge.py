"""Merges the data of one site over ranks and attempts: its kept tensors and its running average.

A later attempt repeats the steps after its start. The same steps of an earlier attempt no longer count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fitscope.read.ranks import Rank
from fitscope.reduce.average import Average
from fitscope.sites import pass_of

if TYPE_CHECKING:
    from fitscope.read.stored import StoredArray


def listed(ranks: Iterable[Rank]) -> list[tuple[Rank, dict[str, list[str]]]]:
    """Each rank with the paths of its arrays by site, read once."""
    return [(rank, rank.arrays()) for rank in ranks]


def arrays_of(
    ranks: Iterable[tuple[Rank, dict[str, list[str]]]], site: str
) -> tuple[list[list[tuple[StoredArray, int | None]]], bool]:
    """The arrays of a site, rank by rank, each with the step at which its attempt stops counting; and whether an array is broken."""
    found: dict[int, list[tuple[StoredArray, int | None]]] = {}
    broken = False
    for rank, paths in ranks:
        for path in paths.get(site, ()):
            array = rank.array(path)
            broken = broken or array is None
            if array is not None:
                found.setdefault(rank.number, []).append((array, rank.end))
    return [found[number] for number in sorted(found)], broken


def average_of(ranks: Iterable[Rank], site: str) -> tuple[Average, bool]:
    """The average of a site, empty if none can be read; and whether it counts repeated steps twice."""
    found, twice = Average.empty(), False
    for rank in ranks:
        path = rank.averages().get(site)
        average = None if path is None else rank.average(path)
        if average is None or not _counts(average.first_step, rank.end, site):
            continue  # a later attempt repeated all its steps
        twice = twice or not _counts(average.last_step, rank.end, site)
        found.merge(average)
    return found, twice


def _counts(step: int | None, end: int | None, site: str) -> bool:
    """Whether a step belongs to the attempt that ended at `end`."""
    if step is None or end is None:
        return step is not None
    return step <= end if pass_of(site) else step < end
