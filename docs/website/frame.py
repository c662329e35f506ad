"""The frame around every page: header, sidebar, table of contents, and the links to the next and the previous page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .links import address, relative
from .markdown import Rendered
from .nav import NAV, listed

#: The mark of fitscope: three layers of a spectrogram, one of them with an odd batch.
MARK = (
    '<svg viewBox="0 0 24 24" width="24" height="24" aria-hidden="true"><rect x="2" y="3" width="20" height="4.6" rx="1.4" fill="#3f8f7f"/>'
    '<rect x="2" y="9.7" width="20" height="4.6" rx="1.4" fill="#4a74b5"/><rect x="14" y="9.7" width="3.4" height="4.6" fill="#f2c14e"/>'
    '<rect x="2" y="16.4" width="20" height="4.6" rx="1.4" fill="#7d5aa6"/></svg>'
)
POLICY = (
    "default-src 'none'; img-src 'self' file: data:; style-src 'self' file: 'unsafe-inline'; "
    "script-src 'self' file: 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
#: Before the page is drawn, so that it does not flash in the other colours.
EARLY = "try{const t=localStorage.getItem('theme');if(t)document.documentElement.dataset.theme=t}catch{}"

#: The ids of the frame begin with `site-`: a heading may be called "Results" or "Search".
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="{root}mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="{root}site.css">
<script>{early}</script>
</head>
<body data-root="{root}">
<a class="skip" href="#site-content">Skip to the text</a>
<header>
<button id="site-menu" aria-label="Contents" aria-expanded="false" aria-controls="site-sidebar">☰</button>
<a class="home" href="{root}index.html">{mark}<b>fitscope</b></a>
<div id="site-search" role="search">
<input id="site-query" type="search" placeholder="Search" aria-label="Search the docs" autocomplete="off" spellcheck="false">
<kbd>/</kbd><ol id="site-results" hidden></ol>
</div>
<button id="site-theme" aria-label="Light or dark">◐</button>
</header>
<div id="site-shell">
<nav id="site-sidebar" aria-label="Contents">{sidebar}</nav>
<main id="site-content"><article>{body}</article>{steps}</main>
<aside aria-label="On this page">{contents}</aside>
</div>
<script src="{root}site.js"></script>
</body>
</html>
"""


@dataclass(frozen=True)
class Framed:
    """What the frame needs to know about the whole site."""

    titles: Mapping[str, str]  #: of every listed page, as the sidebar shows it

    def page(self, path: str, rendered: Rendered, *, contents: bool = True) -> str:
        """The whole page, for the file of the repository that it is made from."""
        here = address(path)
        root = relative("x", here).removesuffix("x")
        title = rendered.title if path == "README.md" else f"{rendered.title} · fitscope"
        return PAGE.format(
            policy=POLICY,
            early=EARLY,
            title=html.escape(title),
            root=root,
            mark=MARK,
            sidebar=self._sidebar(path),
            body=rendered.body,
            steps=self._steps(path),
            contents=_contents(rendered) if contents else "",
        )

    def _sidebar(self, path: str) -> str:
        parts = []
        for title, pages in NAV:
            rows = "".join(self._row(to, path) for _, to in pages)
            inside = path in (to for _, to in pages)
            opened = " open" if inside or (title != "Recipes" and path != "docs/recipes/README.md") else ""
            parts.append(f"<details{opened}><summary>{title}</summary><ul>{rows}</ul></details>")
        return "".join(parts)

    def _row(self, to: str, path: str) -> str:
        current = ' aria-current="page"' if to == path else ""
        href = relative(address(to), address(path))
        return f'<li><a href="{href}"{current}>{html.escape(self.titles[to])}</a></li>'

    def _steps(self, path: str) -> str:
        """The links to the previous and the next page."""
        order: Sequence[str] = listed()
        if path not in order:
            return ""
        i = order.index(path)
        found = []
        for name, at in (("prev", i - 1), ("next", i + 1)):
            if 0 <= at < len(order):
                href = relative(address(order[at]), address(path))
                label = {"prev": "Previous", "next": "Next"}[name]
                found.append(
                    f'<a rel="{name}" href="{href}"><small>{label}</small>{html.escape(self.titles[order[at]])}</a>'
                )
        return f'<nav class="steps" aria-label="Pages">{"".join(found)}</nav>'


def _contents(rendered: Rendered) -> str:
    rows = [one for one in rendered.sections[1:] if one.level in (2, 3)]
    if len(rows) < 2:
        return ""
    items = "".join(
        f'<li class="level{one.level}"><a href="#{one.anchor}">{html.escape(one.title)}</a></li>'
        for one in rows
    )
    return f"<b>On this page</b><ul>{items}</ul>"
