"""A run as one HTML file that needs nothing else: no server, no network, no other file.

It is the same page from the same modules. They are written one after another into one script, which works because
no two of them use a name at the top twice (a test sees to it); the data goes in as gzip and base64. The file's own
policy allows that one script and style, by their hashes, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fitscope.show.data import payload
from fitscope.show.data.gather import Gathered
from fitscope.show.data.pack import pack, squeezed

#: The modules, each after those it needs.
MODULES = (
    "pack", "format", "canvas", "colour", "matrix", "state", "source", "heat", "lossplot", "strip", "depth",
    "inspector", "keys", "main",
)  # fmt: skip

BYTES = 1_350_000  #: of compressed data, which makes a file below 2 MB
COLUMNS = 1024
_ALSO = (
    "gradients.rms",
    "activations.rms",
    "activations.zeros",
    "updates.ratio",
)  #: if there is room, in this order
_MODES = ("absolute", "past", "change", "start")


def report(
    g: Gathered, *, parts: Sequence[str] | None = None, measure: str | None = None, mode: str = "absolute"
) -> str:
    """The file's text. `parts` are the panels to show, all by default; `measure` and `mode` what is shown first."""
    facts, arrays = enclosed(g, measure, mode, only=parts is not None)
    facts["parts"] = list(parts) if parts is not None else None
    return page(pack(facts, arrays))


def enclosed(
    g: Gathered, measure: str | None, mode: str, *, only: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All that the page may ask for, as far as it fits."""
    offered = [m.key for m in g.measures]
    found = [f.measure for f in g.findings if f.measure in offered]
    first = measure or next(iter(found), None) or next(iter(offered), "")
    wanted = dict.fromkeys(
        [(first, mode), (first, "absolute")]
        + ([] if only else [(key, "absolute") for key in [*found, *_ALSO]])
        + ([] if only else [(key, m) for key in (first, *_ALSO) for m in _MODES[1:]])
    )
    series_facts, series_arrays = payload.series(g)
    arrays: dict[str, Any] = {f"series.{name}": array for name, array in series_arrays.items()}
    head = payload.head(g)
    facts: dict[str, Any] = {"series": series_facts, "matrices": {}, "moments": [], "distributions": {}}
    if not only:
        _moments(g, facts, arrays)
    used = len(squeezed(pack({"head": head, **facts}, arrays)))
    columns = COLUMNS
    for key, how in wanted:
        if key not in offered:
            continue
        about, cells = payload.matrix(g, key, how, columns=columns)
        data = {f"{key} {how}.{name}": array for name, array in cells.items()}
        size = len(squeezed(pack(about, data)))
        while not facts["matrices"] and used + size > BYTES and columns > 64:  # the first must be in
            columns //= 2
            about, cells = payload.matrix(g, key, how, columns=columns)
            data = {f"{key} {how}.{name}": array for name, array in cells.items()}
            size = len(squeezed(pack(about, data)))
        if used + size <= BYTES or not facts["matrices"]:
            facts["matrices"][f"{key} {how}"] = about
            arrays |= data
            used += size
    there = {name.partition(" ")[0] for name in facts["matrices"]}
    head["measures"] = [m for m in head["measures"] if m["key"] in there]
    head["modes"] = [m for m in head["modes"] if m[0] != "run"]
    head["shown"] = [first, mode]
    return {"head": head, **facts}, arrays


def _moments(g: Gathered, facts: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The exact numbers where something stands out, and the distributions of those rows."""
    steps = g.matrix(g.measures[0].key).steps if g.measures else np.empty(0)
    for finding in [f for f in g.findings if f.row is not None][:8]:
        key = finding.measure if finding.measure in [m.key for m in g.measures] else g.measures[0].key
        moment = payload.moment(g, finding.row or "", finding.step, key)
        later = steps[steps > finding.step]
        facts["moments"].append({**moment, "until": int(later[0]) if len(later) else finding.step + 1})
        row = g.rows[g.row(finding.row or "")]
        sites = {
            f"{row.name} {kind}": of[0]
            for kind, of in row.sites.items()
            if kind in ("activations", "gradients")
        }
        for name, (about, spread) in zip(
            sites, payload.distribution(g, list(sites.values()), 96).values(), strict=False
        ):
            facts["distributions"][name] = about
            arrays |= {f"distribution {name}.{part}": array for part, array in spread.items()}


def page(data: bytes) -> str:
    """The page with its style, script and data inside."""
    script, style = bundle(), _static("style.css")
    body = _static("index.html").partition("<body>")[2].partition("</body>")[0]
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>fitscope</title>\n'
        f'<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>{body}'
        f'<script type="text/plain" id="data">{base64.b64encode(squeezed(data)).decode()}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundle() -> str:
    """All modules as one: imports and the word `export` left out."""
    return "\n".join(_plain(_static(f"{name}.js")) for name in MODULES)


def _plain(module: str) -> str:
    without = re.sub(r"^import [^;]*?;\n", "", module, flags=re.MULTILINE | re.DOTALL)
    without = re.sub(r"^export (?=(async |function|class|const|let))", "", without, flags=re.MULTILINE)
    # Types in comments are for the checker, and would only make every report longer.
    return re.sub(r"/\*\*.*?\*/ ?", "", without, flags=re.DOTALL)


def _static(name: str) -> str:
    return (resources.files("fitscope.show") / "static" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def save(path: str | Path, text: str) -> Path:
    """Writes a file whole or not at all."""
    to = Path(path)
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(to)
    return to
