"""Lists symptoms under the finding that caused them, so that one cause is one finding.

A finding becomes a consequence of another under three conditions: the table allows it, it did not begin earlier, and, if both
name a layer, data or gradients flow from one to the other. Occurring together is not enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import SEVERITIES, Finding
from fitscope.diagnose.network import Network

_COURSE = ("loss_not_decreasing", "class_collapse")
_GROWTH = ("loss_diverging", "loss_spike", "exploding_weights", "exploding_gradient")
_BLOW_UP = (*_GROWTH, "nonfinite")

FIRST_STEPS = 20
ORDINARY_CLIP = 0.1  #: from here on a clip is common: if gradients are far above it, they are too large, not the clip too small
COMMON_CLASS = 0.8  #: share of the targets above which a class is common, and the others are rare
#: What each rule's finding can lead to. Those that come first are taken first, where two could be the cause.
LEADS_TO: dict[str, tuple[str, ...]] = {
    "output_loss_mismatch": (
        *_COURSE, *_BLOW_UP, "bad_initial_loss", "saturated", "dead_relu", "vanishing_gradient",
        "layer_not_learning", "updates_too_large", "updates_too_small", "label_problem",
    ),
    "label_problem": (*_COURSE, *_BLOW_UP, "bad_initial_loss", "overfitting", "saturated", "updates_too_large"),
    "wrong_axis": (
        *_COURSE, "bad_initial_loss", "saturated", "overfitting", "vanishing_gradient", "layer_not_learning",
    ),
    "optimizer_misconfigured": (
        *_COURSE, *_BLOW_UP, "updates_too_large", "updates_too_small", "dead_relu", "saturated",
        "layer_not_learning", "vanishing_gradient",
    ),
    "clipped_gradient": (*_COURSE, "updates_too_small"),
    "input_not_normalised": (
        *_COURSE, *_BLOW_UP, "bad_initial_loss", "saturated", "dead_relu", "updates_too_large",
        "updates_too_small", "vanishing_gradient", "layer_not_learning",
    ),
    "precision_underflow": (*_COURSE, "layer_not_learning", "vanishing_gradient", "updates_too_small", "dead_relu"),
    "nonfinite": (
        "loss_diverging", "loss_spike", "exploding_weights", *_COURSE, "updates_too_large", "overfitting",
        "bad_initial_loss",
    ),
    "bad_initial_loss": (
        *_COURSE, *_BLOW_UP, "dead_relu", "updates_too_large", "vanishing_gradient", "layer_not_learning",
        "clipped_gradient",
    ),
    "updates_too_large": (
        *_COURSE, *_BLOW_UP, "dead_relu", "saturated", "layer_not_learning", "overfitting",
        "vanishing_gradient",
    ),
    "exploding_gradient": (
        *_GROWTH, "clipped_gradient", "updates_too_large", "dead_relu", "saturated", "bad_initial_loss", *_COURSE,
    ),
    "dead_relu": (*_COURSE, "layer_not_learning", "vanishing_gradient", "dead_relu", "updates_too_small"),
    "saturated": (*_COURSE, "layer_not_learning", "vanishing_gradient", "updates_too_small", "bad_initial_loss"),
    "layer_not_learning": (*_COURSE, "layer_not_learning", "dead_relu", "vanishing_gradient", "updates_too_small"),
    "vanishing_gradient": (*_COURSE, "layer_not_learning", "updates_too_small"),
    "updates_too_small": _COURSE,
    "exploding_weights": ("loss_diverging", "loss_spike", "saturated"),
    "unshuffled": (*_COURSE, "loss_spike", "overfitting"),
    "dropout_too_high": _COURSE,
    "batchnorm": (
        "overfitting", "input_not_normalised", "bad_initial_loss", "updates_too_large", "saturated", "dead_relu",
        "layer_not_learning", *_BLOW_UP, *_COURSE,
    ),
    "loss_diverging": ("loss_spike", "nonfinite", *_COURSE),
    "loss_spike": (
        "exploding_gradient", "exploding_weights", "updates_too_large", "loss_diverging", "odd_batch", *_COURSE,
    ),
    "odd_batch": (*_GROWTH, "updates_too_large"),  # the origin of a NaN tells more
    "class_collapse": ("loss_not_decreasing",),  # only with rare classes; otherwise the other way round
    "loss_not_decreasing": ("class_collapse",),
}  # fmt: skip

#: Both happen in one layer or along the path of the data; the gradient of the cause's layer reaches the other only upstream.
_LOCAL = ("dead_relu", "saturated", "layer_not_learning", "vanishing_gradient")


def folded(findings: Iterable[Finding], evidence: Evidence) -> list[Finding]:
    """The causes, each with its consequences; the worst first, then the earliest."""
    waiting = sorted(findings, key=_priority)
    flow = _Flow((each.layer for each in waiting), evidence.network)
    taken: dict[int, list[Finding]] = {}
    owned: set[int] = set()
    for i, cause in enumerate(waiting):
        if i in owned:
            continue
        for j, other in enumerate(waiting):
            if i != j and j not in owned and not _under(i, j, taken, waiting) and _leads(cause, other, flow):
                taken.setdefault(i, []).append(other)
                owned.add(j)
    found = []
    for i, cause in enumerate(waiting):
        if i in owned:
            continue
        below = _all(waiting, i, taken)
        worst = min((cause, *below), key=lambda each: SEVERITIES.index(each.severity)).severity
        found.append(cause.but(consequences=tuple(below), severity=worst) if below else cause)
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), f.first_step, -f.confidence))


def _priority(finding: Finding) -> tuple[int, int]:
    names = list(LEADS_TO)
    if "initializer" in finding.evidence or finding.evidence.get("odd"):
        return (
            -1,
            finding.first_step,
        )  # settings and data come before their effects
    return (names.index(finding.rule) if finding.rule in names else len(names), finding.first_step)


def _under(i: int, j: int, taken: dict[int, list[Finding]], waiting: Sequence[Finding]) -> bool:
    """Whether j already has i among its consequences."""
    return any(one is waiting[i] for one in taken.get(j, ()))


def _all(waiting: Sequence[Finding], i: int, taken: dict[int, list[Finding]]) -> list[Finding]:
    found = []
    for one in taken.get(i, ()):
        found.append(one)
        found += _all(waiting, next(k for k, w in enumerate(waiting) if w is one), taken)
    return found


def _leads(cause: Finding, other: Finding, flow: _Flow) -> bool:
    if other.rule not in LEADS_TO.get(cause.rule, ()):
        return False
    if cause.severity == "note" and other.severity != "note" and (cause.layer or "?") != other.layer:
        return False  # a maybe does not explain a fact, unless both are of one layer
    known = _of_this_pair(cause, other, flow)
    if known is not None:
        return known
    if cause.first_step > _begins(cause, other):
        return False
    if (
        cause.rule in _LOCAL
        and cause.layer
        and other.layer
        and cause.layer != other.layer
        and other.rule in _LOCAL
    ):
        # Zero or flat outputs starve the layers before them, and give constants to the layers after them.
        return flow.connects(cause.layer, other.layer)
    return True


def _of_this_pair(cause: Finding, other: Finding, flow: _Flow) -> bool | None:
    """A decision for this pair of cause and consequence; None if there is no special case."""
    if {cause.rule, other.rule} == {"class_collapse", "loss_not_decreasing"}:
        # If a class is common, the loss settles for predicting it for every sample.
        collapse = cause if cause.rule == "class_collapse" else other
        return bool(collapse.evidence.get("wanted", 0.0) > COMMON_CLASS) == (cause is collapse)
    if cause.rule == "loss_spike" and not cause.evidence.get("odd"):
        return False
    if {cause.rule, other.rule} == {"bad_initial_loss", "exploding_gradient"}:
        # Weights that enlarge the gradient from layer to layer also enlarge the signal: the layers are the cause, not the loss.
        gradient, start = (cause, other) if cause.rule == "exploding_gradient" else (other, cause)
        in_depth = "norm_at_last_layer" in gradient.evidence and "initializer" in start.evidence
        return in_depth == (gradient is cause)
    if cause.rule == "label_problem" and cause.severity == "note" and other.rule not in _COURSE:
        return False  # classes of different size are no reason for a bad start or for large steps
    if cause.rule == "wrong_axis" and other.rule == "layer_not_learning":
        return bool(cause.layer and other.layer and flow.connects(cause.layer, other.layer))
    if cause.rule == "bad_initial_loss" and other.rule == "nonfinite":
        # Weights that are too large from the start overflow in the first steps, or not at all.
        return "initializer" in cause.evidence and other.first_step <= FIRST_STEPS
    if other.rule == "clipped_gradient":
        return _is_ordinary(other)
    if cause.rule == "batchnorm" and cause.evidence.get("frozen"):
        return None  # its output is as bad as inputs that are not normalised
    if cause.rule == "batchnorm" and other.rule != "overfitting":
        # A single sample is its own mean: the norm returns a constant, which kills or starves what is connected with it.
        alone = bool(cause.evidence.get("batch_size") == 1) and other.rule in (
            "dead_relu",
            "layer_not_learning",
            *_COURSE,
        )
        return alone and (not cause.layer or not other.layer or flow.connects(cause.layer, other.layer))
    if cause.rule == "loss_diverging" and other.rule == "nonfinite" and not cause.evidence.get("overflows"):
        return False
    return None


def _is_ordinary(clipped: Finding) -> bool:
    """Whether the clip is a common one: then the gradients that it cuts are too large."""
    clips = [clipped.evidence.get(name) for name in ("clipnorm", "global_clipnorm", "clipvalue")]
    return bool(min(clip for clip in clips if clip is not None) >= ORDINARY_CLIP)


def _begins(cause: Finding, other: Finding) -> float:
    """The last step at which the cause may have begun. A loss that does not fall is judged as a whole, so its first part counts."""
    if other.rule == "loss_not_decreasing":
        if cause.rule == "loss_diverging":
            return other.last_step  # both come from the same curve
        part = 0.25 if cause.rule in ("loss_spike", "optimizer_misconfigured") else 0.1
        return other.first_step + part * (other.last_step - other.first_step)
    return other.first_step


class _Flow:
    """The connections between the layers that findings name."""

    def __init__(self, layers: Iterable[str | None], network: Network) -> None:
        self._network = network
        # Layers inside another layer, such as an attention layer, have its position.
        self._places = {layer: network.placed(layer) for layer in layers if layer}
        self._all = frozenset(self._places.values())
        self._reached: dict[str, frozenset[str]] = {}

    def connects(self, one: str, other: str) -> bool:
        """Whether data flows from one layer to the other."""
        here, there = self._places[one], self._places[other]
        return here == there or there in self._from(here) or here in self._from(there)

    def _from(self, place: str) -> frozenset[str]:
        if place not in self._reached:
            self._reached[place] = self._all & self._network.downstream(place)
        return self._reached[place]
