"""Reads the steps that a black box wrote. It trusts no field: see `untrusted`.

A `Box` is one writing of the black box. A `KeptStep` is one of its steps, with everything that a replay needs: the state at the start
of its lap, and the steps from there up to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fitscope.errors import RunError
from fitscope.read import untrusted
from fitscope.read.untrusted import count, fields, integer, listing, mapping, maybe, number, text
from fitscope.store import black_box as stored
from fitscope.store._base import Objects
from fitscope.store.black_box import Array, KeptCall
from fitscope.store.structure import put_together

MOST_STEPS = 1_000_000


def _pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and count(pair[0]) and _ENTRY(pair[1]) for pair in value
    )


_WHERE = {"file": untrusted.key, "name": text, "dtype": text, "shape": listing(count)}
_ENTRY = fields(_WHERE, *_WHERE)
_CALL_FORM = {
    "step": integer, "epoch": integer, "batch": integer, "forms": listing(untrusted.anything), "arrays": listing(_ENTRY),
    "changed": _pairs, "random": mapping(_ENTRY), "facts": fields({"given": listing(text)}, "given"),
    "logs": maybe(mapping(_ENTRY)),
}  # fmt: skip
_CALL = fields(_CALL_FORM, *_CALL_FORM)
_VARIABLE = fields({**_WHERE, "group": text, "path": text}, *_WHERE, "group", "path")
_LAP = fields(
    {"step": integer, "state": listing(_VARIABLE), "calls": listing(_CALL)}, "step", "state", "calls"
)
_NEEDED = {"backend": text, "laps": listing(_LAP), "software": mapping(text), "why": listing(text)}
_BOX = fields(
    {**_NEEDED, "odd_step": maybe(integer), "time": number, "model": lambda v: isinstance(v, bool), "model_why": maybe(text),
     "compiled": mapping(untrusted.anything), "model_class": text},
    *_NEEDED,
)  # fmt: skip


class Box:
    """One writing of the black box: which steps, why, and with which software they ran."""

    def __init__(self, objects: Objects, folder: str, end: int | None = None) -> None:
        self._objects = objects
        self._folder = folder
        document = untrusted.read(objects, f"{folder}/{stored.BOX}")
        if not _BOX(document):
            raise ValueError("it lacks a field of a black box, or one has the wrong type")
        self._document = document
        self.why: list[str] = document["why"]  #: the findings, or the exception, that made it write
        self.odd_step: int | None = document.get("odd_step")  #: the first step whose loss was not finite
        self.backend: str = document["backend"]
        self.software: dict[str, str] = document["software"]
        self.steps: list[int] = sorted(  #: the steps that can be replayed
            step
            for lap in document["laps"]
            for call in lap["calls"]
            for step in range(call["step"], call["step"] + min(len(call["forms"]), MOST_STEPS))
            if end is None or step < end
        )

    def __repr__(self) -> str:
        return f"<Box: steps {ranges(self.steps)}; {'; '.join(self.why)}>"

    def step(self, step: int) -> KeptStep:
        """One step of the box."""
        for lap in self._document["laps"]:
            for place, call in enumerate(lap["calls"]):
                if call["step"] <= step < call["step"] + len(call["forms"]):
                    return KeptStep(step, self, lap, place, self._objects, self._folder)
        raise RunError("a step that the black box kept", f"step {step}", f"There are: {ranges(self.steps)}")

    @property
    def compiled(self) -> dict[str, Any]:
        """How the step was compiled: `run_eagerly`, `jit_compile`, `steps_per_execution`."""
        return dict(self._document.get("compiled") or {})

    @property
    def model_class(self) -> str:
        return str(self._document.get("model_class", ""))

    @property
    def model_why(self) -> str | None:
        """The reason why the box has no configuration of the model."""
        return self._document.get("model_why")

    def model(self) -> dict[str, Any] | None:
        """The configuration of the model, as Keras serializes it; None if Keras could not."""
        key = f"{self._folder}/{stored.MODEL}"
        try:
            return untrusted.read(self._objects, key) if self._document.get("model") else None
        except untrusted.UNREADABLE as problem:
            raise RunError(
                f"the model in {self._objects.describe(key)!r}",
                f"a damaged or forged one ({problem})",
                "Build and compile the model as in the training, and pass it: run.replay(step, model=model)",
            ) from problem


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One step of a box."""

    step: int
    box: Box
    _lap: dict[str, Any]
    _place: int
    _objects: Objects
    _folder: str

    @property
    def variables(self) -> list[dict[str, Any]]:
        """The variables of the state: group, path, dtype and shape of each."""
        found: list[dict[str, Any]] = self._lap["state"]
        return found

    def state(self) -> list[Array]:
        """The state before the first step of the lap."""
        return self._unpacked(self._lap["state"])

    def calls(self) -> Iterable[KeptCall]:
        """The steps of the lap up to this one."""
        for document in self._lap["calls"][: self._place + 1]:
            yield self._call(document)

    def _unpacked(self, entries: list[dict[str, Any]]) -> list[Array]:
        try:
            return stored.unpacked(self._objects, self._folder, entries)
        except untrusted.UNREADABLE as problem:
            raise self._broken("arrays", problem) from problem

    def _broken(self, what: str, problem: BaseException) -> RunError:
        return RunError(
            f"the {what} of step {self.step} in {self._objects.describe(self._folder)!r}",
            f"damaged or forged ones ({problem})",
            "Replay another step, or copy the run again",
        )

    def _call(self, document: dict[str, Any]) -> KeptCall:
        logs, changed, random = document["logs"], document["changed"], document["random"]
        entries = [
            *document["arrays"],
            *(one for _, one in changed),
            *random.values(),
            *(logs or {}).values(),
        ]
        arrays = iter(self._unpacked(entries))
        batch = [next(arrays) for _ in document["arrays"]]
        try:
            for form in document["forms"]:
                put_together(form, batch)
        except untrusted.UNREADABLE as problem:
            raise self._broken("batches", problem) from problem
        return KeptCall(
            document["step"], document["epoch"], document["batch"], document["forms"], batch,
            {place: next(arrays) for place, _ in changed},
            {name: next(arrays) for name in random},
            document["facts"],
            None if logs is None else {name: next(arrays) for name in logs},
        )  # fmt: skip


def ranges(steps: list[int]) -> str:
    """Steps in words: `100–119, 240`."""
    found: list[list[int]] = []
    for step in sorted(set(steps)):
        if found and step == found[-1][1] + 1:
            found[-1][1] = step
        else:
            found.append([step, step])
    return ", ".join(f"{a:,}" if a == b else f"{a:,}–{b:,}" for a, b in found) or "none"
