"""Shows a scope, a run and a list of runs in a notebook and at a prompt: as a small table, in HTML or as text.

`COLUMNS` defines the facts of a run's line. A fact that cannot be read becomes a dash, so displaying an object never raises an
error. Names
of runs, models and layers come from people and files, so they are escaped.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fitscope.errors import FitscopeError
from fitscope.read import Brief, Run
from fitscope.show.data.cost import percent
from fitscope.show.summary import STATUS
from fitscope.show.text import clean, number
from fitscope.sites import Site

NOTHING = "–"
MOST = 20  #: the most runs in a list; each costs a read of its statistics
SIGNS = {"error": "✖", "warning": "▲", "note": "●"}


def _model(run: Run) -> str:
    return str(run.model.get("name") or NOTHING) if isinstance(run.model, dict) else NOTHING


def _status(run: Run) -> str:
    return f"{STATUS.get(run.status, ('?',))[0]} {run.status}"


def _last_step(run: Run) -> str:
    return NOTHING if run.last_step is None else f"{run.last_step:,}"


def _loss(run: Run) -> str:
    return number(float(run.series("loss").iloc[-1]))


def _findings(run: Run) -> str:
    found = run.findings()
    if not found:
        return "none"
    more = f" (+{len(found) - 1})" if len(found) > 1 else ""
    return f"{SIGNS[found[0].severity]} {found[0].title}{more}"


def _cost(run: Run) -> str:
    share = run.overhead.get("cpu_share")
    return percent(share) if isinstance(share, float) else NOTHING


#: Title → a function that returns the cell of a run.
COLUMNS: Mapping[str, Callable[[Run], str]] = {
    "name": lambda run: run.id,
    "model": _model,
    "status": _status,
    "last step": _last_step,
    "loss": _loss,
    "findings": _findings,
    "cost": _cost,
}
_NUMBERS = ("last step", "loss", "cost")  # aligned to the right


def facts(run: Run) -> dict[str, str]:
    """The facts of a run in a line of the list, by column."""
    return {title: _read(fact, run) for title, fact in COLUMNS.items()}


def _read(fact: Callable[[Run], str], run: Run) -> str:
    try:
        return fact(run)
    except (FitscopeError, OSError):
        return NOTHING  # not recorded, or damaged: run.damaged lists the files


def _lines(runs: Sequence[Brief]) -> list[dict[str, str]]:
    """The newest runs, oldest first. For a run that cannot be opened only the name is known."""
    nothing = dict.fromkeys(COLUMNS, NOTHING)
    return [
        nothing | {"name": brief.id, "status": f"✖ {brief.status}"} if brief.run is None else facts(brief.run)
        for brief in runs[-MOST:]
    ]


def _older(runs: Sequence[Brief]) -> str:
    return f"… and {len(runs) - MOST:,} older runs" if len(runs) > MOST else ""


def runs_text(runs: Sequence[Brief]) -> str:
    """A list of runs as text."""
    if not runs:
        return "no runs"
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for title in COLUMNS:
        table.add_column(title, justify="right" if title in _NUMBERS else "left", no_wrap=True)
    for line in _lines(runs):
        table.add_row(*(Text(clean(cell)) for cell in line.values()))
    # rich ignores `file` in a notebook unless `force_jupyter` is False.
    console = Console(file=io.StringIO(), width=200, color_system=None, force_jupyter=False)
    console.print(table)
    lines = str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]
    return "\n".join([*([_older(runs)] if _older(runs) else []), *(line.rstrip() for line in lines)])


def runs_html(runs: Sequence[Brief]) -> str:
    """A list of runs for a notebook."""
    if not runs:
        return "<i>no runs</i>"
    head = "".join(f"<th style='{_cell(title)}'>{title}</th>" for title in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td style='{_cell(t)}'>{_safe(cell)}</td>" for t, cell in line.items()) + "</tr>"
        for line in _lines(runs)
    )
    older = f"<caption style='text-align:left'>{_older(runs)}</caption>" if _older(runs) else ""
    return f"<table>{older}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def run_html(run: Run) -> str:
    """One run for a notebook: the facts of its line, all findings, and the recorded sites."""
    told = facts(run)
    told["findings"] = NOTHING if told["findings"] == NOTHING else _all_findings(run) or "none"
    told["recorded"] = _read(_kinds, run)
    told["path"] = run.path
    return card(f"Run {run.id}", {title: said for title, said in told.items() if title != "name"})


def card(title: str, rows: Mapping[str, str]) -> str:
    """A title with facts below it, for a notebook. A line break in a fact is kept."""
    body = "".join(
        f"<tr><th style='{_cell('name')};vertical-align:top'>{_safe(name)}</th>"
        f"<td style='{_cell('name')}'>{'<br>'.join(map(_safe, said.split(chr(10))))}</td></tr>"
        for name, said in rows.items()
    )
    return f"<table><caption style='text-align:left'><b>{_safe(title)}</b></caption><tbody>{body}</tbody></table>"


def _all_findings(run: Run) -> str:
    found = run.findings()
    more = [f"… and {len(found) - 8} more"] if len(found) > 8 else []
    lines = [f"{SIGNS[f.severity]} {f.title}, {f.steps}: {f.message}" for f in found[:8]]
    return "\n".join(_one_line(line) for line in [*lines, *more])


def _kinds(run: Run) -> str:
    """The number of sites of each kind: `activations 3, loss 1, validation/loss 1`."""
    sites = map(Site.parse, run.sites)
    return counted(str(Site(site.base, in_pass=site.in_pass, moved=site.moved)) for site in sites)


def counted(kinds: Iterable[str]) -> str:
    """Names with their counts."""
    counts: dict[str, int] = {}
    for kind in kinds:
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{kind} {count}" for kind, count in counts.items()) or NOTHING


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _safe(text: str) -> str:
    return html.escape(clean(text), quote=True)


def _cell(title: str) -> str:
    return f"text-align:{'right' if title in _NUMBERS else 'left'}"
