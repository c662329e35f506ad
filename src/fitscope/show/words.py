"""Describes a training in words: for the captions of its picture, and as text for front ends without pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fitscope.diagnose import Evidence, Findings
from fitscope.diagnose.history import History
from fitscope.show.text import clean, number
from fitscope.sites import Site

FINDINGS = 3  #: the most findings in the caption; the last line counts all of them
STATUS = {"running": "●", "complete": "✓", "interrupted": "▲", "failed": "✖"}
SEVERITY = {"error": "✖", "warning": "▲", "note": "●"}


@dataclass(frozen=True, slots=True)
class Training:
    """The facts of a training that its evidence does not have."""

    status: str = "running"
    ended_by: str | None = None
    path: str | None = None  #: the path of the run
    begun: int = 0  #: the first step of this `fit`
    total: int | None = None  #: the number of steps at its end, if `fit` knows
    epoch: int | None = None  #: counted from 0
    epochs: int | None = None
    seconds: float = 0.0  #: seconds so far
    left: float | None = None  #: estimated seconds to the end
    cost: tuple[float, float] | None = None  #: the CPU seconds of recording, and their share


class Words:
    """The sentences about a training."""

    def __init__(self, evidence: Evidence, found: Findings | None, training: Training) -> None:
        self.training = training
        self.found = found or Findings()
        self.last = evidence.last_step
        self.loss = _scalar(evidence, "loss")
        self.logs = {h.site.label: h for h in evidence.of("logs")}  #: the logs of epochs, by name
        self.title = str(evidence.model.get("name") or "model")
        self.verdict = "the rules have not run yet" if found is None else found.summary

    def progress(self) -> list[str]:
        """The progress of the training."""
        now, told = self.training, []
        if self.last is not None:
            told.append(f"step {self.last + 1:,}" + (f" of {now.total:,}" if now.total else ""))
        if now.epoch is not None:
            told.append(f"epoch {now.epoch + 1:,}" + (f" of {now.epochs:,}" if now.epochs else ""))
        told.append(minutes(now.seconds))
        if now.left is not None and now.status == "running":
            told.append(f"about {minutes(now.left)} left")
        return told

    def lines(self) -> list[str]:
        """All lines, the status first."""
        now = self.training
        ended = f" by {now.ended_by}" if now.ended_by else ""
        head = f"{STATUS[now.status]} {self.title}: {now.status}{ended}, {', '.join(self.progress())}"
        values = [f"loss {newest(self.loss)}{lowest(self.loss)}"] if self.loss is not None else []
        values += [f"{name} {newest(h)}{span(h)}" for name, h in self.logs.items() if name != "loss"]
        findings = [
            f"{SEVERITY[f.severity]} {f.title}, {f.steps}: {f.message}" for f in self.found[:FINDINGS]
        ]
        return [clean(line) for line in (head, *values, *findings, self.verdict)]


def _scalar(evidence: Evidence, base: str) -> History | None:
    """The scalar of this kind, or the first of several: a step with two optimizers has two losses."""
    return evidence.history(Site(base)) or next((h for h in evidence.of(base) if not h.shape), None)


def newest(history: History) -> str:
    value = float(history.value[-1])
    return number(value) if np.isfinite(value) else str(value)


def lowest(history: History) -> str:
    finite = history.value[np.isfinite(history.value)]
    return f", lowest {number(float(finite.min()))}" if len(finite) else ""


def span(history: History) -> str:
    finite = history.value[np.isfinite(history.value)]
    return f" ({number(float(finite.min()))} to {number(float(finite.max()))})" if len(finite) > 1 else ""


def minutes(seconds: float) -> str:
    """`0:09`, `12:30`, `3:05:00`."""
    hours, rest = divmod(max(int(seconds), 0), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
