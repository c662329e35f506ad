"""Whether a run accounts for everything that was watched: each site is recorded, or named in `run.unseen` with a reason.

Reads the plan that the run itself keeps. Names that only the step knows (`taps`, `metrics`) are not in the plan, and not judged here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fitscope.sites import Site
from fitscope.watch import KINDS_IN, LAYER_KINDS

#: What `fs.data()` derives.
DATA = (
    "classes/targets", "classes/predictions", "classes/log_loss",
    "features/inputs", "features/mean", "features/range", "features/duplicates",
)  # fmt: skip


def assert_complete(run: Any, passes: Iterable[str] = ("train",)) -> None:
    """`passes` are those that ran with the scope: "train", "validation", "evaluate", "predict"."""
    missing = unexplained(run, passes)
    assert missing == [], f"neither recorded nor explained: {missing}\nexplained: {run.unseen}"


def asked(run: Any) -> list[str]:
    """The sites that a watch asked for: without those that every run has, the logs of Keras and the loss of each batch."""
    kinds = {(watch.get("of") or watch["kind"], in_pass) for watch in run.plan for in_pass in watch["on"]}

    def given(site: Site) -> bool:
        return site.base == "logs" or (
            site.base == "loss" and site.in_pass == "train" and (site.base, "train") not in kinds
        )

    return [name for name in run.sites if not given(Site.parse(name))]


def captured(run: Any) -> list[int]:
    """The steps whose loss was seen. Of all others it is derived."""
    frame = run.frame("loss")
    return list(frame.index[frame["error"].isna()] if "error" in frame else frame.index)


def unexplained(run: Any, passes: Iterable[str] = ("train",)) -> list[str]:
    """The watched sites that are neither recorded nor named with a reason."""
    wanted = {site for in_pass in passes for watch in run.plan for site in _sites(watch, in_pass)}
    found: set[str] = set()
    for site in [*run.sites, *(name for name, why in run.unseen.items() if why.strip())]:
        # The longest name that it can belong to: `activations/block/dense` is not an output of `activations/block`.
        owners = [name for name in wanted if site == name or site.startswith(tuple(name + c for c in "[#/"))]
        found.update([max(owners, key=len)] if owners else [])
    return sorted(wanted - found)


def _sites(watch: dict[str, Any], in_pass: str) -> list[str]:
    kind = watch.get("of") or watch["kind"]
    if kind in ("taps", "metrics") or kind not in KINDS_IN[in_pass]:
        return []
    if in_pass in ("train", "validation") and in_pass not in watch["on"]:
        return []
    prefix = ("" if in_pass == "train" else f"{in_pass}/") + (
        "changes/" if watch["kind"] == "changes" else ""
    )
    # An empty path is left out of the plan's description: then there is one site of that kind.
    paths = watch["places"] if kind in (*LAYER_KINDS, "activity") else [""]
    if kind == "data":
        return [prefix + name for name in DATA]
    found = [prefix + "/".join(filter(None, (kind, path))) for path in paths]
    return found + ([prefix + "sample_loss"] if watch.get("per_sample") else [])
