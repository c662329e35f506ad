"""From the figures to `results.md`: the targets first, then a table for each model and backend, then what else was measured."""

from __future__ import annotations

from typing import Any

from names import ABOUT, AGAIN, BUDGET
from targets import Figure, Target, judged

Results = dict[str, Any]
MODELS = {
    "cnn": "CNN of 19 layers, batches of 64 pictures of 32 × 32",
    "mlp": "MLP of 21 tiny layers, batches of 32",
    "transformer": "transformer of 2 blocks, width 64, batches of 32 texts of 48 words",
    "resnet": "ResNet-50, batches of 32 pictures of 64 × 64",
}


def markdown(results: Results, pictures: dict[str, str]) -> str:
    """The whole page."""
    parts = [
        "# What capture costs",
        *_head(results),
        *_targets(judged(results)),
        *_picture(pictures, "bench", "CPU time of each row relative to plain fit"),
        *_rows(),
    ]
    for key, table in results.get("tables", {}).items():
        parts += _table(table, results.get("peaks", {}).get(key, {}).get("rows", {}))
    parts += [*_kernel(results), *_fixed(results), *_growth(results, pictures)]
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> list[str]:
    setting = results.get("setting")
    if setting is None:
        return ["Nothing is measured yet: `make bench`."]
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    text = [
        (
            "Made by `make bench`; no figure on this page is typed in. Time of `fit` relative to plain `fit` on the same model: the median "
            f"of {setting['rounds']} rounds (lowest–highest). In a round all rows train in turn, in one process, each right before or "
            "after a plain training that it is compared with. CPU time is that of the whole process, the thread that writes included. "
            "One more round before them is not counted: it compiles, and lets the budget settle. Peak memory is that of a process of its "
            "own, for each row 21 steps long, less that of a plain one."
        ),
        f"{setting['cores']} cores, Python {setting['python']}, {versions}.",
    ]
    if setting.get("quick"):
        text.append("**A quick run, to see that everything works: the figures mean nothing.**")
    return text


def _targets(targets: list[Target]) -> list[str]:
    lines = ["| target | | measured | reached |", "|---|---|---|---|"]
    lines += [f"| {t.text} | {t.limit} | {_measured(t)} | {t.verdict} |" for t in targets]
    about = (
        "JAX and TensorFlow decide. torch runs step by step in Python, so that each captured site costs Python too; its figures stand "
        "beside the others. **Bold** is beyond the limit."
    )
    return ["## Targets", "\n".join(lines), about]


def _measured(target: Target) -> str:
    lines: dict[str, list[str]] = {}
    for figure in target.figures:
        lines.setdefault(figure.where, []).append(_shown(figure))
    undecided = {where for where in lines if where and where not in target.deciding}
    return "<br>".join(
        (f"{where}{' (not judged)' if where in undecided else ''}: " if where else "") + " · ".join(texts)
        for where, texts in lines.items()
    )


def _shown(figure: Figure) -> str:
    text = figure.text if figure.within else f"**{figure.text}**"
    return f"{figure.what} {text}".strip()


def _picture(pictures: dict[str, str], name: str, alt: str) -> list[str]:
    return [f"![{alt}]({pictures[name]})"] if name in pictures else []


def _rows() -> list[str]:
    lines = ["| row | |", "|---|---|", *(f"| {name} | {about} |" for name, about in ABOUT.items())]
    return ["## The rows", "\n".join(lines)]


def _table(table: dict[str, Any], peaks: dict[str, Any]) -> list[str]:
    title = f"## {table['backend']} ({table['mode']}): {MODELS[table['model']] if table['mode'] != 'TF1 session' else 'a CNN'}"
    if "failed" in table:
        return [title, f"Could not be measured: {table['failed']}"]
    plain = table["plain"]
    columns = ["", "CPU time", "wall time", "on disk, a step", "compiled in"] + (
        ["peak memory"] if peaks else []
    )
    lines = [_line(columns), _line(["---"] * len(columns))]
    cells = [
        "plain",
        f"1 = {_ms(plain['cpu_ms'])}",
        f"1 = {_ms(plain['wall_ms'])}",
        "",
        f"{plain['first_seconds']:.1f} s",
    ]
    base = peaks.get("plain", {}).get("peak_mb")
    lines.append(_line(cells + ([f"{base:,.0f} MB" if base else ""] if peaks else [])))
    for name, row in table["rows"].items():
        cells = _cells(name, row)
        lines.append(_line(cells + ([_peak(peaks.get(name, {}), base)] if peaks else [])))
    notes = [f"{name}: {row['note']}" for name, row in table["rows"].items() if "note" in row]
    return [title, "\n".join(lines), f"{table['steps']:,} steps a round.", *notes]


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [name, f"failed: {_safe(row['failed'])}", "", "", ""]
    share = row.get("captured_share")
    shown = f"{name} ({share:.1%} of steps captured)" if name == BUDGET and share is not None else name
    compiled = row.get("compile_seconds")
    return [
        shown,
        _ratio(row, "cpu"),
        _ratio(row, "wall"),
        _bytes(row["bytes_per_step"]) if "bytes_per_step" in row else "",
        f"{compiled:.1f} s" if compiled else "",
    ]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ratio(row: dict[str, Any], kind: str) -> str:
    low, high = row[f"{kind}_spread"]
    return f"{row[kind]:.2f} ({low:.2f}–{high:.2f})"


def _peak(found: dict[str, Any], base: float | None) -> str:
    if "peak_mb" in found and base:
        return f"{found['peak_mb'] - base:+,.0f} MB"
    return f"failed: {_safe(found['failed'])}" if "failed" in found else ""


def _ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1_000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:.3g} GB"


def _safe(text: str) -> str:
    return text.replace("|", "\\|")


def _kernel(results: Results) -> list[str]:
    host = results.get("kernel", {}).get("host")
    if host is None:
        return []
    about = (
        "CPU time of reducing an array on the host, in units of reading the same bytes once with a loop that does nothing else (and of "
        "`np.sum`). An array of a million stays in the processor's cache, where a read is cheap; one of 31 million, what the CNN "
        "shows in a step, comes from memory. What a run gets is the last column, always; the one before it is the same code without the "
        "histogram, which there is no way to ask for. More kinds: `python bench/kernel.py`."
    )
    if "failed" in host:
        return ["## The kernel", f"Could not be measured: {host['failed']}"]
    lines = [
        "| | one read | moments, extremes, counts | with the histogram |",
        "|---|---|---|---|",
    ]
    for k in host["kernel"]:
        some, all_ = (f"{k[f'{name}_read']:.2f} ({k[f'{name}_sum']:.2f})" for name in ("some", "all"))
        lines.append(_line([k["title"], _ms(k["read_ms"]), some, all_]))
    return ["## The kernel", about, "\n".join(lines)]


def _fixed(results: Results) -> list[str]:
    lines = [
        "| | per site and step, on the training thread | of which bookkeeping | sites | rules | ten layers on disk, a step | sites |",
        "|---|---|---|---|---|---|---|",
    ]
    for backend, found in results.get("fixed", {}).items():
        if "failed" in found:
            lines.append(f"| {backend} | failed: {_safe(found['failed'])} | | | | | |")
            continue
        thread, disk = found["thread"], found["disk"]
        low, high = thread["us_spread"]
        judged = f"{thread['judged']:.1%}" if "judged" in thread else ""
        lines.append(
            f"| {backend} | {thread['us']:.1f} µs ({low:.1f}–{high:.1f}) | {thread['own_us']:.1f} µs | {thread['sites']} | {judged} "
            f"| {_bytes(disk['bytes'])} | {disk['sites']} |"
        )
    about = (
        "CPU time of the training thread with default watches at every step less that without, on the tiny layers, for each site. The "
        "bookkeeping is what the run says of itself; the rest is what the step takes to hand out that many tensors. Rules: the share of "
        "the CPU time that judging takes while the same model trains."
    )
    return ["## Fixed costs", about, "\n".join(lines)] if len(lines) > 2 else []


def _growth(results: Results, pictures: dict[str, str]) -> list[str]:
    parts: list[str] = []
    for of, growth in results.get("growth", {}).items():
        if "failed" in growth:
            parts.append(f"Could not be measured, by {of}: {growth['failed']}")
            continue
        points = [p for p in growth["points"] if "rows" in p]
        names = list(dict.fromkeys(name for p in points for name in p["rows"] if name != AGAIN))
        head = [of, "plain, CPU", *names, "plain compiled in", "tapped compiled in"]
        lines = [_line(head), _line(["---"] * len(head))]
        for p in points:
            found = [p["rows"].get(name, {}) for name in names]
            taps = next((row["compile_seconds"] for row in found if row.get("compile_seconds")), None)
            cells = [f"{p['size']:,}", _ms(p["plain"]["cpu_ms"])]
            cells += [_ms(row["cpu_ms"]) if "cpu_ms" in row else "failed" for row in found]
            cells += [f"{p['plain']['first_seconds']:.1f} s", f"{taps:.1f} s" if taps else ""]
            lines.append(_line(cells))
        failed = [f"{p['size']:,} {of}: {p['failed']}" for p in growth["points"] if "failed" in p]
        parts += [f"On {growth['backend']}, CPU time of a step by {of}:", "\n".join(lines), *failed]
    if not parts:
        return []
    return ["## Growth", *_picture(pictures, "growth", "Cost of capture by layers and batch"), *parts]
