"""`run.plot`: one method for each view of a run. `fs.compare` is the only view of two runs.

Every method names a quantity the same way: a site (`gradients/conv1`) or a kind of site (`gradients`), then a stat (`rms`). `step`
selects the newest recorded step up to it; the default is the last step.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from rich.console import RenderableType

from fitscope.errors import RunError, one_of
from fitscope.read import Run
from fitscope.reduce.stats import ZERO_BUCKET, edges
from fitscope.show import figures
from fitscope.show.choose import column_of, measure_of, newest, place_of
from fitscope.show.data import exact, payload
from fitscope.show.data.cost import table as cost_table
from fitscope.show.data.facts import by_name
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE
from fitscope.show.data.modes import MODES
from fitscope.show.data.samples import visits, worst_of_batch
from fitscope.show.report import Wanted
from fitscope.show.summary import summary as summary_text
from fitscope.show.text import Pen, meaning
from fitscope.show.views import RunLike, View, curve_view, gathered, table_view, title_of

Mode = Literal["absolute", "past", "change", "start"]  #: the reference of a spectrogram's values
_HEALTH = ("activations.rms", "gradients.rms", "activations.zeros", "updates.ratio")


class Plot:
    """The views of one run. Each method returns an `fs.View`.

    A quantity is a site (`"gradients/conv1"`) or a kind of site (`"gradients"`), then a stat (`"rms"`). Without them the view shows the
    quantity of the worst finding. `step` selects the newest recorded step up to it; the default is the last step.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __repr__(self) -> str:
        names = ", ".join(name for name in vars(type(self)) if not name.startswith("_"))
        return f"<views of run {self._run.id!r}: {names}>"

    def spectrogram(
        self, kind: str | None = None, stat: str | None = None, *, mode: Mode = "absolute"
    ) -> View:
        """A heat map of layers by steps.

        Args:
            kind: The kind of site.
            stat: The stat.
            mode: The reference: "absolute" values, the layer's own "past", the "change" since the previous batch, or the "start".
        """
        if mode not in get_args(Mode):
            raise RunError("one of the choices for `mode`", repr(mode), one_of(get_args(Mode), str(mode)))
        return _spectrogram(gathered(self._run), kind, stat, mode)

    def depth(self, kind: str | None = None, stat: str | None = None, *, step: int | None = None) -> View:
        """Every layer at one step, from input to output."""
        g = gathered(self._run)
        measure = measure_of(g, kind, stat)
        matrix = g.matrix(measure.key)
        column, at = column_of(matrix, step)
        cells = matrix.cells(column, column + 1)
        known = (cells.flags[:, 0] & VALUE) > 0
        numbers = np.where(known, matrix.code.decode(cells.high[:, 0]), np.nan)
        scale, low, high = matrix.scale.kind, matrix.scale.low, matrix.scale.high
        said = [
            "NaN" if f & NAN else "Inf" if f & INF else meaning(scale, n) if f & VALUE else "–"
            for n, f in zip(numbers, cells.flags[:, 0], strict=True)
        ]
        what, names = f"{measure.title} at step {at:,}", [row.name for row in g.rows]
        values = 2.0**numbers if scale == "log2" else numbers
        return View(
            "depth", title_of(g, what), g, Wanted(("strip", "depth"), measure.key, step=at),
            lambda width, pen: figures.bars_text(names, (numbers - low) / (high - low), said, width, pen),
            lambda: figures.bars_figure(names, values, what, log=scale == "log2"),
        )  # fmt: skip

    def series(self, site: str, stat: str | None = None) -> View:
        """One stat of one site over the steps, as in `run.series`."""
        g, found = gathered(self._run), self._run.series(site, stat)
        steps = found.index.get_level_values("step").to_numpy()
        return curve_view(g, "series", str(found.name), steps, found.to_numpy(float))

    def loss(self) -> View:
        """The loss of every recorded batch, and the steps of each finding."""
        g = gathered(self._run)
        if not g.survey.loss.count:
            why = g.run.unseen.get("loss", "none was watched, or no step was captured")
            raise RunError(
                "a run with the loss of its batches",
                f"{g.run.id!r}, which has none: {why}",
                "Watch it: fs.loss()",
            )
        return curve_view(
            g, "loss", "loss per batch", g.survey.loss.steps, g.survey.loss.values, ("loss", "lanes")
        )

    def values(self, site: str, *, step: int | None = None) -> View:
        """The distribution of one site, or of a layer's output, in one batch and in the previous one."""
        g = gathered(self._run)
        row, key, name = place_of(g, site)
        _, at = column_of(g.matrix(key), step)
        rows = exact.rows_at(g, [name], at, ["buckets", "counts"]).get(name, [])
        found = [row for row in rows if row["counts"]]
        buckets = np.array(found[0]["buckets"] if found else [0])
        counts = np.array(found[0]["counts"] if found else [0], float)
        labels = [f"{bound:.3g}" for bound in edges()[buckets + ZERO_BUCKET]]
        what, said = f"values of {name} at step {at:,}", [f"{count:,.0f}" for count in counts]
        return View(
            "values", title_of(g, what), g, Wanted(("inspector",), key, row=row, step=at, site=name),
            lambda width, pen: figures.bars_text(labels, counts / max(counts.max(), 1), said, width, pen),
            lambda: figures.bars_figure(labels, counts, what, log=False), 800,
        )  # fmt: skip

    def histogram(self, site: str) -> View:
        """The distribution of one site, or of a layer's output, over the training, as in `run.histogram`."""
        g = gathered(self._run)
        row, key, name = place_of(g, site)
        facts, arrays = payload.distribution(g, [name]).get(name, ({"low": 0, "end": 1}, {}))
        share = arrays.get("share", np.zeros((1, 1))).astype(float).T / 255
        starts = np.append(arrays.get("start", [0]), facts["end"])
        labels = [f"{bound:.3g}" for bound in edges()[np.arange(len(share)) + facts["low"] + ZERO_BUCKET]]
        what = f"values of {name} over the training"

        def text(width: int, pen: Pen) -> RenderableType:
            used = np.flatnonzero(share.any(axis=1))[::-1]
            most = [f"{share[i].max():.0%}" for i in used]
            return figures.bars_text([labels[i] for i in used], share[used].mean(axis=1), most, width, pen)

        _, at = column_of(g.matrix(key), None)
        return View(
            "histogram", title_of(g, what), g, Wanted(("inspector",), key, row=row, step=at, site=name), text,
            lambda: figures.distribution_figure(starts, labels, share, what), 800,
        )  # fmt: skip

    def jumps(
        self, kind: str | None = None, stat: str | None = None, *, step: int | None = None, rows: int = 20
    ) -> View:
        """The layers that changed most since the previous batch, in standard deviations of their own history."""
        g = gathered(self._run)
        measure = measure_of(g, kind, stat)
        _, at = column_of(g.matrix(measure.key), step)
        moved = payload.moved(g, measure.key, at, rows)
        table = [[m["row"], "→ NaN or Inf" if m["sigma"] is None else f"{m['sigma']:+.1f} σ"] for m in moved]
        table = table or [["none", "no layer was 1.5 σ or more from its own past"]]
        what = f"largest moves of {measure.title} at step {at:,}"
        return table_view(g, "jumps", what, ["layer", "against its own past"], table)

    def health(self, *, rows: int = 40) -> View:
        """Every layer at the last step, with its main stats and findings. Layers with findings come first."""
        g = gathered(self._run)
        shown = [m for m in g.measures if m.key in _HEALTH]
        found = by_name(g.findings)
        table: list[list[Any]] = []
        for i, row in enumerate(g.rows):
            said = "; ".join(
                f"{'✖' if f.severity == 'error' else '▲'} {f.title.partition(' · ')[0]} since {f.step:,}"
                for f in found.get(row.name, ())
            )
            table.append([row.name, row.type, *(newest(g.matrix(m.key), i) for m in shown), said or "✓"])
        table.sort(key=lambda line: line[-1] == "✓")  # the sort is stable: otherwise the model's order stays
        columns = ["layer", "type", *(m.title for m in shown), "stands out"]
        return table_view(g, "health", "layers", columns, table[:rows])

    def model(self) -> View:
        """The layers in order, each with its type, output shape, the layers that feed it, and findings."""
        g = gathered(self._run)
        found = by_name(g.findings)
        table = [
            [
                r.name,
                r.type,
                r.shape or None,
                ", ".join(r.after) or None,
                "; ".join(f.title for f in found.get(r.name, ())) or None,
            ]
            for r in g.rows
        ]
        columns = ["layer", "type", "output", "fed by", "stands out"]
        return table_view(g, "model", "layers", columns, table)

    def worst_samples(self, *, step: int | None = None, rows: int = 12) -> View:
        """The samples of a batch with the highest loss. Requires `fs.loss(per_sample=True)`."""
        g = _with_samples(self._run)
        found = worst_of_batch(g, g.survey.last_step or 0 if step is None else step, rows)
        table = [[_named(s), s["truth"], s["predicted"], s["p"], s["loss"]] for s in found["samples"]]
        what = f"worst samples at step {found['step']:,}" if found["step"] is not None else "worst samples"
        return table_view(g, "worst_samples", what, ["sample", "truth", "predicted", "p", "loss"], table)

    def sample(self, id: str) -> View:  # noqa: A002 - the column of run.samples
        """The loss of one sample over the training. Requires `fs.loss(per_sample=True)`."""
        g = _with_samples(self._run)
        found = visits(g.run, [str(id)], most=1 << 30).get(str(id))
        if not found:
            raise RunError("the id of a recorded sample", repr(id), "run.samples['id'] lists them")
        steps, losses = (np.array(side) for side in zip(*found, strict=True))
        return curve_view(g, "sample", f"loss of sample {id}", steps, losses.astype(float))

    def predictions(self, *, step: int | None = None, rows: int = 40) -> View:
        """Predictions and targets of the samples of a batch. Requires `fs.loss(per_sample=True)`."""
        g = _with_samples(self._run)
        found = worst_of_batch(g, g.survey.last_step or 0 if step is None else step, rows)
        table = [
            [_named(s), s["truth"], s["predicted"], s["p"], "✖ wrong" if s["wrong"] else ""]
            for s in found["samples"]
        ]
        return table_view(g, "predictions", "predictions", ["sample", "truth", "predicted", "p", ""], table)

    def overhead(self) -> View:
        """The cost of recording, and whether recording changed the training."""
        g = gathered(self._run)
        identity = [["identity", g.run.identity.sentence]] if g.run.identity.known else []
        table = cost_table(g.run.overhead) + identity
        return table_view(g, "overhead", "what recording cost", ["", "value"], table)

    def summary(self) -> View:
        """The whole page: findings, loss, spectrogram and the table of layers."""
        g = gathered(self._run)

        def picture() -> Any:
            measure = measure_of(g, None, None)
            return figures.spectrogram_figure(g, g.matrix(measure.key), measure.title)

        return View(
            "summary", title_of(g, "summary"), g, Wanted(),
            lambda width, pen: summary_text(g, width, pen), picture, 900,
        )  # fmt: skip


def compare(run: RunLike, other: RunLike, kind: str | None = None, stat: str | None = None) -> View:
    """Compares two runs layer by layer and step by step, as a log2 ratio."""
    return _spectrogram(gathered(run), kind, stat, "run", gathered(other))


def _spectrogram(
    g: Gathered, kind: str | None, stat: str | None, mode: str, other: Gathered | None = None
) -> View:
    measure = measure_of(g, kind, stat)
    matrix = g.matrix(measure.key, mode, other)
    related = "" if mode == "absolute" else f", {f'vs {other.run.id}' if other is not None else MODES[mode]}"
    what = measure.title + related
    return View(
        "spectrogram" if other is None else "compare", title_of(g, what), g,
        Wanted(("strip", "heat", "depth", "caption"), measure.key, mode, other),
        lambda width, pen: figures.spectrogram_text(g, matrix, what, width, pen),
        lambda: figures.spectrogram_figure(g, matrix, what),
    )  # fmt: skip


def _with_samples(run: Run) -> Gathered:
    g = gathered(run)
    if not g.has_samples:
        raise RunError(
            "a run with recorded samples",
            f"{g.run.id!r}, which has none",
            "Watch them: fs.loss(per_sample=True)",
        )
    return g


def _named(sample: dict[str, Any]) -> str:
    return f"#{sample['id']}" if sample["id"] is not None else f"row {sample['sample']}"
