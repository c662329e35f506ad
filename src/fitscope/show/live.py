"""The picture of a training in the cell of a notebook: progress, loss, metrics, layers by steps, and findings.

It is drawn from the evidence that the diagnosis keeps anyway, so it needs no file and no more memory, and its size does not grow with
the training: at most some ten kilobytes. `drawn` makes the SVG and the same facts as text, for whatever shows no pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fitscope.diagnose import Evidence, Findings
from fitscope.diagnose.history import History
from fitscope.show import svg
from fitscope.show.data.cost import percent
from fitscope.show.raster import by_layer, raster
from fitscope.show.squeeze import log10
from fitscope.show.text import clean, number
from fitscope.sites import Site

Array = np.ndarray[Any, Any]

WIDE = 760
GUTTER = 112  #: left of the charts: for the names of layers, and numbers
EDGE = 12
CHART = 110  #: pixels of the loss
ROWS = 40  #: of a heat map; more layers share rows
METRICS = 3
FINDINGS = 3
SIGNS = {
    "running": ("●", "loss"), "complete": ("✓", "good"), "interrupted": ("▲", "warning"), "failed": ("✖", "error"),
}  # fmt: skip
SEVERITY = {"error": ("✖", "error"), "warning": ("▲", "warning"), "note": ("●", "faint")}


@dataclass(frozen=True, slots=True)
class Training:
    """The facts of a training beside its evidence."""

    status: str = "running"
    ended_by: str | None = None
    path: str | None = None  #: of the run
    begun: int = 0  #: the first step of this `fit`
    total: int | None = None  #: steps when it is over, if `fit` knows
    epoch: int | None = None  #: from 0
    epochs: int | None = None
    seconds: float = 0.0  #: so far
    left: float | None = None  #: seconds, about
    cost: tuple[float, float] | None = None  #: seconds of CPU that recording took, and their share


def drawn(evidence: Evidence, found: Findings | None, training: Training) -> dict[str, str]:
    """The picture as a notebook wants it: by MIME type."""
    picture = _Picture(evidence, found, training)
    lines = picture.lines()
    return {"image/svg+xml": picture.drawing(lines[0]), "text/plain": "\n".join(lines)}


class _Picture:
    """One picture, built from top to bottom."""

    def __init__(self, evidence: Evidence, found: Findings | None, training: Training) -> None:
        self._evidence, self._found, self._training = evidence, found, training
        self._last = evidence.last_step
        self._loss = _first(evidence, "loss")
        self._logs = {h.site.label: h for h in evidence.of("logs")}
        steps = [h.steps[0] for h in (self._loss, *self._logs.values()) if h is not None]
        self._first = int(min(steps, default=0))
        self._y = 0.0

    # ---- the facts as text ---------------------------------------------------------------------------------

    def _title(self) -> str:
        return str(self._evidence.model.get("name") or "model")

    def _progress(self) -> list[str]:
        """Where the training is."""
        now, told = self._training, []
        if self._last is not None:
            total = f" of {now.total:,}" if now.total else ""
            told.append(f"step {self._last + 1:,}{total}")
        if now.epoch is not None:
            told.append(f"epoch {now.epoch + 1:,}" + (f" of {now.epochs:,}" if now.epochs else ""))
        told.append(svg.minutes(now.seconds))
        if now.left is not None and now.status == "running":
            told.append(f"about {svg.minutes(now.left)} left")
        return told

    def _values(self) -> list[str]:
        """The newest loss and metrics, as lines."""
        told = []
        if self._loss is not None:
            finite = self._loss.value[np.isfinite(self._loss.value)]
            lowest = f", lowest {number(float(finite.min()))}" if len(finite) else ""
            told.append(f"loss {_newest(self._loss)}{lowest}")
        for name, history in self._logs.items():
            if name != "loss":
                told.append(f"{name} {_newest(history)}{_span(history)}")
        return told

    def _verdict(self) -> str:
        return "the rules have not run yet" if self._found is None else self._found.summary

    def lines(self) -> list[str]:
        """The picture as text."""
        now = self._training
        ended = f" by {now.ended_by}" if now.ended_by else ""
        head = f"{SIGNS[now.status][0]} {clean(self._title())}: {now.status}{clean(ended)}, {', '.join(self._progress())}"
        findings = [
            f"{SEVERITY[f.severity][0]} {clean(f.title)}, {f.steps}: {clean(f.message)}"
            for f in (self._found or ())[:FINDINGS]
        ]
        return [head, *map(clean, self._values()), *findings, self._verdict()]

    # ---- the picture ---------------------------------------------------------------------------------------

    def drawing(self, label: str) -> str:
        parts = self._head()
        if self._last is None:
            parts.append(svg.text(EDGE, self._y + 18, self._waiting(), "faint"))
            self._y += 28
        else:
            parts += self._losses() + self._metrics() + self._layers() + self._findings()
        return svg.picture(WIDE, int(self._y + 8), parts, label)

    def _waiting(self) -> str:
        if self._training.status == "running":
            return "waiting for the first step, which compiles the model"
        return "no training step was recorded"

    def _head(self) -> list[str]:
        now = self._training
        sign, ink = SIGNS[now.status]
        told = "   " + " · ".join([now.status, *self._progress()])
        cost = "" if now.cost is None else f"recording: {now.cost[0]:.1f} s of CPU, {percent(now.cost[1])}"
        parts = [
            svg.line(
                EDGE,
                22,
                (f"{sign}  ", ink, True),
                (svg.cut(self._title(), 180), "text", True),
                (told, "text", False),
            ),
            svg.text(WIDE - EDGE, 22, cost, "faint", size=11, at="end"),
        ]
        self._y = 32.0
        if now.ended_by:
            parts.append(svg.text(EDGE + 18, 40, svg.cut(now.ended_by, WIDE - 60), ink))
            self._y = 50.0
        if now.total and self._last is not None:
            done = min((self._last + 1 - now.begun) / max(now.total - now.begun, 1), 1.0)
            parts += [
                svg.box(EDGE, self._y, WIDE - 2 * EDGE, 3, "line", round=1.5),
                svg.box(EDGE, self._y, (WIDE - 2 * EDGE) * done, 3, ink, round=1.5),
            ]
        self._y += 12
        return parts

    def _ends(self) -> list[int]:
        """The last steps of the epochs so far."""
        logs = next(iter(self._logs.values()), None)
        return [] if logs is None or len(logs) < 2 else logs.steps[:-1].tolist()

    def _place(self, x: float, wide: float, tall: float) -> svg.Place:
        return svg.Place(x, self._y + 18, wide, tall, self._first, max(self._last or 0, self._first + 1))

    def _losses(self) -> list[str]:
        """The loss of every batch, and the validation loss of every epoch."""
        curves, legend = [], []
        if self._loss is not None:
            h = self._loss
            curves.append(
                svg.Curve(h.steps, _float(h.value), "loss", band=True, low=_float(h.min), high=_float(h.max))
            )
            legend.append(("loss of each batch " + _newest(h), "loss"))
        if "val_loss" in self._logs:
            h = self._logs["val_loss"]
            curves.append(svg.Curve(h.steps, _float(h.value), "val", dots=True))
            legend.append(
                (f"validation loss {_newest(h)}, lowest {number(float(np.nanmin(_float(h.value))))}", "val")
            )
        if not curves:
            return []
        place = self._place(GUTTER, WIDE - GUTTER - EDGE, CHART)
        parts = self._titles(GUTTER, legend)
        parts += svg.chart(place, curves, self._ends())
        steps = place.y + CHART + 14
        parts.append(svg.text(GUTTER, steps, f"step {self._first:,}", "faint", size=11))
        parts.append(svg.text(WIDE - EDGE, steps, f"{self._last:,}", "faint", size=11, at="end"))
        self._y += CHART + 38
        return parts

    def _titles(self, x: float, legend: list[tuple[str, str]]) -> list[str]:
        """Coloured titles, one after the other."""
        return [svg.line(x, self._y + 12, *((f"{said}    ", ink, True) for said, ink in legend))]

    def _metrics(self) -> list[str]:
        """The metrics of each epoch, of training and validation; before the first epoch ends, those of batches."""
        by_batch = {h.site.label: h for h in self._evidence.of("metrics") if not h.site.suffix}
        names = [
            n
            for n in dict.fromkeys([*by_batch, *self._logs])
            if not n.startswith("val_") and n not in ("loss", "learning_rate")
        ]
        names = names[:METRICS]
        if not names:
            return []
        parts, each = [], (WIDE - EDGE) / len(names)
        for i, name in enumerate(names):
            x = i * each + (GUTTER if i == 0 else 60)
            wide = (i + 1) * each - x - (0 if i == len(names) - 1 else 12)
            train, val = self._logs.get(name), self._logs.get(f"val_{name}")
            curves, legend = [], []
            batches = by_batch.get(name)
            if batches is not None:
                curves.append(svg.Curve(batches.steps, _float(batches.value), "loss", band=True))
            if train is not None and batches is None:
                curves.append(svg.Curve(train.steps, _float(train.value), "loss", dots=True))
            newest = train if train is not None else batches
            legend.append((svg.cut(f"{name} {_newest(newest)}", wide / 2), "loss"))
            if val is not None:
                curves.append(svg.Curve(val.steps, _float(val.value), "val", dots=True))
                legend.append((svg.cut(f"validation {_newest(val)}{_span(val)}", wide * 0.7), "val"))
            parts += self._titles(x, legend) + svg.chart(
                self._place(x, wide, CHART * 0.6), curves, self._ends()
            )
        self._y += CHART * 0.6 + 28
        return parts

    def _layers(self) -> list[str]:
        """Layers by steps: activations and gradients side by side, on one scale of colours."""
        kinds = {kind: by_layer(self._evidence, kind) for kind in ("activations", "gradients")}
        kinds = {kind: rows for kind, rows in kinds.items() if rows}
        names = self._evidence.network.sorted({name for rows in kinds.values() for name in rows})
        if not names:
            return []
        tall = max(min(13 * len(names), 260), 26)
        gap = 16
        wide = (WIDE - GUTTER - EDGE - gap * (len(kinds) - 1)) / len(kinds)
        top, parts, rows = self._y + 20, [], min(len(names), ROWS)
        for i, (kind, found) in enumerate(kinds.items()):
            x = GUTTER + i * (wide + gap)
            grid = raster([found.get(name) for name in names], self._first, self._last or 0).rows(rows)
            parts.append(svg.text(x, self._y + 12, f"{kind}, rms", bold=True))
            parts += [svg.box(x, top, wide, tall, "line"), svg.heat(x, top, wide, tall, log10(grid))]
        every = max(-(-12 * len(names) // int(tall)), 1)
        for k in range(0, len(names), every):
            y = top + (k + 0.5) * tall / len(names) + 4
            parts.append(
                svg.text(GUTTER - 6, y, svg.cut(names[k], GUTTER - 14, 11), "faint", size=11, at="end")
            )
        self._y = top + tall + 4
        recorded = max((len(h) for rows in kinds.values() for h in rows.values()), default=0)
        seen = max(self._evidence.captured, recorded)
        parts.append(
            svg.text(
                GUTTER,
                self._y + 11,
                f"{seen:,} steps recorded; lighter, darker: above, below the layer's median",
                "faint",
                size=11,
            )
        )
        parts += svg.legend(WIDE - EDGE - 150, self._y + 2, 120)
        self._y += 18
        return parts

    def _findings(self) -> list[str]:
        parts = [svg.rule(EDGE, self._y + 6, WIDE - EDGE, self._y + 6)]
        self._y += 10
        for finding in (self._found or ())[:FINDINGS]:
            sign, ink = SEVERITY[finding.severity]
            title = f"{sign} {finding.title}, {finding.steps}"
            parts.append(svg.text(EDGE, self._y + 13, svg.cut(title, WIDE - 2 * EDGE), ink, bold=True))
            parts.append(svg.text(EDGE + 14, self._y + 28, svg.cut(finding.message, WIDE - 40)))
            parts.append(svg.text(EDGE + 14, self._y + 43, svg.cut(f"→ {finding.cure}", WIDE - 40), "faint"))
            self._y += 50
        parts.append(svg.text(EDGE, self._y + 13, svg.cut(self._verdict(), WIDE - 2 * EDGE), "faint"))
        self._y += 18
        if self._training.path:
            said = f'fs.open("{self._training.path}")   ·   Scope(live=False) turns this picture off'
            parts.append(svg.text(EDGE, self._y + 12, svg.cut(said, WIDE - 2 * EDGE, 11), "faint", size=11))
            self._y += 16
        return parts


def _first(evidence: Evidence, base: str) -> History | None:
    """The scalar of this kind, or the first of several: a step with two optimizers has two losses."""
    return evidence.history(Site(base)) or next((h for h in evidence.of(base) if not h.shape), None)


def _newest(history: History | None) -> str:
    if history is None or not len(history):
        return ""
    value = float(history.value[-1])
    return number(value) if np.isfinite(value) else str(value)


def _span(history: History) -> str:
    finite = history.value[np.isfinite(history.value)]
    return f" ({number(float(finite.min()))} to {number(float(finite.max()))})" if len(finite) > 1 else ""


def _float(values: Array) -> Array:
    return values.astype(np.float64)
