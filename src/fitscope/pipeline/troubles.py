"""Keeps the errors of fitscope during a training, and reports each kind once and a summary at the end."""

from __future__ import annotations

import warnings
from collections import Counter

from fitscope.errors import FitscopeWarning


class Troubles:
    """The errors of one recording, and the records that its queue dropped."""

    def __init__(self) -> None:
        self.new: list[tuple[str, str]] = []  #: errors that are not reported yet: kind and text
        self.dropped: Counter[str] = Counter()  #: the number of dropped records of each site
        self._told: Counter[str] = Counter()
        self._texts: dict[str, str] = {}  # the texts of each kind

    def add(self, error: BaseException | str) -> str:
        """Keeps an error until it is reported, and returns its text."""
        text = error if isinstance(error, str) else described(error)
        # A full disk causes the same error for one file after the other.
        kind = f"errno {error.errno}" if isinstance(error, OSError) and error.errno is not None else text
        self.new.append((kind, text))
        return text

    def tell(self, *, last: bool = False) -> None:
        """Warns of new errors, once per kind; at the end again of their total number and the three most frequent kinds."""
        if not self.new and not last:
            return
        new, self.new = self.new, []
        fresh = {kind: text for kind, text in reversed(new) if kind not in self._told}
        self._told.update(kind for kind, _ in new)
        self._texts.update(fresh)
        for text in fresh.values():
            warn(f"fitscope could not record everything; the training continues. {text}")
        if last and self._told.total() > len(fresh):
            worst = "; ".join(
                f"{self._texts[kind]} ({n}×)" if n > 1 else self._texts[kind]
                for kind, n in self._told.most_common(3)
            )
            warn(f"fitscope met {self._told.total()} errors in this training: {worst}")
        if last and self.dropped:
            warn(
                f"fitscope dropped {self.dropped.total()} records because its queue was full; "
                "see run.dropped, or give Scope more `memory`"
            )


def described(error: BaseException) -> str:
    """The text of an error for the run and the warnings."""
    return f"{type(error).__name__}: {error}"


def warn(text: str) -> None:
    """Warns the user, on any thread."""
    warnings.warn(text, FitscopeWarning, stacklevel=3)
