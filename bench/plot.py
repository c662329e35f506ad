"""The pictures of the results: each row's cost relative to plain, and how it grows. Drawn with matplotlib, as SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from names import ABOUT, AGAIN, ALTERNATIVES, EXACT, SAMPLED, UNCAPTURED

Results = dict[str, Any]
INK, FAINT, NOISE, OURS, OTHERS = "#222222", "#d9d9d9", "#8c8c8c", "#1f5fa8", "#c4601d"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 9.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "fitscope",  # the same figures, the same file
}
TICKS, FARTHEST = (1, 1.5, 2, 3, 5), 6.5  #: what costs more is an arrow at the edge


def draw(results: Results, to: Path) -> dict[str, Path]:
    """Draws what there are figures for: name of the picture → its file."""
    drawn = {}
    with plt.rc_context(STYLE):
        for name, file, figure in (
            ("bench", "bench.svg", _costs(results)),
            ("growth", "bench-growth.svg", _growth(results)),
        ):
            if figure is not None:
                figure.savefig(to / file, bbox_inches="tight", metadata={"Date": None})
                plt.close(figure)
                drawn[name] = to / file
    return drawn


def _costs(results: Results) -> Any:
    """A panel for each backend and model: the rows as dots, a line from the lowest to the highest round."""
    tables = {tuple(key.split("/")): t["rows"] for key, t in results.get("tables", {}).items() if "rows" in t}
    places = [(backend, model) for backend, jit, model in tables if jit == "auto"]
    if not places:
        return None
    backends, models = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    there = [name for name in ABOUT if any(name in rows for rows in tables.values())]
    figure, panels = plt.subplots(
        len(backends),
        len(models),
        figsize=(2.0 + 2.7 * len(models), 0.7 + (0.55 + 0.19 * len(there)) * len(backends)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for line, backend in zip(panels, backends, strict=True):
        for panel, model in zip(line, models, strict=True):
            if (backend, model) not in places:
                panel.set_visible(False)
                continue
            xla = tables.get((backend, "yes", model), {})
            _panel(panel, tables[backend, "auto", model], xla, there)
            panel.set_title(f"{model}, {backend}{'; ○ XLA' if xla else ''}", loc="left")
    for panel in panels[-1]:
        panel.set_xlabel("CPU time, plain = 1")
    return figure


def _panel(panel: Any, rows: dict[str, Any], xla: dict[str, Any], there: list[str]) -> None:
    """One panel; of what was compiled with XLA as well, only a ring."""
    panel.set_xscale("log")
    panel.set_xlim(0.88, FARTHEST)
    panel.set_ylim(len(there) - 0.4, -0.6)
    panel.axvline(1, color=NOISE, linewidth=0.8, zorder=0)
    beside = panel.get_yaxis_transform()  # x in shares of the panel
    for k, name in enumerate(there):
        panel.axhline(k, color=FAINT, linewidth=0.4, zorder=0)
        row = rows.get(name, {})
        colour = OTHERS if name in ALTERNATIVES else NOISE if name == AGAIN else OURS
        if "cpu" in row:
            panel.plot(
                row["cpu_spread"], [k, k], color=colour, linewidth=1.6, alpha=0.5, solid_capstyle="butt"
            )
            beyond = row["cpu"] > FARTHEST
            panel.plot(
                0.985 * FARTHEST if beyond else row["cpu"],
                k,
                ">" if beyond else "o",
                color=colour,
                markersize=4,
            )
        text = f"{row['cpu']:.2f}" if "cpu" in row else "failed" if row else ""
        panel.text(1.02, k, text, transform=beside, va="center", color=colour, fontsize=7.5)
    panel.set_yticks(range(len(there)), there)
    panel.tick_params(length=0)
    panel.xaxis.set_major_locator(FixedLocator(TICKS))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def _growth(results: Results) -> Any:
    """What a step takes, and what is compiled before, by layers; what a step takes, by batch."""
    points = {
        of: [p for p in growth.get("points", []) if "rows" in p]
        for of, growth in results.get("growth", {}).items()
    }
    wanted = [("layers", "cpu_ms"), ("layers", "compile_seconds"), ("batch", "cpu_ms")]
    wanted = [(of, what) for of, what in wanted if len(points.get(of, [])) > 1]
    if not wanted:
        return None
    figure, panels = plt.subplots(
        1, len(wanted), figsize=(3.6 * len(wanted), 2.9), squeeze=False, layout="constrained"
    )
    for panel, (of, what) in zip(panels[0], wanted, strict=True):
        _grown(panel, points[of], what)
        panel.set_xlabel({"layers": "layers", "batch": "samples in a batch"}[of])
        panel.set_title(
            {"cpu_ms": "CPU time of a step, ms", "compile_seconds": "compiled in, s"}[what], loc="left"
        )
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _grown(panel: Any, points: list[dict[str, Any]], what: str) -> None:
    plain = [(p["size"], p["plain"]["cpu_ms" if what == "cpu_ms" else "first_seconds"]) for p in points]
    curves = {"plain": (plain, NOISE, "-")}
    for name, line in ((UNCAPTURED, ":"), (SAMPLED, "-"), (EXACT, "--")):
        found = [(p["size"], p["rows"][name][what]) for p in points if p["rows"].get(name, {}).get(what)]
        if found:
            curves[name] = (found, OURS, line)
    for name, (found, colour, line) in curves.items():
        panel.plot(
            *zip(*found, strict=True), line, marker="o", markersize=3, color=colour, linewidth=1.2, label=name
        )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.xaxis.set_major_locator(FixedLocator([p["size"] for p in points]))
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_minor_locator(NullLocator())
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    panel.grid(axis="y", color=FAINT, linewidth=0.4)
    panel.tick_params(length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
