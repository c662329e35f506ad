"""Views: one plot of a run, for a notebook, a file, the terminal or a paper.

    view = run.plot.spectrogram("gradients")
    view                        # in a notebook: the plot itself
    view.show()                 # in a notebook or a terminal
    view.save("x.html")         # one self-contained file; .png, .svg and .pdf use matplotlib
    view.to_text()

The same modules draw a view and the page, from the same numbers. A view shows the state of the run when it was created.
"""

from __future__ import annotations

import html
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fitscope.errors import RunError, StoreError
from fitscope.read import Run
from fitscope.read import open as open_run
from fitscope.show import figures
from fitscope.show.data import payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.series import GrowingSeries
from fitscope.show.report import TITLE_TALL, Wanted, report, save
from fitscope.show.text import WIDEST, Pen, clean, terminal
from fitscope.store.places import new_file_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RunLike = Run | str | os.PathLike[str]

_HELD = "_gathered"  #: the attribute of a run that holds its numbers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class View:
    """One plot of a run. `run.plot` creates views; a notebook displays them."""

    kind: str  #: the name of the method that made it
    title: str  #: the quantity and the run
    _gathered: Gathered
    _wanted: Wanted
    _text: Callable[[int, Pen], RenderableType]
    _figure: Callable[[], Figure]
    _tall: int = field(default=460)  # pixels in a notebook

    @property
    def run(self) -> Run:
        """The run that it shows."""
        return self._gathered.run

    def to_html(self) -> str:
        """The view as a self-contained HTML page."""
        # The whole page has its own header; a single part has none.
        title = self.title if self._wanted.parts is not None else None
        return report(self._gathered, replace(self._wanted, title=title))

    def to_text(self, width: int = 100, *, colour: bool = False) -> str:
        """The view as text, by default without colour."""
        width = min(width, WIDEST)
        # rich 15 ignores `file` in a notebook and displays the text there, unless `force_jupyter` is False.
        console = Console(
            file=io.StringIO(), width=width, highlight=False, force_terminal=colour, legacy_windows=False,
            color_system="truecolor" if colour else None, force_jupyter=False,
        )  # fmt: skip
        console.print(self._drawn(width, Pen.of(console)))
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    def to_matplotlib(self) -> Figure:
        """The view as a matplotlib figure. Requires `pip install 'fitscope[matplotlib]'`."""
        return self._figure()

    def show(self) -> None:
        """Displays the view in the notebook or the terminal."""
        if _in_notebook():
            from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

            display(self)  # type: ignore[no-untyped-call, unused-ignore]
            return
        console = terminal()
        console.print(self._drawn(console.width, Pen.of(console)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the view to a file: .html, .txt, or with matplotlib .png, .svg or .pdf."""
        to = Path(path)
        try:
            new_file_at(to)
            if to.suffix == ".html":
                return save(to, self.to_html())
            if to.suffix == ".txt":
                return save(to, self.to_text())
            if to.suffix in (".png", ".svg", ".pdf"):
                self.to_matplotlib().savefig(to, dpi=150, bbox_inches="tight")
                return to
        except StoreError:  # matplotlib is missing; it is an OSError too
            raise
        except OSError as problem:
            raise StoreError(
                "a writable file", f"{str(to)!r} ({problem})", "Choose another path"
            ) from problem
        raise StoreError(
            "a file name that ends in .html, .txt, .png, .svg or .pdf",
            repr(str(to)),
            "Add one of these endings",
        )

    def _drawn(self, width: int, pen: Pen) -> RenderableType:
        return Group(Text(clean(self.title), "bold"), self._text(width, pen))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:  # noqa: ARG002
        """For notebooks: the picture, and the same in characters for front ends that show only text."""
        return {"text/html": self._repr_html_(), "text/plain": self.to_text()}

    def _repr_html_(self) -> str:
        """A frame that can run its own script and reach nothing else."""
        inside = html.escape(self.to_html(), quote=True)
        style = "width:100%;border:1px solid #8884;border-radius:4px"
        tall = self._tall + (TITLE_TALL if self._wanted.parts is not None else 0)
        return f'<iframe sandbox="allow-scripts" height="{tall}" style="{style}" srcdoc="{inside}"></iframe>'

    def __repr__(self) -> str:
        return f"<View {self.kind}: {clean(self.title)}>"

    def __str__(self) -> str:
        return self.to_text()


def gathered(run: RunLike) -> Gathered:
    """The current numbers of a run. A `Run` object holds its own, so that they are read once and freed with it."""
    if isinstance(run, Run):
        found: Gathered = vars(run).get(_HELD) or vars(run).setdefault(_HELD, Gathered(run))
    else:
        found = Gathered(open_run(run))  # nothing else uses these numbers
    found.update()
    if not found.rows and not found.survey.scalars:
        raise RunError(
            "a run with recorded steps",
            f"{found.run.id!r}, which has none yet",
            "Wait for its first captured steps",
        )
    return found


def curve_view(
    g: Gathered, kind: str, what: str, steps: Any, numbers: Any, parts: tuple[str, ...] = ("loss",)
) -> View:
    """A view of one line over the steps."""
    held = GrowingSeries()
    held.add(np.asarray(steps, np.int64), np.asarray(numbers, float))
    series = payload.columns_of(held, what)
    return View(
        kind, title_of(g, what), g, Wanted(parts, series=series),
        lambda width, pen: figures.curve_text(held.steps, held.values, width, pen),
        lambda: figures.curve_figure(held.steps, held.values, what), 215,
    )  # fmt: skip


def table_view(
    g: Gathered,
    kind: str,
    what: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> View:
    """A view of a table."""
    table = {"title": what, "columns": list(columns), "rows": [list(row) for row in rows]}
    return View(
        kind, title_of(g, what), g, Wanted(("samples",), table=table),
        lambda width, pen: figures.table_text(columns, rows),  # noqa: ARG005
        lambda: figures.table_figure(columns, rows, what), min(80 + 26 * len(rows), 700),
    )  # fmt: skip


def title_of(g: Gathered, what: str) -> str:
    """The title of a view: the quantity, the model and the run."""
    model = g.run.model if isinstance(g.run.model, dict) else {}
    return f"{what} · {model.get('name') or ''} {g.run.id}".replace("  ", " ")


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return found is not None and hasattr(found, "kernel")
