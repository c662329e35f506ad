"""Lists the unreadable files of a run, and warns about each once. All readers skip them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from fitscope.errors import FitscopeWarning


@dataclass(frozen=True, slots=True)
class Damage:
    """One file of a run that cannot be read."""

    name: str  #: the path of the file within the run
    reason: str


class DamageReport:
    """The damage found so far in one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._found: dict[str, Damage] = {}
        self._warned: set[str] = set()
        self.quiet = False  #: whether to give no warnings, because the caller shows the list

    def __iter__(self) -> Iterator[Damage]:
        return iter(sorted(self._found.values(), key=lambda damage: damage.name))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def add(self, name: str, problem: BaseException | str) -> None:
        reason = str(problem).strip().partition("\n")[0] or type(problem).__name__
        self._found[name] = Damage(name, reason)

    def add_told(self, folder: str, key: str, reason: str) -> None:
        """Adds damage that an error already reports, so that no warning repeats it."""
        self.add(f"{folder}/{key}", reason)
        self._warned.add(f"{folder}/{key}")

    def warn(self, stacklevel: int = 3) -> None:
        """Warns once about all damage found since the last warning."""
        if self.quiet or len(self._warned) == len(self._found):
            return
        new = [damage for damage in self if damage.name not in self._warned]
        self._warned.update(damage.name for damage in new)
        others = f" and {len(new) - 1} more" if len(new) > 1 else ""
        warnings.warn(
            f"{new[0].name}{others} of run {self._run!r} cannot be read ({new[0].reason}) and is skipped. "
            "run.damaged has the list.",
            FitscopeWarning,
            stacklevel=stacklevel + 1,
        )
