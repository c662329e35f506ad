"""A run on one screen of a terminal: its status, the loss, the spectrogram, and a table of layers.

In a narrow window it leaves out the least important columns. It always reports damaged, missing or dropped data. This
module reads a run and draws with `text`; it prints nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fitscope.errors import RunError, one_of
from fitscope.read import Run
from fitscope.show.data.cost import cadence, percent
from fitscope.show.data.facts import PlacedFinding, missed
from fitscope.show.data.gather import Gathered
from fitscope.show.data.rows import Row
from fitscope.show.overview import Overview
from fitscope.show.squeeze import INF, MISSING, NAN, VALUE, Array, Grid
from fitscope.show.text import Pen, clean, curve, legend, meaning, number, span, spectrogram, trend

#: Status → sign and style. Severity has a symbol as well as a colour.
STATUS = {
    "running": ("●", "bold cyan"),
    "complete": ("✓", "bold green"),
    "interrupted": ("▲", "bold yellow"),
    "failed": ("✖", "bold red"),
}
MANY_ZEROS = 0.9  #: a share of zeros from which on it is printed in bold; the rules judge it
TREND = 10  #: characters of a trend
FEW_FINDINGS = 2  #: the most findings that are shown whole


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, and its rank for leaving it out (0: never)."""

    title: str
    cells: list[Text]
    leave_out: int
    left: bool = False

    @property
    def width(self) -> int:
        return max([len(self.title), *(cell.cell_len for cell in self.cells)])


def summary(
    gathered: Gathered, width: int, pen: Pen, *, layers: str | None = None, rows: int = 40
) -> RenderableType:
    """The whole summary. `layers` is a glob on layer names, `rows` the maximum number of table rows."""
    run, overview = gathered.run, Overview(gathered)
    chosen = overview.chosen(layers)
    inside = width - 4
    parts: list[RenderableType] = [
        headline(run, overview, pen),
        *verdict(overview.findings, overview.checked, pen),
    ]
    if overview.loss.count:
        parts += [Text(), *_loss(overview.loss.values, inside, pen)]
    if chosen and overview.measures():
        parts += [Text(), *_spectrograms(overview, chosen, inside, pen)]
    if chosen:
        told = _foremost(overview, chosen, rows)
        parts += [Text(), layer_table(overview, told, inside, pen)]
        if len(told) < len(chosen):
            more = f"… and {len(chosen) - len(told)} more layers: --rows 0 shows all, --layers 'conv*' some"
            parts.append(Text(more, "dim"))
        parts.append(
            Text(f"rms as of step {gathered.survey.last_step:,}; each trend on its own log scale", "dim")
        )
    if layers is not None and overview.layers and not chosen:
        names = [clean(layer.name) for layer in overview.layers]
        raise RunError(
            "a glob that matches the name of a layer", f"--layers {layers!r}", one_of(names, layers)
        )
    if not overview.layers:
        parts.append(Text(_nothing(run), "dim"))
    if gathered.left_out:
        parts.append(Text(f"{gathered.left_out:,} more layers are not drawn", "yellow"))
    troubles = problems(run)
    parts += [Text(), *troubles] if troubles else []
    model = run.model if isinstance(run.model, dict) else {}
    title = Text(clean(model.get("name") or run.id), "bold")
    return Panel(Group(*parts), title=title, width=width, padding=(0, 1), border_style="dim")


def _nothing(run: Run) -> str:
    """The reason why there is no layer to show."""
    if run.damaged:
        return "Nothing of any layer can be read: its files are damaged."
    return "Nothing was recorded of any layer."


def headline(run: Run, overview: Overview, pen: Pen) -> Text:
    """The status of the run, and the cost of recording."""
    from fitscope.read.rank_frames import told  # imports pandas

    sign, style = STATUS.get(run.status, ("?", "bold"))
    sign = sign if pen.unicode else "*"
    model = run.model if isinstance(run.model, dict) else {}
    line = Text.assemble((f"{sign} {clean(run.status)}", style))
    facts = [clean(run.info.get("backend") or ""), clean(told(run.ranks))]
    if model.get("parameters"):
        facts.append(f"{model['parameters']:,} parameters")
    if run.last_step is not None:
        facts.append(f"step {run.last_step:,}")
    if overview.epoch is not None:
        facts.append(f"epoch {overview.epoch + 1}")
    cost = run.overhead
    if cost.get("steps") and cost.get("wall_seconds"):
        facts.append(f"{cost['steps'] / cost['wall_seconds']:.3g} steps/s")
    if cost.get("cpu_share") is not None:
        facts.append(f"capture costs {percent(cost['cpu_share'])}")
    if cost.get("compile_seconds"):
        facts.append(f"compiled in {cost['compile_seconds']:.2g} s")
    facts.append(cadence(cost) or "")
    facts.append(run.identity.short)
    for fact in facts:
        if fact:
            line.append(" · ", "dim").append(fact)
    return line


def verdict(findings: Sequence[PlacedFinding], checked: str, pen: Pen, most: int = 5) -> list[RenderableType]:
    """The findings with their cures, the worst first, and the checked rules. If there are many, each is cut at the edge of the window."""
    signs = {"error": ("✖", "bold red"), "warning": ("▲", "bold yellow"), "note": ("●", "bold blue")}
    lines: list[RenderableType] = []
    for finding in findings[:most]:
        sign, style = signs[finding.severity]
        head = Text(f"{sign if pen.unicode else '*'} {clean(finding.title)} · step {finding.step:,}", style)
        text, cure = Text(clean(finding.text), "dim"), Text(clean(finding.cure), "dim")
        if finding.cure:
            cure = Text.assemble(("→ " if pen.unicode else "-> "), cure, style="dim")
        if len(findings) <= FEW_FINDINGS:
            lines += [head, *(Padding(said, (0, 0, 0, 2)) for said in (text, cure) if said.plain)]
        else:
            lines += [
                _cut(Text.assemble(head, "  ", text)),
                *([_cut(Text.assemble("  ", cure))] if cure.plain else []),
            ]
    if len(findings) > most:
        lines.append(Text(f"… and {len(findings) - most} more: fitscope check", "dim"))
    return [*lines, _cut(Text(clean(checked), "dim"))]


def _cut(line: Text) -> Text:
    """A line that ends at the edge of the window."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def problems(run: Run) -> list[Text]:
    """Errors and missing data, one line each; empty if there are none."""
    lines = [("✖", "red", f"error while recording: {error}") for error in run.errors[:5]]
    if run.errors_total > 5:
        lines.append(("✖", "red", f"and {run.errors_total - 5} more errors"))
    identity = run.identity
    if identity.known and identity == "not provable":
        lines.append(("▲", "yellow", identity.sentence))
    if run.limit_reached_at is not None:
        lines.append(
            ("▲", "yellow", f"recording stopped at step {run.limit_reached_at:,}: the run reached its limit")
        )
    for word, counts in (("dropped, because the queue was full", run.dropped), ("lost", run.lost)):
        if counts:
            most = max(counts, key=lambda site: counts[site])
            lines.append(("▲", "yellow", f"{sum(counts.values()):,} records {word}; most at {most}"))
    unseen = list(missed(run.unseen).items())
    lines += [("▲", "yellow", f"could not be seen: {site}: {why}") for site, why in unseen[:5]]
    if len(unseen) > 5:
        lines.append(("▲", "yellow", f"and {len(unseen) - 5} more sites that could not be seen"))
    lines += [("▲", "yellow", f"damaged, left out: {d.name}: {d.reason}") for d in run.damaged[:5]]
    if len(run.damaged) > 5:
        lines.append(("▲", "yellow", f"and {len(run.damaged) - 5} more damaged objects"))
    return [Text.assemble((sign, style), " ", clean(said)) for sign, style, said in lines]


def layer_table(overview: Overview, layers: Sequence[Row], width: int, pen: Pen) -> Table:
    """Layers by main stats at the newest step, with their trends."""
    return fitted(_columns(overview, layers, pen), width)


def fitted(columns: list[Column], width: int, gap: int = 2) -> Table:
    """A table of the columns that fit, with so many characters after each."""
    columns = _fitting(columns, width, gap)
    # A name may be cut, but never a number, which would look like another one.
    room = width - sum(column.width + gap for column in columns if column.leave_out)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.title, justify="left" if column.left else "right", no_wrap=True, overflow="ellipsis",
            width=column.width if column.leave_out else max(min(column.width, room - gap), 1),
        )  # fmt: skip
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def _foremost(overview: Overview, layers: list[Row], most: int) -> list[Row]:
    """The layers to list, at most as many as wanted. Those with the first NaN or Inf come first."""
    if not most or len(layers) <= most:
        return layers

    def trouble(layer: Row) -> float:
        found = [overview.first(layer, stat) for stat in ("nans", "infs")]
        return min((first[0] for first in found if first is not None), default=math.inf)

    return sorted(layers, key=trouble)[:most]


def _columns(overview: Overview, layers: Sequence[Row], pen: Pen) -> list[Column]:
    def last(key: str) -> list[Text]:
        return [_last(overview.newest(key, layer), pen) for layer in layers]

    def trends(key: str) -> list[Text]:
        grid = overview.grid(key, layers, TREND)
        linear = Grid(2.0**grid.values, grid.marks)
        return [_trend(linear.row(i), pen) for i in range(len(layers))]

    means = [overview.mean(layer) for layer in layers]
    zeros = [overview.newest("activations.zeros", layer) for layer in layers]
    columns = [
        Column("layer", [Text(clean(layer.name)) for layer in layers], 0, left=True),
        Column("type", [Text(clean(layer.type), "dim") for layer in layers], 3, left=True),
        Column("mean", [Text("" if mean is None else number(mean)) for mean in means], 2),
        Column("activations", last("activations.rms"), 7),
        Column("", trends("activations.rms"), 5, left=True),
        Column("gradients", last("gradients.rms"), 9),
        Column("", trends("gradients.rms"), 6, left=True),
        Column("update/weight", last("updates.ratio"), 8),
        Column("", trends("updates.ratio"), 4, left=True),
        Column("zeros", [_share(share) for share in zeros], 10),
        Column("", [_marks(overview, layer, pen) for layer in layers], 11, left=True),
    ]
    return [column for column in columns if any(cell.plain.strip() for cell in column.cells)]


def _fitting(columns: list[Column], width: int, gap: int) -> list[Column]:
    """The columns that fit. Names may be cut to sixteen characters."""
    columns = list(columns)

    def needed() -> int:
        return sum(min(c.width, 16) if c.leave_out == 0 else c.width for c in columns) + gap * len(columns)

    while needed() > width and len(columns) > 1:
        columns.remove(min((c for c in columns if c.leave_out), key=lambda c: c.leave_out))
    return columns


def _last(newest: tuple[float, int] | None, pen: Pen) -> Text:
    """The newest value of a measure on a log scale."""
    if newest is None:
        return Text()
    value, mark = newest
    return Text(meaning("log2", value)) if mark == VALUE else pen.mark(mark)


def _trend(grid: Grid, pen: Pen) -> Text:
    return trend(grid, TREND, pen) if (grid.marks != MISSING).any() else Text()


def _share(newest: tuple[float, int] | None) -> Text:
    if newest is None or np.isnan(newest[0]):
        return Text()
    return Text(percent(newest[0]), "bold yellow" if newest[0] >= MANY_ZEROS else "")


def _marks(overview: Overview, layer: Row, pen: Pen) -> Text:
    """The first steps of NaN and Inf as text."""
    text = Text()
    for stat, mark, word in (("nans", NAN, "NaN"), ("infs", INF, "Inf")):
        found = overview.first(layer, stat)
        if found is not None:
            text.append("  " if text else "").append_text(pen.mark(mark))
            text.append(f" {word} in {found[1]} since step {found[0]:,}", "bold red")
    return text


def _loss(numbers: Array, width: int, pen: Pen) -> list[RenderableType]:
    real = numbers[np.isfinite(numbers)]
    high, low = (number(float(real.max())), number(float(real.min()))) if len(real) else ("", "")
    label = max(len(high), len(low), 4)
    lines, log = curve(numbers, max(width - label - 2, 10), 4, pen)
    names = [high, "loss", "(log)" if log else "", low] if len(lines) > 1 else ["loss"]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    for name, line in zip(names, lines, strict=True):
        grid.add_row(name, line)
    return [grid]


def _spectrograms(overview: Overview, layers: Sequence[Row], width: int, pen: Pen) -> list[RenderableType]:
    """The spectrograms of activations and gradients, side by side if there is room."""
    measures = overview.measures()
    labels = [clean(layer.name) for layer in layers]
    longest = min(max(map(cell_len, labels)), max(width // 5, 8))
    across = len(measures) if width >= 90 else 1
    wide = max((width - longest - 2 * across) // across, 10)
    parts: list[RenderableType] = []
    used: set[int] = set()
    for i in range(0, len(measures), across):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("", style="dim", no_wrap=True, overflow="ellipsis", width=longest)
        drawn = []
        for key in measures[i : i + across]:
            log2 = overview.grid(key, layers, wide)
            grid = Grid(log2.values * math.log10(2), log2.marks)
            used |= set(grid.marks.flat)
            table.add_column(_title(key.partition(".")[0], log2, pen, wide), no_wrap=True, width=wide)
            drawn.append(spectrogram(grid, labels, wide, pen, 26 if across > 1 else 16))
        for lines in zip(*drawn, strict=True):
            table.add_row(Text(lines[0][0]), *(line for _, line in lines))
        parts.append(table)
    caption = legend(pen, [mark for mark in (NAN, INF, MISSING) if mark in used])
    caption.append("   " if caption else "")
    steps = f"steps {overview.steps[0]:,} to {overview.steps[-1]:,}, {len(overview.steps):,} of them recorded"
    return [*parts, caption.append(steps, "dim")]


def _title(kind: str, grid: Grid, pen: Pen, width: int) -> str:
    """The title of a spectrogram, with the ends of its scale (`grid` holds log2) unless it is the fixed one."""
    if pen.colour:
        return f"{kind}, rms"
    low, high = (meaning("log2", end) for end in span(grid))
    titles = (f"{kind}, rms  {low} {pen.ramp} {high}", f"{kind} {low} to {high}", f"{low} to {high}", "")
    return next(title for title in titles if cell_len(title) <= width)
