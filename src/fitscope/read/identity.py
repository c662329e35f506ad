"""Whether recording a run changed its training, as the run itself proved it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: From worst to best: the worst of all parts speaks for the run.
WORDS = ("not provable", "trust", "twin", "proven")


class Identity(str):
    """One of "proven", "twin", "not provable" and "trust", and why.

    - *proven*: the program with taps and the user's own agreed bit for bit, at `steps`, or by construction;
    - *twin*: the user's own program took every step, the one with taps ran beside it;
    - *not provable*: neither could be done, or the user's own program does not repeat itself;
    - *trust*: the scope was told not to prove anything.
    """

    steps: list[int]  #: at which training steps it was proven
    why: str  #: it is so; empty where the proof says it all
    known: bool  #: whether the run says anything about it
    passes: dict[str, Identity]  #: the same of each part: "train", "validation", "evaluate", "predict"

    def __new__(cls, word: str, steps: Iterable[int] = (), why: str = "") -> Identity:
        made = super().__new__(cls, word)
        made.steps, made.why, made.known, made.passes = list(steps), why, True, {}
        return made

    @property
    def short(self) -> str:
        """In a few words, for a line of facts; empty where the run says nothing."""
        words = {"proven": "bit-identical, proven", "twin": "bit-identical, by a twin"}
        return words.get(self, f"identity: {self}") if self.known else ""

    @property
    def sentence(self) -> str:
        """In one line, for people."""
        at = ", ".join(f"{step:,}" for step in self.steps[:6]) + (", …" if len(self.steps) > 6 else "")
        meaning = {
            "proven": f"bit-identical, proven at step {at}" if at else "bit-identical",
            "twin": "bit-identical: your own program took every step, a twin was recorded",
            "not provable": "not proven to be bit-identical",
            "trust": "not proven to be bit-identical, as asked",
        }[self]
        return f"{meaning} ({self.why})" if self.why else meaning


def identity_of(statuses: Iterable[Mapping[str, Any]]) -> Identity:
    """What the status documents of a run say, taken together."""
    parts: dict[str, list[Identity]] = {}
    empty = False
    for status in statuses:
        document = status.get("identity")
        empty = empty or document == {}
        for in_pass, one in document.items() if isinstance(document, Mapping) else ():
            if isinstance(one, Mapping) and one.get("status") in WORDS:
                steps = [int(step) for step in one.get("steps") or ()]
                parts.setdefault(str(in_pass), []).append(
                    Identity(one["status"], steps, str(one.get("why") or ""))
                )
    if not parts:
        why = "nothing was captured" if empty else "this run does not say"
        nothing = Identity("proven" if empty else "not provable", why=why)
        nothing.known = False
        return nothing
    passes = {in_pass: _worst(some) for in_pass, some in parts.items()}
    whole = _worst(list(passes.values()))
    whole.passes = passes
    return whole


def _worst(parts: list[Identity]) -> Identity:
    word = next(word for word in WORDS if any(part == word for part in parts))
    reasons = dict.fromkeys(part.why for part in parts if part == word and part.why)
    return Identity(word, sorted({step for part in parts for step in part.steps}), "; ".join(reasons))
