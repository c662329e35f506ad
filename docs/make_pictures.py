"""Draws docs/images/*.svg from a real run of the demo: `make docs`, or `python docs/make_pictures.py [RUN]`.

What is drawn is what `fitscope show` prints. Given a run, that one is drawn instead of a new one.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import fitscope as fs
from fitscope.show.summary import summary
from fitscope.show.text import Pen

IMAGES = Path(__file__).parent / "images"
WIDTH = 118


def picture(run: str, title: str) -> str:
    """The overview of a run as an SVG of a terminal."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(summary(fs.open(run), WIDTH, Pen.of(console)))
    svg = console.export_svg(title=title, unique_id="fitscope")
    svg = re.sub(r"@font-face\s*{.*?}", "", svg, flags=re.DOTALL)  # nothing is fetched to show a picture
    return re.sub(r"[ \t]+\n", "\n", svg.replace("Fira Code", "ui-monospace, Menlo, Consolas"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) < 2:
            subprocess.run([sys.executable, "-m", "fitscope.demo", "--to", folder], check=True)
        IMAGES.mkdir(exist_ok=True)
        path = IMAGES / "show.svg"
        path.write_text(
            picture(sys.argv[1] if len(sys.argv) > 1 else folder, "fitscope show runs"), encoding="utf-8"
        )
        print(path)


if __name__ == "__main__":
    main()
