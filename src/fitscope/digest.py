"""What the captures become on the writer's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fitscope import reducing
from fitscope.attach import Site
from fitscope.plan import Want
from fitscope.record import Moment, Record
from fitscope.reducing import Border


class Digest:
    """Makes records of what steps showed."""

    def __init__(self, border: Border, failed: Callable[[str], None]) -> None:
        self._border = border
        self._failed = failed

    def records(self, at: Moment, items: list[tuple[Site, Want, Any]]) -> list[Record]:
        found = []
        for site, want, value in items:
            try:
                found.append(reducing.record(site, want, value, at, self._border))
            except Exception as error:  # one odd tensor must not cost the others
                self._failed(f"{site.name}: {type(error).__name__}: {error}")
        return found
