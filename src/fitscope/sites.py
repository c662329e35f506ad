"""A place in the step."""

from __future__ import annotations

from dataclasses import dataclass

Place = tuple[str, str]  #: a kind of site, and the path of a layer or weight ("" where there is only one)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the step that was really passed, and what is wanted of it."""

    name: str
    place: Place
    batched: bool
