"""A finding as HTML: its sentence, a small picture of its evidence, its cure. For notebooks; no scripts, nothing fetched."""

from __future__ import annotations

import html as escape
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fitscope.diagnose.finding import Finding, Series

COLOURS = {"error": "#c62828", "warning": "#b26a00", "note": "#546e7a"}
WIDTH, HEIGHT = 180, 36


def sparkline(series: Series, mark: int | None = None, colour: str = COLOURS["note"]) -> str:
    """The series as an inline SVG. Values over several powers of ten are drawn by their logarithm; gaps are NaN or Inf."""
    values = [v for v in series.values if math.isfinite(v)]
    if len(values) < 2:
        return ""
    logarithmic = min(values) > 0 and max(values) / min(values) > 100
    scale = math.log10 if logarithmic else float
    low, high = scale(min(values)), scale(max(values))
    first, last = series.steps[0], series.steps[-1]

    def x(step: int) -> float:
        return 2 + (WIDTH - 4) * (step - first) / max(last - first, 1)

    def y(value: float) -> float:
        return HEIGHT - 3 - (HEIGHT - 6) * (scale(value) - low) / ((high - low) or 1)

    path, pen = [], "M"
    for step, value in zip(series.steps, series.values, strict=True):
        if math.isfinite(value):
            path.append(f"{pen}{x(step):.1f} {y(value):.1f}")
            pen = "L"
        else:
            pen = "M"
    line = ""
    if mark is not None and first <= mark <= last:
        line = f'<line x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="0" y2="{HEIGHT}" stroke="{colour}" stroke-dasharray="2 2"/>'
    title = f"{series.name}, {min(values):.3g} to {max(values):.3g}{' (logarithmic)' if logarithmic else ''}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape.escape(title)}"><title>{escape.escape(title)}</title>'
        f'{line}<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.3"/></svg>'
    )


def html(finding: Finding) -> str:
    """One finding."""
    say, colour = escape.escape, COLOURS[finding.severity]
    picture = sparkline(finding.series, finding.first_step, colour) if finding.series is not None else ""
    caption = (
        f'<div style="font-size:85%;opacity:.7">{say(finding.series.name)}</div>'
        if picture and finding.series
        else ""
    )
    follows = "".join(f"<li>{say(c.message)}</li>" for c in finding.consequences)
    return (
        f'<div style="border-left:3px solid {colour};padding:.2em .8em;margin:.4em 0;display:flex;gap:1.5em">'
        f'<div style="flex:1;max-width:60em"><b style="color:{colour}">{say(finding.title)}</b> '
        f'<span style="opacity:.7">{say(finding.severity)}, {say(finding.steps)}</span>'
        f"<div>{say(finding.message)}</div>"
        + (f"<div><i>{say(finding.cure)}</i></div>" if finding.cure else "")
        + (
            f"<details><summary>{len(finding.consequences)} consequences</summary><ul>{follows}</ul></details>"
            if follows
            else ""
        )
        + f"</div><div>{picture}{caption}</div></div>"
    )
