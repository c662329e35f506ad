"""Builds the site of the docs: `make site`, or `python docs/make_site.py [FOLDER] [--without-gallery]`.

The site is a folder of plain files: open `site/index.html` from disk, or put the folder on any server. docs/website builds the pages,
and docs/make_gallery.py trains the five runs of the gallery and writes their reports.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from make_gallery import made, make
from website.build import build

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    parser.add_argument(
        "--without-gallery", action="store_true", help="train nothing; use the reports that are there already"
    )
    asked = parser.parse_args()
    reports = asked.folder / "gallery"
    pages = build(asked.folder, made(reports) if asked.without_gallery else make(reports))
    print(f"{pages} pages in {asked.folder}: open {asked.folder / 'index.html'}")


if __name__ == "__main__":
    main()
