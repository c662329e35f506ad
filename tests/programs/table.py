"""The table of `make programs`: a line for each program and backend, and below it what needs more words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COLUMNS = (
    ("program", 30), ("backend", 10), ("steps", 5), ("sites", 5), ("unseen", 11), ("identical", 9), ("identity", 12),
    ("without", 7), ("with", 6), ("", 6),
)  # fmt: skip


@dataclass
class Row:
    """One program on one backend."""

    program: str
    backend: str
    captured: int = 0
    sites: int = 0
    unseen: dict[str, str] = field(default_factory=dict)
    identical: bool | None = None
    identity: str = ""
    why: str = ""
    problems: list[str] = field(default_factory=list)
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def verdict(self) -> str:
        return "FAILS" if self.problems else "ok"


def titles() -> str:
    names = "  ".join(name.ljust(width) for name, width in COLUMNS)
    return f"{names.rstrip()}\n{'  '.join('-' * width for _, width in COLUMNS)}"


class Reasons:
    """A letter for each reason why sites were not seen, so that a row has room for all of its own."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def short(self, unseen: Mapping[str, str]) -> str:
        own = Counter(unseen.values())
        self.counts.update(own)
        known = list(self.counts)
        return " ".join(f"{count}{chr(ord('a') + known.index(why))}" for why, count in own.items()) or "0"

    def legend(self) -> list[str]:
        return [
            f"  {chr(ord('a') + i)}  {count:5}  {why}" for i, (why, count) in enumerate(self.counts.items())
        ]


def line(row: Row, reasons: Reasons) -> str:
    same = {None: "?", True: "yes", False: "NO"}[row.identical]
    cells: list[Any] = [
        row.program, row.backend, row.captured, row.sites, reasons.short(row.unseen), same, row.identity,
        f"{row.seconds[0]:.1f} s", f"{row.seconds[1]:.1f} s", row.verdict,
    ]  # fmt: skip
    return "  ".join(str(cell).ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()


def footnotes(rows: list[Row], reasons: Reasons) -> str:
    """Why sites were not seen, what failed and how, and the sum."""
    lines = [""]
    if reasons.counts:
        lines += ["Sites that could not be seen, by reason:", *reasons.legend()]
    for row in rows:
        if row.identity not in ("", "proven"):
            lines.append(f"{row.program} on {row.backend} is {row.identity}: {row.why}")
        for problem in row.problems:
            lines.append(f"{row.program} on {row.backend} fails: {problem}")
    verdicts = Counter(row.verdict for row in rows)
    total = sum(sum(row.seconds) for row in rows)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    same = sum(row.identical is True for row in rows)
    lines.append(
        f"{len(rows)} trainings of {len({row.program for row in rows})} programs in {total:.0f} s: {counts}; "
        f"{same} bit-identical."
    )
    return "\n".join(lines)
