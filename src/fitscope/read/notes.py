"""Reads and writes the notes and tags of a run, during the training or years later.

They are the object `notes.json` of the run, next to `run.json`, which never changes. Without it the notes are those of
`fs.Scope(notes=…)`. If two people write at once, the last one wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fitscope.errors import RunError
from fitscope.read import untrusted
from fitscope.store import schema
from fitscope.store._base import Objects

LONGEST = 64  #: characters of a tag
MOST = 64  #: tags of a run


def stored(objects: Objects) -> dict[str, Any]:
    """The document about a run: `notes` if they were changed, and `tags`. Empty if there is none, or if it cannot be read."""
    try:
        document = untrusted.read(objects, schema.NOTES)
    except untrusted.UNREADABLE:
        return {}
    tags = document.get("tags")
    document["tags"] = [tag for tag in tags if _is_tag(tag)][:MOST] if isinstance(tags, list) else []
    return document


def write(objects: Objects, **changes: Any) -> None:
    """Changes the notes or the tags of a run."""
    document = {**stored(objects), **changes}
    try:
        data = json.dumps(document, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as problem:
        raise RunError(
            "notes of JSON data: text, numbers, lists and dicts", f"{problem}", "Convert the rest to text"
        ) from problem
    try:
        objects.put(schema.NOTES, data)
    except OSError as problem:
        raise RunError(
            "a run that can be written to", f"{objects.describe()!r} ({problem})", "Check its permissions"
        ) from problem


def tagged(tags: Iterable[str], new: Iterable[str]) -> list[str]:
    """The old and the new tags, each once."""
    found = list(dict.fromkeys([*tags, *new]))
    for tag in found:
        if not _is_tag(tag):
            raise RunError(
                f"tags of 1 to {LONGEST} characters without line breaks",
                repr(tag),
                "Shorten it, or use run.notes",
            )
    if len(found) > MOST:
        raise RunError(f"at most {MOST} tags", str(len(found)), "Remove some with run.untag(…)")
    return found


def _is_tag(tag: Any) -> bool:
    return isinstance(tag, str) and 0 < len(tag.strip()) <= LONGEST and tag.isprintable()
