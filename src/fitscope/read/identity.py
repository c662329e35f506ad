"""Whether recording changed the training, as proven in the run itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: From worst to best. The worst part counts for the run.
WORDS = ("not provable", "trust", "twin", "proven")


class Identity(str):
    """One of "proven", "twin", "not provable" and "trust", with the reason.

    - *proven*: the tapped program and your own program agreed bit for bit, at `steps` or by construction.
    - *twin*: your own program took every step, and the tapped program ran alongside.
    - *not provable*: neither was possible, or your own program is not deterministic.
    - *trust*: the scope was created with identity="trust", so fitscope proved nothing.
    """

    steps: list[int]  #: the training steps at which fitscope compared both programs
    why: str  #: the reason; empty if the proof succeeded
    known: bool  #: whether the run has this information
    passes: dict[str, Identity]  #: the identity of each pass: "train", "validation", "evaluate", "predict"

    def __new__(cls, word: str, steps: Iterable[int] = (), why: str = "") -> Identity:
        made = super().__new__(cls, word)
        made.steps, made.why, made.known, made.passes = list(steps), why, True, {}
        return made

    @property
    def short(self) -> str:
        """A few words for the line of facts; empty if unknown."""
        words = {"proven": "bit-identical, proven", "twin": "bit-identical, by a twin"}
        return words.get(self, f"identity: {self}") if self.known else ""

    @property
    def sentence(self) -> str:
        """A sentence for people."""
        at = ", ".join(f"{step:,}" for step in self.steps[:6]) + (", …" if len(self.steps) > 6 else "")
        meaning = {
            "proven": f"bit-identical, proven at step {at}" if at else "bit-identical",
            "twin": "bit-identical: your own program took every step, and fitscope recorded a twin",
            "not provable": "not proven to be bit-identical",
            "trust": "not proven to be bit-identical, as requested",
        }[self]
        return f"{meaning} ({self.why})" if self.why else meaning


def identity_of(statuses: Iterable[Mapping[str, Any]]) -> Identity:
    """The identity of a run, merged from its status documents."""
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
        why = "nothing was captured" if empty else "this run does not record it"
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
