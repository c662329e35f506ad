"""Reads the documents of a run, which are not trusted.

A run can be copied, sent or damaged, so nothing in it is trusted. A document is a regular file of at most
`MOST_BYTES`, holds at most `MOST_NESTED` lists and objects, and is nested at most `DEEPEST` deep. After that its fields
are checked against a form. A field of the wrong type is removed and reported. So readers only see the types that `store/schema.py`
promises, and one bad field costs only that field. Every error is one of `UNREADABLE`.

Nothing here, and nothing on any path that reads a run, unpickles.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from fitscope.diagnose.finding import SEVERITIES
from fitscope.store._base import Objects

MOST_BYTES = 16 << 20  #: the most bytes of a JSON document; that of a model with 10,000 layers has some 5 MB
#: Lists and objects in a document: each takes some 80 bytes of memory for two of the file.
MOST_NESTED = 1_000_000
DEEPEST = 64
LARGEST = 2**62  #: the largest integer, of either sign: sums and differences stay within 64 bits
LONGEST_NAME = 4096  #: characters of the path of a layer
MOST_LAYERS = 20_000  #: the most layers of a model
MOST_ATTEMPTS = 1_000_000
MOST_RANKS = 65_536
MOST_ARRAYS = 100_000  #: the most arrays of one rank, and the most averages
MOST_FINDINGS = 5_000  #: the most findings of a run, with their consequences

#: The errors that reading a damaged or forged object of a run may raise.
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, AssertionError,
    RuntimeError, MemoryError, EOFError, struct.error, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip

Check = Callable[[Any], bool]
Form = Mapping[str, "Check | Form"]  #: for each field its check, or the form of a nested object


def read(objects: Objects, key: str) -> dict[str, Any]:
    """The JSON object under a key. One of `UNREADABLE` if it is none, or too large."""
    return parse(objects.get(key, MOST_BYTES))


def parse(data: bytes) -> dict[str, Any]:
    """A JSON object. One of `UNREADABLE` if it is none, too large or nested too deep."""
    nested = data.count(b"[") + data.count(b"{")
    if len(data) > MOST_BYTES or nested > MOST_NESTED:
        raise ValueError(
            f"it has {len(data):,} bytes and {nested:,} lists and objects, more than the {MOST_BYTES:,} bytes or "
            f"the {MOST_NESTED:,} that fitscope reads"
        )
    document = loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"it is a JSON {type(document).__name__}, not an object")
    if nested > DEEPEST and _deeper(document, DEEPEST):
        raise ValueError(f"its lists and objects are nested more than {DEEPEST} deep")
    return document


def loads(data: bytes) -> Any:
    """A JSON value in UTF-8. Half a surrogate pair, which no other encoder takes, becomes a question mark."""
    found = json.loads(data.decode("utf-8"))
    if b"\\u" in data:
        with contextlib.suppress(RecursionError):  # the text is nested too deep: `parse` refuses it
            found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    return found


def cleaned(document: dict[str, Any], form: Form) -> list[str]:
    """Removes the fields that do not fit the form. Returns a description of each problem."""
    wrong = []
    for name, fits in form.items():
        if name not in document:
            continue
        if isinstance(fits, Mapping):
            if isinstance(document[name], dict):
                wrong += cleaned(document[name], fits)
            if document[name] is None or isinstance(document[name], (dict, str)):
                continue
        elif fits(document[name]):
            continue
        wrong.append(f"its field {name!r} is {_kind(document.pop(name))}")
    return wrong


def _deeper(document: Any, most: int) -> bool:
    level = [document]
    for _ in range(most):
        inner = (item.values() if isinstance(item, dict) else item for item in level)
        level = [one for items in inner for one in items if isinstance(one, (dict, list))]
        if not level:
            return False
    return True


def _kind(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool)) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}…"


# ---- checks of fields ----------------------------------------------------------------------------


def text(value: Any) -> bool:
    return isinstance(value, str)


def name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.count("/") <= DEEPEST


def integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def count(value: Any) -> bool:
    return integer(value) and value >= 0


def number(value: Any) -> bool:
    return integer(value) or (isinstance(value, float) and abs(value) < 1e300)


def anything(value: Any) -> bool:  # noqa: ARG001
    return True


def key(value: Any) -> bool:
    """A path below a folder: it does not lead out of it."""
    if not isinstance(value, str) or not 0 < len(value) <= 1024 or "\0" in value or "\\" in value:
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


def up_to(most: int) -> Check:
    return lambda value: count(value) and value <= most


def maybe(fits: Check) -> Check:
    return lambda value: value is None or fits(value)


def listing(fits: Check, most: int = MOST_NESTED) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(fits, value))


def numbers(value: Any) -> bool:
    """A list of numbers, or None. A thousand ranks send hundreds of thousands of them, so they are checked one by one only if needed."""
    if not isinstance(value, list):
        return False
    there = [one for one in value if one is not None]
    if {*map(type, there)} <= {int, float}:
        with contextlib.suppress(OverflowError):
            if sum(map(abs, there)) <= LARGEST:  # the sum is small, so each is, and none is NaN
                return True
    return all(map(number, there))


def mapping(fits: Check) -> Check:
    """An object with any names, whose values all pass one check."""
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def distinct(fits: Check) -> Check:
    """A list or mapping of at most `MOST_ARRAYS` texts, none of them twice: reading one file under many names would be an attack."""

    def check(value: Any) -> bool:
        if not fits(value) or len(value) > MOST_ARRAYS:
            return False
        return len(set(value.values() if isinstance(value, dict) else value)) == len(value)

    return check


def fields(form: Mapping[str, Check], *needed: str) -> Check:
    """An object whose fields fit a form, and which has all required fields."""
    return lambda value: (
        isinstance(value, dict)
        and all(name in value for name in needed)
        and all(fits(value[name]) for name, fits in form.items() if name in value)
    )


# ---- findings ---------------------------------------------------------------------------------------


def _values(value: Any) -> bool:
    """Those of a series: what is no finite number is written as text."""
    return isinstance(value, list) and all(
        number(one) or one in (None, "nan", "inf", "-inf") for one in value
    )


_SERIES = fields({"name": text, "steps": listing(integer), "values": _values}, "name", "steps", "values")
_FINDING = fields(
    {
        "rule": text,
        "severity": lambda value: value in SEVERITIES,
        **dict.fromkeys(("site", "layer"), maybe(text)),
        **dict.fromkeys(("first_step", "last_step"), integer),
        **dict.fromkeys(("message", "cure"), text),
        "evidence": mapping(anything),
        "consequences": listing(anything),
        "confidence": number,
        "series": maybe(lambda value: _SERIES(value) and len(value["steps"]) == len(value["values"])),
    },
    "rule",
    "severity",
)


def _findings(value: Any) -> bool:
    """A list of findings, with their consequences at most `MOST_FINDINGS`."""
    if not isinstance(value, list):
        return False
    todo, seen = [*value], 0
    while todo:
        one = todo.pop()
        seen += 1
        if seen > MOST_FINDINGS or not _FINDING(one):
            return False
        todo += one.get("consequences") or ()
    return True


# ---- the documents of a run -------------------------------------------------------------------------

_LAYER = fields(
    {
        "path": name,
        "type": maybe(text),
        "weights": maybe(mapping(fields({"shape": maybe(listing(maybe(integer)))}))),
        "from": maybe(listing(name)),
        "output_shape": anything,
    }
)
#: The configuration of the model. Rules read more of it, and each guards itself.
_CONFIGURATION = fields(
    {
        "layers": maybe(
            listing(
                fields({"path": name, "class": maybe(text), "inbound": maybe(listing(name))}), MOST_LAYERS
            )
        ),
        "outputs": maybe(listing(fields({"layer": maybe(name)}))),
    }
)
_MODEL: Form = {
    "name": maybe(text),
    "parameters": maybe(count),
    "layers": maybe(listing(_LAYER, MOST_LAYERS)),
}
_SAID: Form = {
    "created_ns": up_to(2**62),
    "software": mapping(text),
    "model": _MODEL,
    "backend": maybe(text),
    "configuration": maybe(_CONFIGURATION),
    "host": text,
    "machine": text,
    "pid": integer,
    "started": maybe(text),
}

RUN: Form = {**_SAID, "format": count, "id": text}

ATTEMPT: Form = {
    **_SAID,
    "attempt": up_to(MOST_ATTEMPTS),
    "start_step": integer,
    "world": lambda value: up_to(MOST_RANKS)(value) and value > 0,
    "shards": lambda value: isinstance(value, bool),
    "sampled": listing(up_to(MOST_RANKS)),
}

STATUS: Form = {
    "status": text,
    "heartbeat": number,
    "host": text,
    "machine": text,
    "pid": integer,
    "started": maybe(text),
    "step": maybe(integer),
    **dict.fromkeys(("rows", "parts", "samples", "captures", "bytes", "errors_total"), count),
    "averages": distinct(mapping(key)),
    "limit": maybe(count),
    "full_at": maybe(integer),
    "lost": mapping(count),
    "dropped": mapping(count),
    "unseen": mapping(text),
    "bad_samples": mapping(
        fields(
            {"step": integer, "samples": listing(count), "number": count, "of": count},
            "step",
            "samples",
            "number",
            "of",
        )
    ),
    "errors": listing(text),
    "ended_by": maybe(text),
    "black_box": fields(
        {
            "steps": count,
            "memory": count,
            "bytes": count,
            "dropped": count,
            "trouble": maybe(text),
            "severity": text,
        }
    ),
    "pulse": fields(dict.fromkeys(("step", "time", "cpu", "loss", "weights"), numbers)),
    "identity": mapping(fields({"status": text, "steps": maybe(listing(integer)), "why": maybe(text)})),
    "findings": fields(
        {
            "version": text,
            "step": maybe(integer),
            "findings": _findings,
            "checked": listing(text),
            "not_judged": mapping(text),
            "expected": count,
        }
    ),
    "checkpoints": listing(
        fields(
            {"step": integer, "epoch": maybe(integer), "path": text, "time": maybe(number)}, "step", "path"
        )
    ),
    "overhead": {
        "steps": number,
        "wall_seconds": number,
        "cpu_share": maybe(number),
        "compile_seconds": maybe(number),
        "budget": {
            "every": maybe(count),
            "share": maybe(number),
            "trouble": maybe(text),
            "decisions": listing(fields({"step": integer, "every": integer})),
        },
    },
}
