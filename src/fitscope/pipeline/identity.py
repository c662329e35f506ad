"""The identity of a run: whether each tapped program was compared with the user's own, and the result.

`capture.identity` compares the programs and reports a `Standing` for each; `Standings` sums them up for the run.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Standing:
    """The knowledge about one tapped program."""

    status: str  #: proven, twin, not provable, or trust
    why: str
    steps: tuple[int, ...] = ()  #: the steps at which it was proven


#: For legacy Keras: fitscope does not compare its steps.
UNCOMPARED = Standing("not provable", "what legacy Keras runs is not compared with a second run")


class Standings:
    """The identity of all tapped programs of one recording, by pass."""

    _WORST = ("not provable", "trust", "twin", "proven")

    def __init__(self) -> None:
        self._newest: dict[tuple[str, Hashable], Standing] = {}

    def learn(self, in_pass: str, program: Hashable, standing: Standing) -> None:
        """Updates the knowledge about a program; cheap if nothing changed."""
        self._newest[in_pass, program] = standing

    def describe(self, captured: int) -> dict[str, dict[str, Any]]:
        """The facts for the run: the worst status of each pass, the steps of its proofs, and the reason."""
        found: dict[str, dict[str, Any]] = {}
        known = list(self._newest.items())  # the training thread may learn while the writer describes
        if captured and not known:
            known = [(("train", None), UNCOMPARED)]
        for in_pass in dict.fromkeys(in_pass for (in_pass, _), _ in known):
            some = [standing for (of, _), standing in known if of == in_pass]
            status = next(word for word in self._WORST if any(s.status == word for s in some))
            found[in_pass] = {
                "status": status,
                "steps": sorted({step for s in some for step in s.steps}),
                "why": "; ".join(dict.fromkeys(s.why for s in some if s.why and s.status == status)),
            }
        return found
