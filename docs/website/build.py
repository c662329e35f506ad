"""Builds the site into a folder: pages, source code that they link to, pictures, and the index of the search.

The site opens from disk and from any folder of a server. No page loads anything from outside; its content security policy forbids it.
"""

from __future__ import annotations

import ast
import html
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .frame import MARK, Framed
from .links import PICTURES, ROOT, Links, address, relative
from .markdown import Rendered, Section, coloured, render
from .nav import LINKED, NAV, listed

STATIC = Path(__file__).parent / "static"
LANGUAGES = {".py": "python", ".js": "javascript", ".toml": "toml", ".json": "json", ".css": "css"}
#: The most of a section that the search reads, in characters. Only the API page and the changelog have longer ones.
SEARCHED = 4000


@dataclass(frozen=True)
class Report:
    """One run of the gallery: its report, and a picture of it. Both lie in the folder of the gallery."""

    report: str
    picture: str
    facts: str


def build(folder: Path, gallery: Mapping[str, Report] | None = None) -> int:
    """Builds the site into a folder and returns the number of pages. Reports of the gallery lie in `folder/gallery`."""
    folder.mkdir(parents=True, exist_ok=True)
    links = Links()
    pages = {path: _render(path, links, gallery or {}) for path in (*listed(), *LINKED)}
    titles = {path: title or pages[path].title for _, inside in NAV for title, path in inside}
    framed = Framed(titles)
    for path, rendered in pages.items():
        _put(folder / address(path), framed.page(path, rendered))
    count = len(pages) + _code(folder, links, framed, set(pages))
    _search(folder, pages)
    for each in STATIC.iterdir():
        shutil.copyfile(each, folder / each.name)
    _put(folder / "mark.svg", MARK.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    return count


def _render(path: str, links: Links, gallery: Mapping[str, Report]) -> Rendered:
    def report(name: str) -> str:
        if name not in gallery:
            return "<p class='missing'>This copy of the site was built without the reports. <code>make site</code> makes them.</p>"
        one = gallery[name]
        there = [relative(f"gallery/{each}", address(path)) for each in (one.report, one.picture)]
        return (
            f'<a class="report" href="{there[0]}"><img src="{there[1]}" alt="The report of this run" loading="lazy">'
            f"<span><b>Open the report</b> {html.escape(one.facts)}</span></a>"
        )

    text = (ROOT / path).read_text(encoding="utf-8")
    return render(text, lambda link: links.resolve(link, path), report)


def _code(folder: Path, links: Links, framed: Framed, pages: set[str]) -> int:
    """Writes what the pages link to: pictures, source files and folders. Returns the number of new pages."""
    files = sorted(links.wanted - pages)
    for path in files:
        file = ROOT / path
        if file.suffix in PICTURES:
            (folder / address(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / address(path))
            continue
        if file.suffix == ".md":
            raise SystemExit(f"A page links to {path}, which is not in docs/website/nav.py. List it there.")
        body = _listing(path, set(files)) if file.is_dir() else _source(file)
        rendered = Rendered(path, f"<h1>{html.escape(path)}</h1>{body}", [Section(1, path, "")])
        _put(folder / address(path), framed.page(path, rendered, contents=False))
    return sum(not path.endswith(PICTURES) for path in files)


def _source(file: Path) -> str:
    code = coloured(file.read_text(encoding="utf-8"), LANGUAGES.get(file.suffix, "text"))
    return f'<pre class="code"><code>{code}</code></pre>'


def _listing(path: str, there: set[str]) -> str:
    """The files of a folder, each with the first line of its docstring, and a link where the site has it."""
    rows = []
    for file in sorted((ROOT / path).iterdir()):
        inside = f"{path}/{file.name}"
        if file.name.startswith((".", "__")):
            continue
        if inside in there:
            shown = f'<a href="{relative(address(inside), address(path))}">{file.name}</a>'
        elif file.is_dir() or file.suffix in LANGUAGES:
            shown = file.name
        else:
            continue
        rows.append(f"<tr><td><code>{shown}</code></td><td>{html.escape(_first_line(file))}</td></tr>")
    return f'<div class="table"><table>{"".join(rows)}</table></div>'


def _first_line(file: Path) -> str:
    file = file / "__init__.py" if file.is_dir() else file
    if file.suffix != ".py" or not file.is_file():
        return ""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def _search(folder: Path, pages: Mapping[str, Rendered]) -> None:
    """The index: a script, not a document to fetch, so that the search works from disk."""
    rows = [
        [
            address(path) + (f"#{one.anchor}" if i else ""),
            page.title,
            one.title,
            " ".join(" ".join(one.text).split())[:SEARCHED],
        ]
        for path, page in pages.items()
        for i, one in enumerate(page.sections)
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    _put(folder / "search.js", f"window.fitscopeDocs={text};\n")


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
