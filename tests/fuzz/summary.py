"""What a campaign came to, in words and numbers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from fuzz.layers import drawable


def reason(result: dict[str, Any]) -> str:
    """The kind of a result's first fault, without what is particular to its model: names and numbers."""
    if result["outcome"] == "invalid":
        return str(result["error"])[:200]
    if not result.get("faults"):
        return ""
    kind, detail = result["faults"][0]
    return f"{kind}: {general(detail)}"


def general(text: str) -> str:
    """A text without the names of layers and without numbers."""
    return re.sub(r"\d[\d.e+-]*", "N", re.sub(r"\b(n|x|out|net_n)\d+(_\d)?\b", "LAYER", text))[:160]


def summary(
    backend: str, results: list[dict[str, Any]], invalid: list[dict[str, Any]], seconds: float
) -> str:
    outcomes = Counter(one["outcome"] for one in results)
    kinds = Counter(kind for one in results for kind in {kind for kind, _ in one.get("faults", ())})
    covered = {name for one in results for name in (one["must"], *one["layers"])}
    missing = sorted(set(drawable(backend)) - covered)
    lines = [
        f"{len(results)} models on {backend} in {seconds / 60:.1f} minutes ({_mean(results):.1f} s of CPU each)",
        (
            f"  equal {outcomes['equal']}, failed {outcomes['failed']}, do not repeat themselves {outcomes['unrepeatable']}; "
            f"draws that do not train {len(invalid)}; with NaN {sum(bool(one.get('nan')) for one in results)}"
        ),
        "  "
        + ", ".join(
            f"{kind} {kinds[kind]}"
            for kind in ("differs", "raised", "warned", "unexplained", "left", "status", "died")
        ),
        f"  layers covered: {len(set(drawable(backend)) & covered)} of {len(drawable(backend))}"
        + (f", missing {missing}" if missing else ""),
    ]
    identity = Counter(one["identity"] for one in results if one.get("identity"))
    if identity:
        lines.append(
            "  identity: " + ", ".join(f"{kind} {number}" for kind, number in identity.most_common())
        )
        whys = Counter((one["identity"], general(one["why"])) for one in results if one.get("why"))
        lines += [f"    {number}× {kind}: {why}" for (kind, why), number in whys.most_common(12)]
    for title, group in (
        ("failures", [one for one in results if one["outcome"] == "failed"]),
        ("draws that do not train", invalid),
    ):
        classes = Counter(
            reason(one) if title == "failures" else f"{one['must']}: {general(one['error'])}" for one in group
        )
        first = {reason(one): one["seed"] for one in reversed(group)}
        lines += [f"  {title}:"] if classes else []
        lines += [
            f"    {number}× {text}" + (f" (seed {first[text]})" if text in first else "")
            for text, number in classes.most_common(25)
        ]
    return "\n".join(lines)


def _mean(results: list[dict[str, Any]]) -> float:
    return sum(one.get("cpu", 0.0) for one in results) / max(len(results), 1)
