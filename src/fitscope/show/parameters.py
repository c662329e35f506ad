"""The parameters of a request, each with bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fitscope.show.data import payload

COARSEST = 40  #: the log2 of the most steps in a column
FARTHEST = 2**53  #: the largest step or index: JavaScript counts exactly up to here
LONGEST = 4096  #: characters of a parameter


class Parameters:
    """The checked parameters of one request. A `BadRequestError` names the wrong one."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = query
        self.run = self._text("run") or None
        self.other = self._text("other") or None
        self.measure = self._text("measure")
        self.mode = self._text("mode", "absolute")
        self.row = self._text("row")
        self.step, self.by = self._integer("step", -FARTHEST), self._integer("by", -FARTHEST)
        self.column, self.mark = self._integer("column", -1, default=-1), self._text("mark")
        self.columns = max(self._integer("columns", default=payload.COLUMNS), 16)
        self.columns = min(self.columns, payload.COLUMNS)
        self.level, self.first = self._integer("level", most=COARSEST), self._integer("first")
        self.loss_level, self.loss_first = (
            self._integer("loss_level", most=COARSEST),
            self._integer("loss_first"),
        )
        span = self._text("from"), self._text("to")
        self.span = (self._number("from"), self._number("to")) if span[0] and span[1] else None

    def _text(self, name: str, default: str = "") -> str:
        value = self._query.get(name, default)
        if len(value) > LONGEST:
            raise BadRequestError(f"{name} must have at most {LONGEST} characters")
        return value

    def _integer(self, name: str, least: int = 0, most: int = FARTHEST, default: int = 0) -> int:
        text = self._text(name)
        try:
            value = int(text) if text else default
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise BadRequestError(f"{name} must be an integer from {least} to {most}")
        return value

    def _number(self, name: str) -> float:
        try:
            value = float(self._text(name))
        except ValueError:
            value = math.nan
        if not abs(value) <= FARTHEST:
            raise BadRequestError(f"{name} must be a number from {-FARTHEST} to {FARTHEST}")
        return value


class BadRequestError(ValueError):
    """A request with an invalid parameter; the message names it."""
