"""The picture of a training in the cell of a notebook: progress, loss, metrics, layers by steps, and findings.

fitscope draws it from the evidence that the diagnosis keeps anyway, so it needs no file and no more memory. Its size does not grow with
the training: at most some ten kilobytes. `drawn` makes the SVG, and the same facts as text for front ends without pictures.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fitscope.diagnose import Evidence, Findings
from fitscope.diagnose.history import History
from fitscope.show import svg
from fitscope.show.data.cost import percent
from fitscope.show.raster import by_layer, raster
from fitscope.show.squeeze import log10
from fitscope.show.words import FINDINGS, SEVERITY, STATUS, Training, Words, lowest, newest, span

Array = np.ndarray[Any, Any]

WIDE = 760
GUTTER = 112  #: pixels left of the charts, for the names of layers and numbers
EDGE = 12
GAP = 16
CHART = 110  #: pixels of the loss
SMALL = 66  #: pixels of a metric
ROWS = 40  #: the most rows of a heat map; more layers share rows
METRICS = 3
INKS = {
    "running": "loss", "complete": "good", "interrupted": "warning", "failed": "error",
    "error": "error", "warning": "warning", "note": "faint",
}  # fmt: skip
SHADES = "lighter, darker: above, below the layer's median"


def drawn(evidence: Evidence, found: Findings | None, training: Training) -> dict[str, str]:
    """The picture by MIME type, as a notebook takes it."""
    words = Words(evidence, found, training)
    lines = words.lines()
    return {"image/svg+xml": _Picture(evidence, words).drawing(lines[0]), "text/plain": "\n".join(lines)}


class _Picture:
    """One picture, built from top to bottom."""

    def __init__(self, evidence: Evidence, words: Words) -> None:
        self._evidence, self._words = evidence, words
        steps = [h.steps[0] for h in (words.loss, *words.logs.values()) if h is not None]
        self._first = int(min(steps, default=0))
        self._last = max(words.last or 0, self._first + 1)
        logs = next(iter(words.logs.values()), None)
        self._ends = [] if logs is None else logs.steps[:-1].tolist()  # the last steps of the epochs so far
        self._y = 0.0

    def drawing(self, label: str) -> str:
        parts = self._head()
        if self._words.last is None:
            waiting = self._words.training.status == "running"
            said = (
                "waiting for the first step, which compiles the model"
                if waiting
                else "no training step was recorded"
            )
            parts.append(svg.text(EDGE, self._y + 18, said, "faint"))
            self._y += 28
        else:
            parts += self._losses() + self._metrics() + self._layers() + self._findings()
        return svg.picture(WIDE, int(self._y + 8), parts, label)

    def _head(self) -> list[str]:
        now, words = self._words.training, self._words
        ink, wide = INKS[now.status], WIDE - 2 * EDGE
        sign, name = (f"{STATUS[now.status]}  ", ink, True), (svg.cut(words.title, 180), "text", True)
        told = ("   " + " · ".join([now.status, *words.progress()]), "text", False)
        cost = "" if now.cost is None else f"recording: {now.cost[0]:.1f} s of CPU, {percent(now.cost[1])}"
        parts = [
            svg.line(EDGE, 22, sign, name, told),
            svg.text(WIDE - EDGE, 22, cost, "faint", size=11, at="end"),
        ]
        self._y = 32.0
        if now.ended_by:
            parts.append(svg.text(EDGE + 18, 40, svg.cut(now.ended_by, WIDE - 60), ink))
            self._y = 50.0
        if now.total and words.last is not None:
            done = min((words.last + 1 - now.begun) / max(now.total - now.begun, 1), 1.0)
            parts += [
                svg.box(EDGE, self._y, part, 3, of, round=1.5)
                for part, of in ((wide, "line"), (wide * done, ink))
            ]
        self._y += 12
        return parts

    def _chart(
        self, x: float, wide: float, tall: float, curves: list[svg.Curve], legend: list[tuple[str, str]]
    ) -> list[str]:
        """Curves below their coloured titles."""
        place = svg.Place(x, self._y + 18, wide, tall, self._first, self._last)
        titles = ((f"{svg.cut(said, wide / len(legend))}    ", ink, True) for said, ink in legend)
        return [svg.line(x, self._y + 12, *titles), *svg.chart(place, curves, self._ends)]

    def _losses(self) -> list[str]:
        """The loss of every batch, and the validation loss of every epoch."""
        curves, legend = [], []
        if (h := self._words.loss) is not None:
            values, low, high = (_float(column) for column in (h.value, h.min, h.max))
            curves.append(svg.Curve(h.steps, values, "loss", band=True, low=low, high=high))
            legend.append((f"loss of each batch {newest(h)}", "loss"))
        if (h := self._words.logs.get("val_loss")) is not None:
            curves.append(_dots(h))
            legend.append((f"validation loss {newest(h)}{lowest(h)}", "val"))
        if not curves:
            return []
        parts = self._chart(GUTTER, WIDE - GUTTER - EDGE, CHART, curves, legend)
        y = self._y + CHART + 32
        parts.append(svg.text(GUTTER, y, f"step {self._first:,}", "faint", size=11))
        parts.append(svg.text(WIDE - EDGE, y, f"{self._words.last:,}", "faint", size=11, at="end"))
        self._y += CHART + 38
        return parts

    def _metrics(self) -> list[str]:
        """The metrics of captured batches and of each epoch. Those of the training epochs only if batches have none."""
        batches = {h.site.label: h for h in self._evidence.of("metrics") if not h.site.suffix}
        logs, parts = self._words.logs, []
        names = [
            n
            for n in dict.fromkeys([*batches, *logs])
            if not n.startswith("val_") and n not in ("loss", "learning_rate")
        ]
        names = names[:METRICS]
        for i, name in enumerate(names):
            each = (WIDE - EDGE) / len(names)
            x = i * each + (60 if i else GUTTER)
            wide = (i + 1) * each - x - (GAP if i + 1 < len(names) else 0)
            whole = logs.get(name, batches.get(name))
            assert whole is not None
            legend = [(f"{name} {newest(whole)}{span(whole)}", "loss")]
            h = batches.get(name)
            curves = (
                [_dots(whole, "loss")]
                if h is None
                else [svg.Curve(h.steps, _float(h.value), "loss", band=True)]
            )
            if (h := logs.get(f"val_{name}")) is not None:
                curves.append(_dots(h))
                legend.append((f"validation {newest(h)}{span(h)}", "val"))
            parts += self._chart(x, wide, SMALL, curves, legend)
        self._y += SMALL + 28 if names else 0
        return parts

    def _layers(self) -> list[str]:
        """Layers by steps: activations and gradients side by side, on one scale of colours."""
        kinds = {kind: by_layer(self._evidence, kind) for kind in ("activations", "gradients")}
        kinds = {kind: rows for kind, rows in kinds.items() if rows}
        names = self._evidence.network.sorted({name for rows in kinds.values() for name in rows})
        if not names:
            return []
        tall = max(min(13 * len(names), 260), 26)
        wide = (WIDE - GUTTER - EDGE - GAP * (len(kinds) - 1)) / len(kinds)
        top, parts = self._y + 20, []
        for i, (kind, found) in enumerate(kinds.items()):
            x = GUTTER + i * (wide + GAP)
            grid = raster([found.get(name) for name in names], self._first, self._words.last or 0).rows(
                min(len(names), ROWS)
            )
            parts.append(svg.text(x, self._y + 12, f"{kind}, rms", bold=True))
            parts += [svg.box(x, top, wide, tall, "line"), svg.heat(x, top, wide, tall, log10(grid))]
        for k in range(0, len(names), max(-(-12 * len(names) // tall), 1)):
            y, name = top + (k + 0.5) * tall / len(names) + 4, svg.cut(names[k], GUTTER - 14, 11)
            parts.append(svg.text(GUTTER - 6, y, name, "faint", size=11, at="end"))
        self._y = top + tall + 4
        parts.append(
            svg.text(
                GUTTER,
                self._y + 11,
                f"{self._evidence.captured:,} steps recorded; {SHADES}",
                "faint",
                size=11,
            )
        )
        parts += svg.legend(WIDE - EDGE - 150, self._y + 2, 120)
        self._y += 18
        return parts

    def _findings(self) -> list[str]:
        wide, words = WIDE - 2 * EDGE, self._words
        parts = [svg.rule(EDGE, self._y + 6, WIDE - EDGE, self._y + 6)]
        self._y += 10
        for finding in words.found[:FINDINGS]:
            title = svg.cut(f"{SEVERITY[finding.severity]} {finding.title}, {finding.steps}", wide)
            parts.append(svg.text(EDGE, self._y + 13, title, INKS[finding.severity], bold=True))
            self._y += 15
            for said, ink in ((finding.message, "text"), (f"→ {finding.cure}", "faint")):
                for line in svg.wrapped(said, wide - 16, 2):
                    parts.append(svg.text(EDGE + 14, self._y + 13, line, ink))
                    self._y += 15
            self._y += 5
        parts.append(svg.text(EDGE, self._y + 13, svg.cut(words.verdict, wide), "faint"))
        self._y += 18
        if words.training.path:
            said = f'fs.open("{words.training.path}")   ·   Scope(live=False) turns this picture off'
            parts.append(svg.text(EDGE, self._y + 12, svg.cut(said, wide, 11), "faint", size=11))
            self._y += 16
        return parts


def _dots(history: History, ink: str = "val") -> svg.Curve:
    """A number for each epoch."""
    return svg.Curve(history.steps, _float(history.value), ink, dots=True)


def _float(values: Array) -> Array:
    return values.astype(np.float64)
