"""README.md as the package index shows it: hatchling calls this file when it builds a package.

An index shows the README alone, so relative links and pictures lead nowhere there. If `[project.urls]` in pyproject.toml names the
`Source`, they become absolute. Until then links become plain text, and pictures are left out together with their captions (a paragraph in
italics below a picture).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface as Hook
except ImportError:  # the tests read this file without the build backend
    Hook = object

BRANCH = "main"
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)]+)\)")
#: A paragraph that is one picture, and its caption.
SHOWN = re.compile(r"!\[[^\]]*\]\((?!https://)[^)]+\)\n\n(?:\*[^*\n][^\n]*\*\n\n)?")


def for_index(text: str, source: str | None) -> str:
    """The README without a relative link."""
    if source is None:
        return _links(SHOWN.sub("", text), lambda words, _: words)

    def absolute(target: str, kind: str) -> str:
        return f"{source.rstrip('/')}/{kind}/{BRANCH}/{target}"

    text = PICTURE.sub(
        lambda found: f"![{found[1]}]({_outside(found[2]) or absolute(found[2], 'raw')})", text
    )
    return _links(
        text,
        lambda words, target: f"[{words}]({absolute(target, 'tree' if target.endswith('/') else 'blob')})",
    )


def _links(text: str, shown: Any) -> str:
    """The text with each relative link as `shown` makes it. Code keeps its brackets."""
    parts = re.split(r"(```.*?```|`[^`\n]+`(?!\]))", text, flags=re.DOTALL)
    parts[::2] = [
        LINK.sub(lambda found: found[0] if _outside(found[2]) else shown(found[1], found[2]), part)
        for part in parts[::2]
    ]
    return "".join(parts)


def _outside(target: str) -> str | None:
    return target if target.startswith(("https://", "mailto:", "#")) else None


class Readme(Hook):  # type: ignore[misc,valid-type]
    """Gives hatchling the text."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, source)}
