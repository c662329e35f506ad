"""The functions that make views: `fs.spectrogram(run)` and its like. One for each thing one may want to see.

`run` is what `fs.open` gives, or a path. A layer is named as in the picture; a step means the newest recorded one up
to it, and the last if none is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from fitscope.errors import RunError, one_of
from fitscope.reduce.stats import ZERO_BUCKET, edges
from fitscope.show import figures
from fitscope.show.data import payload
from fitscope.show.data.cost import table as cost_table
from fitscope.show.data.facts import by_name
from fitscope.show.data.gather import Gathered
from fitscope.show.data.matrix import INF, NAN, VALUE, Matrix
from fitscope.show.data.modes import MODES
from fitscope.show.data.samples import visits, worst_of_batch
from fitscope.show.data.series import Series
from fitscope.show.report import Wanted
from fitscope.show.summary import summary as summary_text
from fitscope.show.text import Pen, meaning
from fitscope.show.views import RunLike, View, gathered, title_of


def spectrogram(
    run: RunLike, measure: str | None = None, mode: str = "absolute", other: RunLike | None = None
) -> View:
    """Layers × steps. `measure` as `gradients.rms`; `mode`: absolute, past, change, start, or run with `other`."""
    g = gathered(run)
    key, against = _measure(g, measure), gathered(other) if other is not None else None
    matrix = g.matrix(key, mode, against)
    related = f"vs {against.run.id}" if mode == "run" and against is not None else MODES[mode]
    what = _what(g, key) + ("" if mode == "absolute" else f", {related}")
    return View(
        "spectrogram", title_of(g, what), g,
        Wanted(("strip", "heat", "depth", "caption"), key, mode, against),
        lambda width, pen: figures.spectrogram_text(g, matrix, what, width, pen),
        lambda: figures.spectrogram_figure(g, matrix, what),
    )  # fmt: skip


def compare(run: RunLike, other: RunLike, measure: str | None = None) -> View:
    """How a run differs from another, layer by layer and step by step, in doublings."""
    return spectrogram(run, measure, "run", other)


def model_strip(run: RunLike) -> View:
    """The layers in order, with type, output, and what stands out."""
    g = gathered(run)
    found = by_name(g.findings)
    rows = [
        [r.name, r.type, r.shape or None, "; ".join(f.title for f in found.get(r.name, ())) or None]
        for r in g.rows
    ]
    return _table(
        g, "model_strip", "layers", ["layer", "type", "output", "stands out"], rows, ("strip", "samples")
    )


def depth_profile(run: RunLike, step: int | None = None, measure: str | None = None) -> View:
    """Every layer at one step."""
    g = gathered(run)
    key = _measure(g, measure)
    matrix = g.matrix(key)
    column, at = _column(matrix, step)
    cells = matrix.cells(column, column + 1)
    known = (cells.flags[:, 0] & VALUE) > 0
    numbers = np.where(known, matrix.code.decode(cells.high[:, 0]), np.nan)
    kind, low, high = matrix.scale.kind, matrix.scale.low, matrix.scale.high
    said = [
        "NaN" if f & NAN else "Inf" if f & INF else meaning(kind, n) if f & VALUE else "–"
        for n, f in zip(numbers, cells.flags[:, 0], strict=True)
    ]
    what, names = f"{_what(g, key)} at step {at:,}", [row.name for row in g.rows]
    values = 2.0**numbers if kind == "log2" else numbers
    return View(
        "depth_profile", title_of(g, what), g, Wanted(("strip", "depth"), key, step=at),
        lambda width, pen: figures.bars_text(names, (numbers - low) / (high - low), said, width, pen),
        lambda: figures.bars_figure(names, values, what, log=kind == "log2"),
    )  # fmt: skip


def layer_series(run: RunLike, layer: str, stat: str = "rms", kind: str = "activations") -> View:
    """One stat of one layer over the steps: `kind` is activations, gradients, …"""
    g = gathered(run)
    row = g.rows[g.row(layer)]
    if kind not in row.sites:
        raise RunError(f"a kind of site that {layer!r} has", repr(kind), one_of(row.sites, kind))
    found = g.run.series(row.sites[kind][0], stat)
    return _curve(
        g, "layer_series", f"{stat} of {row.sites[kind][0]}", found.index.to_numpy(), found.to_numpy(float)
    )


def batch_loss(run: RunLike) -> View:
    """The loss of every recorded batch, and when anything stood out."""
    g = gathered(run)
    if not g.loss.count:
        why = g.run.unseen.get("loss", "none was watched, or no step was captured")
        raise RunError(
            "a run with the loss of its batches",
            f"{g.run.id!r}, which has none: {why}",
            "Watch it: fs.loss()",
        )
    return _curve(g, "batch_loss", "loss per batch", g.loss.steps, g.loss.values, ("loss", "lanes"))


def values(run: RunLike, layer: str, step: int | None = None, measure: str | None = None) -> View:
    """The values of one layer in one batch, beside those of the batch before."""
    g = gathered(run)
    key = _measure(g, measure)
    _, at = _column(g.matrix(key), step)
    site = payload.main_site(g, layer, key)
    rows = g.rows_at([site or ""], at, ["buckets", "counts"]).get(site or "", [])
    found = [row for row in rows if row["counts"]]
    buckets = np.array(found[0]["buckets"] if found else [0])
    counts = np.array(found[0]["counts"] if found else [0], float)
    names = [f"{bound:.3g}" for bound in edges()[buckets + ZERO_BUCKET]]
    what, said = f"values of {site} at step {at:,}", [f"{count:,.0f}" for count in counts]
    return View(
        "values", title_of(g, what), g, Wanted(("inspector",), key, row=layer, step=at),
        lambda width, pen: figures.bars_text(names, counts / max(counts.max(), 1), said, width, pen),
        lambda: figures.bars_figure(names, counts, what, log=False), 640,
    )  # fmt: skip


def values_over_time(run: RunLike, layer: str, measure: str | None = None) -> View:
    """How the values of one layer were spread, over the whole training."""
    g = gathered(run)
    key = _measure(g, measure)
    site = payload.main_site(g, layer, key)
    facts, arrays = payload.distribution(g, [site or ""]).get(site or "", ({"low": 0, "end": 1}, {}))
    share = arrays.get("share", np.zeros((1, 1))).astype(float).T / 255
    first = facts["low"]
    labels = [f"{bound:.3g}" for bound in edges()[np.arange(first, first + len(share)) + ZERO_BUCKET]]
    what = f"values of {site} over the training"
    matrix = g.matrix(key)

    def text(width: int, pen: Pen) -> RenderableType:
        used = np.flatnonzero(share.any(axis=1))[::-1]
        return figures.bars_text(
            [labels[i] for i in used],
            share[used].mean(axis=1),
            [f"{share[i].max():.0%}" for i in used],
            width,
            pen,
        )

    def picture() -> Any:
        made, axes = figures.figure(9, 3.5)
        starts = np.append(arrays.get("start", [0]), facts["end"])
        axes.pcolormesh(starts, np.arange(len(share) + 1), share, cmap="viridis", rasterized=True)
        every = max(len(labels) // 12, 1)
        axes.set_yticks(np.arange(0, len(labels), every) + 0.5, labels[::every], fontsize=7)
        axes.set_xlabel("step")
        axes.set_title(what)
        return made

    _, at = _column(matrix, None)
    return View(
        "values_over_time",
        title_of(g, what),
        g,
        Wanted(("inspector",), key, row=layer, step=at),
        text,
        picture,
        640,
    )


def batch_change(run: RunLike, step: int | None = None, measure: str | None = None) -> View:
    """What moved most from the batch before to this one, against each layer's own past."""
    g = gathered(run)
    key = _measure(g, measure)
    _, at = _column(g.matrix(key), step)
    moved = payload.moved(g, key, at, 20)
    rows = [[m["row"], "→ NaN or Inf" if m["sigma"] is None else f"{m['sigma']:+.1f} σ"] for m in moved]
    what = f"what moved in {_what(g, key)} at step {at:,}"
    return _table(g, "batch_change", what, ["layer", "against its own past"], rows)


def health_table(run: RunLike, rows: int = 40) -> View:
    """Every layer at the last step: its size, its way there, and what stands out."""
    g = gathered(run)
    keys = [
        m.key
        for m in g.measures
        if m.key in ("activations.rms", "gradients.rms", "activations.zeros", "updates.ratio")
    ]
    found = by_name(g.findings)
    titles = {m.key: m.title for m in g.measures}
    table = []
    for i, row in enumerate(g.rows):
        cells = [_newest(g.matrix(key), i) for key in keys]
        said = "; ".join(
            f"{'✖' if f.severity == 'error' else '▲'} {f.title.partition(' · ')[0]} since {f.step:,}"
            for f in found.get(row.name, ())
        )
        table.append([row.name, row.type, *cells, said or "✓"])
    table.sort(key=lambda line: line[-1] == "✓")  # what stands out first, else in the model's order
    return _table(
        g,
        "health_table",
        "layers",
        ["layer", "type", *(titles[key] for key in keys), "stands out"],
        table[:rows],
    )


def worst_samples(run: RunLike, step: int | None = None, most: int = 12) -> View:
    """The samples of a batch with the highest loss. Needs `fs.loss(per_sample=True)`."""
    g = _with_samples(run)
    found = worst_of_batch(g, g.last_step or 0 if step is None else step, most)
    rows = [[_named(s), s["truth"], s["predicted"], s["p"], s["loss"]] for s in found["samples"]]
    what = f"worst samples at step {found['step']:,}" if found["step"] is not None else "worst samples"
    return _table(g, "worst_samples", what, ["sample", "truth", "predicted", "p", "loss"], rows)


def sample_history(run: RunLike, sample: str) -> View:
    """The loss of one sample at each visit. Needs ids: `fs.loss(per_sample=True, ids=…)`."""
    g = _with_samples(run)
    found = visits(g.run, [str(sample)], most=1 << 30).get(str(sample))
    if not found:
        raise RunError("the id of a recorded sample", repr(sample), "run.samples['id'] has them")
    steps, losses = (np.array(side) for side in zip(*found, strict=True))
    return _curve(g, "sample_history", f"loss of sample {sample}", steps, losses.astype(float))


def predictions_view(run: RunLike, step: int | None = None, most: int = 40) -> View:
    """What was predicted in a batch and what was true. Needs `fs.loss(per_sample=True)` or recorded predictions."""
    g = _with_samples(run)
    found = worst_of_batch(g, g.last_step or 0 if step is None else step, most)
    rows = [
        [_named(s), s["truth"], s["predicted"], s["p"], "✖ wrong" if s["wrong"] else ""]
        for s in found["samples"]
    ]
    return _table(g, "predictions_view", "predictions", ["sample", "truth", "predicted", "p", ""], rows)


def overhead(run: RunLike) -> View:
    """What watching cost, and whether it changed anything."""
    g = gathered(run)
    identity = [["identity", g.run.identity.sentence]] if g.run.identity.known else []
    return _table(g, "overhead", "what watching cost", ["", "value"], cost_table(g.run.overhead) + identity)


def summary(run: RunLike) -> View:
    """The whole picture: the verdict, the loss, the spectrogram, and the table of layers."""
    g = gathered(run)
    return View(
        "summary", title_of(g, "summary"), g, Wanted(),
        lambda width, pen: summary_text(g, width, pen),
        lambda: figures.spectrogram_figure(g, g.matrix(_measure(g, None)), _what(g, _measure(g, None))), 900,
    )  # fmt: skip


# ---- the small parts ----------------------------------------------------------------------------------------


def _measure(g: Gathered, wanted: str | None) -> str:
    keys = [m.key for m in g.measures]
    if not keys:
        raise RunError(
            "a run with recorded layers", f"{g.run.id!r}, which has none", "Watch layers: fs.activations()"
        )
    if wanted is not None and wanted not in keys:
        raise RunError("a measure of this run", repr(wanted), one_of(keys, wanted))
    return wanted or next((f.measure for f in g.findings if f.measure in keys), None) or keys[0]


def _what(g: Gathered, key: str) -> str:
    return next(m.title for m in g.measures if m.key == key)


def _column(matrix: Matrix, step: int | None) -> tuple[int, int]:
    """The column of a step, and the step it has."""
    if not matrix.count:
        raise RunError("a recorded step", "a measure without any", "Wait for the first steps")
    column = matrix.count - 1 if step is None else int(np.searchsorted(matrix.steps, step, side="right")) - 1
    if column < 0:
        raise RunError(f"a step from {matrix.steps[0]} on", str(step), "Name a later one")
    return column, int(matrix.steps[column])


def _newest(matrix: Matrix, row: int) -> str | None:
    flags = matrix.cells().flags[row]
    seen = np.flatnonzero(flags)
    if not len(seen):
        return None
    flag = flags[seen[-1]]
    if flag & (NAN | INF):
        return "NaN" if flag & NAN else "Inf"
    return meaning(matrix.scale.kind, float(matrix.code.decode(matrix.cells().high[row, seen[-1]])))


def _curve(
    g: Gathered, kind: str, what: str, steps: Any, numbers: Any, parts: tuple[str, ...] = ("loss",)
) -> View:
    held = Series()
    held.add(np.asarray(steps, np.int64), np.asarray(numbers, float))
    series = payload.columns_of(held, what)
    return View(
        kind, title_of(g, what), g, Wanted(parts, series=series),
        lambda width, pen: figures.curve_text(held.steps, held.values, width, pen),
        lambda: figures.curve_figure(held.steps, held.values, what), 190,
    )  # fmt: skip


def _table(
    g: Gathered,
    kind: str,
    what: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    parts: tuple[str, ...] = ("samples",),
) -> View:
    table = {"title": what, "columns": list(columns), "rows": [list(row) for row in rows]}
    return View(
        kind, title_of(g, what), g, Wanted(parts, table=table),
        lambda width, pen: figures.table_text(columns, rows),  # noqa: ARG005
        lambda: figures.table_figure(columns, rows, what), min(80 + 26 * len(rows), 700),
    )  # fmt: skip


def _with_samples(run: RunLike) -> Gathered:
    g = gathered(run)
    if not g.has_samples:
        raise RunError(
            "a run in which single samples were recorded",
            f"{g.run.id!r}, which has none",
            "Watch them: fs.loss(per_sample=True)",
        )
    return g


def _named(sample: dict[str, Any]) -> str:
    return f"#{sample['id']}" if sample["id"] is not None else f"row {sample['sample']}"
