"""Where a file of the repository lies in the site, and what a link between two files becomes.

A Markdown page becomes an HTML page. A picture is copied. Source code that a page links to becomes a highlighted page below
`code/`, and a folder becomes a list of its files, so that the site needs no address outside of itself.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

ROOT = Path(__file__).parents[2]
OUTSIDE = ("https://", "mailto:")
PICTURES = (".png", ".svg", ".gif", ".webp")


def address(path: str) -> str:
    """The address of a file or folder of the repository, relative to the root of the site."""
    pure = PurePosixPath(path)
    if path == "README.md":
        return "index.html"
    if pure.suffix == ".md":
        inside = pure.relative_to("docs") if pure.is_relative_to("docs") else pure
        name = "index" if pure.name == "README.md" else pure.stem
        return str(inside.with_name(f"{name.lower()}.html"))
    if pure.suffix in PICTURES:
        return str(pure.relative_to("docs") if pure.is_relative_to("docs") else pure)
    return f"code/{path}/index.html" if (ROOT / path).is_dir() else f"code/{path}.html"


class Links:
    """The links of the site while it is built: what they point to has to be in the site, too."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()  #: files and folders, relative to the repository

    def resolve(self, link: str, page: str) -> str:
        """The link of a page as it stands in the site."""
        if link.startswith((*OUTSIDE, "#")):
            return link
        target, _, anchor = unquote(link).partition("#")
        path = os.path.normpath(PurePosixPath(page).parent / target)
        if path.startswith("..") or not (ROOT / path).exists():
            raise SystemExit(f"{page} links to {link}, which is not in the repository. Correct the link.")
        self.wanted.add(path)
        return relative(address(path), address(page)) + (f"#{anchor}" if anchor else "")


def relative(to: str, here: str) -> str:
    """The address of one page as seen from another; the site then works in any folder, and from disk."""
    return quote(os.path.relpath(to, PurePosixPath(here).parent).replace(os.sep, "/"))
