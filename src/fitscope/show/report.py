"""Writes a run as one self-contained HTML file, which needs no server, no network and no other file.

It is the same page, from the same modules. They are concatenated into one script, which works because no two modules define the
same top-level name (a test checks this). The data is included as gzip and base64. The file's content security policy allows only
that script and style, by their hashes, and no requests.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fitscope.show.data import page_facts, payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack, squeezed
from fitscope.show.data.samples import worst_of_batch
from fitscope.show.text import clean
from fitscope.store.places import new_file_at

#: The modules, each after those it needs.
MODULES = (
    "pack", "format", "canvas", "colour", "matrix", "relief", "state", "source", "heat", "curve", "axis", "rows", "lossplot",
    "ranks", "graph", "strip", "depth", "steps", "findings", "inspector", "samples", "legend", "words", "overlay", "live", "menus", "runs",
    "keys", "main",
)  # fmt: skip

BYTES = 1_350_000  #: the most bytes of compressed data, which makes a file below 2 MB
COLUMNS = 1024
_ALSO = (
    "gradients.rms",
    "activations.rms",
    "activations.zeros",
    "updates.ratio",
)  #: if there is room, in this order
TITLE_TALL = 28  #: pixels of a title
_TITLE = f"""
#title {{ margin: 0; padding: 8px 14px 0; height: {TITLE_TALL}px; font-size: 13px; line-height: 20px; }}
#title {{ white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }}
body[data-parts] #spectrogram {{ height: clamp(200px, calc(100vh - {102 + TITLE_TALL}px), 640px); }}
"""
_MODES = ("absolute", "past", "change", "start")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The content of a file: everything, or one view."""

    parts: tuple[str, ...] | None = None  #: the panels; None: all
    measure: str | None = None  #: the measure shown first; None: that of the worst finding
    mode: str = "absolute"
    other: Gathered | None = None  #: the other run, for the mode `run`
    row: str | None = None
    step: int | None = None
    site: str | None = None  #: the site of the row; None: the first that the measure reads
    series: tuple[dict[str, Any], dict[str, Any]] | None = None  #: a series to draw instead of the loss
    table: dict[str, Any] | None = None
    title: str | None = None  #: the title above the picture; the whole page has its own header


def report(g: Gathered, wanted: Wanted | None = None) -> str:
    """The text of the file."""
    wanted = wanted or Wanted()
    facts, arrays = enclosed(g, wanted)
    facts["parts"] = wanted.parts
    return page(pack(facts, arrays), wanted.title)


def enclosed(g: Gathered, wanted: Wanted) -> tuple[dict[str, Any], dict[str, Any]]:
    """All data that the page may request, as far as it fits."""
    offered = [m.key for m in g.measures]
    found = [f.measure for f in g.findings if f.measure in offered]
    first = wanted.measure or next(iter(found), None) or next(iter(offered), "")
    series_facts, series_arrays = wanted.series or payload.series(g)
    arrays: dict[str, Any] = {f"series.{name}": array for name, array in series_arrays.items()}
    head = page_facts.head(g)
    facts: dict[str, Any] = {"series": series_facts, "matrices": {}, "moments": [], "distributions": {}}
    cells = [
        (finding.row, finding.step, finding.measure) for finding in g.findings if finding.row is not None
    ][:8]
    if wanted.row is not None and wanted.step is not None:
        cells = [(wanted.row, wanted.step, first)]
        head["selected"] = {"layer": wanted.row, "step": wanted.step}
    elif wanted.step is not None:
        head["selected"] = {"layer": "", "step": wanted.step}
    if wanted.parts is None or "inspector" in wanted.parts:
        _moments(g, cells, [first, *(_ALSO if wanted.parts is None else ())], wanted.site, facts, arrays)
    if g.has_samples and wanted.parts is None:
        facts["samples"] = [worst_of_batch(g, step) for step in sorted({f.step for f in g.findings[:12]})]
    _steps(g, wanted, first, cells, facts, arrays)
    _matrices(g, wanted, [first, *found], facts, arrays)
    there = {name.partition(" ")[0] for name in facts["matrices"]}
    head["measures"] = [m for m in head["measures"] if m["key"] in there]
    head["shown"] = [first, wanted.mode]
    head["table"] = wanted.table
    return {"head": head, **facts}, arrays


def _matrices(
    g: Gathered, wanted: Wanted, keys: Sequence[str | None], facts: dict[str, Any], arrays: dict[str, Any]
) -> None:
    """The matrices: always the selected one, and the others as far as they fit."""
    offered = [m.key for m in g.measures]
    questions = dict.fromkeys([(keys[0], wanted.mode), (keys[0], "absolute")])
    if wanted.parts is None:
        questions |= dict.fromkeys((key, "absolute") for key in [*keys, *_ALSO])
        questions |= dict.fromkeys((key, mode) for key in (keys[0], *_ALSO) for mode in _MODES[1:])
    used, columns = len(squeezed(pack(facts, arrays))), COLUMNS
    for key, mode in questions:
        if used > 0.9 * BYTES:
            break
        while key in offered:
            about, cells = payload.matrix(g, str(key), mode, wanted.other, columns=columns)
            data = {f"{key} {mode}.{name}": array for name, array in cells.items()}
            size = len(squeezed(pack(about, data)))
            if used + size <= BYTES:
                facts["matrices"][f"{key} {mode}"] = about
                arrays |= data
                used += size
            elif not facts["matrices"] and columns > 32:
                columns //= 2
                continue
            break


def _steps(
    g: Gathered, wanted: Wanted, first: str, cells: Sequence[tuple[str, int, str | None]], facts: dict[str, Any],
    arrays: dict[str, Any],
) -> None:  # fmt: skip
    """All rows at the steps that can be selected, because a pixel covers many steps."""
    offered = [m.key for m in g.measures]
    questions = {(str(measure), "absolute", step) for _, step, measure in cells if measure in offered}
    if wanted.step is not None and first in offered:
        questions.add((first, wanted.mode, wanted.step))
    facts["steps"] = {}
    for key, mode, step in sorted(questions):
        name = f"{key} {mode} {step}"
        facts["steps"][name], single = payload.single(g, key, mode, wanted.other, step)
        arrays |= {f"{name}.{part}": array for part, array in single.items()}


def _moments(
    g: Gathered,
    cells: Sequence[tuple[str, int, str | None]],
    measures: Sequence[str],
    site: str | None,
    facts: dict[str, Any],
    arrays: dict[str, Any],
) -> None:
    """The exact numbers of these cells, and the distributions of their sites and of these measures; `site` first."""
    if not g.measures:
        return
    offered = [m.key for m in g.measures]
    for name, step, measure in cells:
        key = measure if measure in offered else offered[0]
        later = g.matrix(key).steps
        later = later[later > step]
        moment = payload.moment(g, name, step, key)
        moment["sites"].sort(key=lambda one: one["site"] != site)  # the page draws the first of a kind
        facts["moments"].append({**moment, "until": int(later[0]) if len(later) else step + 1})
        about = {m: payload.main_site(g, name, m) for m in offered}
        if site is not None:
            about[key] = site
        sites = dict.fromkeys(s for m in (key, *measures) if (s := about.get(m)) is not None)
        spreads = payload.distribution(g, list(sites), 96)
        for s, (_, spread) in spreads.items():
            arrays |= {f"distribution {s}.{part}": array for part, array in spread.items()}
        # By measure, so that the page never replaces missing values by those of another measure.
        facts["distributions"] |= {f"{name} {m}": spreads[s][0] for m, s in about.items() if s in spreads}


def page(data: bytes, title: str | None = None) -> str:
    """The page with its style, script and data inside, and a title above it."""
    script, style = bundle(), _static("style.css")
    body = _static("index.html").partition("<body>")[2].partition("</body>")[0]
    named = html.escape(clean(title or "fitscope"))
    if title is not None:
        body = f'\n<h1 id="title">{named}</h1>{body}'
        style += _TITLE
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{named}</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>{body}'
        f'<script type="text/plain" id="data">{base64.b64encode(squeezed(data)).decode()}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundle() -> str:
    """All modules as one script, without imports and the word `export`."""
    return "\n".join(_plain(_static(f"{name}.js")) for name in MODULES)


def _plain(module: str) -> str:
    without = re.sub(r"^import [^;]*?;\n", "", module, flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"^export (?=(async |function|class|const|let))", "", without, flags=re.MULTILINE)
    # Remove types in comments: only the checker reads them, and they would make every report longer.
    return re.sub(r"/\*\*.*?\*/ ?", "", without, flags=re.DOTALL)


def _static(name: str) -> str:
    return (resources.files("fitscope.show") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def save(path: str | Path, text: str) -> Path:
    """Writes a file atomically; on failure it leaves nothing that was not there before."""
    to = new_file_at(path)
    made = [folder for folder in to.absolute().parents if not folder.exists()]
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(to)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()
        raise
    return Path(path).expanduser()
