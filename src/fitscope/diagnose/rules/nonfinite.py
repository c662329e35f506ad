"""`nonfinite`: the origin of the first NaN or Inf.

Looks at the first operation in the order of execution that made one, at the first step that has any: data, then the layers
forward, the loss, then the layers backward, then the optimizer. A gradient at a layer's *output* was made by the layer that
consumes it, so a layer whose output gradient is finite and whose weight gradients or input gradients are not is the one.
An Inf that becomes a NaN further on counts as the cause, because it comes first. Where the whole tensor left the step, the rule names
the samples of the batch that have them.

False alarms: an overflow that loss scaling corrects is not reported. An Inf on purpose (a mask of -inf) that never
reaches the loss is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from fitscope.diagnose.evidence import Broken, Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.rule import rule
from fitscope.sites import Site

_NEARLY = 1e9  #: no healthy layer has such numbers; float32 ends at 3e38, and exponential growth gets there in a few steps
_STATE = ("weights",)
_BACKWARD = ("gradients", "weight_gradients", "updates")
_KINDS = ("inputs", "targets", *_STATE, "activations", "taps", "predictions", "loss", *_BACKWARD)


class Origin(NamedTuple):
    """The origin of a NaN or Inf."""

    site: Site
    layer: str | None
    what: str  #: the operation, in words
    cure: str
    sure: float = 0.9


@rule("nonfinite", sees="the layer and pass in which the first NaN or Inf was born")
def nonfinite(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    del limit
    broken = _counting(evidence)
    if not broken:
        if not evidence.captured and evidence.loss is None:
            yield NotJudged("nothing was recorded")
        return
    step = min(b.step for b in broken.values())
    here = {site: b for site, b in broken.items() if b.step == step}
    origin = origin_of(evidence, here)
    first = here[origin.site]
    harmless = evidence.end is None and not any(b.nans for b in broken.values())
    others = len(here) - 1
    more = f" {others} other sites have some in the same step." if others else ""
    before = _last_healthy(evidence, origin.site, step)
    gap = "" if before is None or step - before <= 1 else f" Step {before:,} was recorded and healthy."
    loss = evidence.loss
    samples = evidence.bad_samples.get(origin.site)
    samples = samples if samples is not None and samples["step"] == step else None
    yield Finding(
        "nonfinite",
        "note" if harmless else "error",
        site=str(origin.site),
        layer=_placed(evidence, origin.layer),
        first_step=step,
        last_step=evidence.last_step or step,
        message=(
            f"The first {first.word} was born in {origin.what} at step {step:,}: "
            f"{first.nans + first.infs:,} of {first.count:,} values of {origin.site} are not finite"
            f"{_in_samples(samples)}.{more}{gap}"
        ),
        evidence={
            "nans": first.nans,
            "infs": first.infs,
            "count": first.count,
            "sites_in_this_step": len(here),
            "last_healthy_step": before,
            **({"samples": samples["samples"]} if samples else {}),
        },
        cure=origin.cure,
        confidence=origin.sure,
        series=Series.from_history(loss, "value") if loss is not None else None,
    )


def _in_samples(placed: Mapping[str, Any] | None) -> str:
    """The samples of the batch that have them, in words."""
    if placed is None or not placed["samples"]:
        return ""
    samples, number, of = placed["samples"], placed["number"], placed["of"]
    if number == of > 1:
        return f", in all {of} samples of the batch"
    names = ", ".join(map(str, samples)) + (
        f" and {number - len(samples):,} more" if number > len(samples) else ""
    )
    return f", in sample{'s' if number > 1 else ''} {names} of the batch (the first is 0)"


def _placed(evidence: Evidence, layer: str | None) -> str | None:
    """The layer to look at: the weights of a recurrent layer belong to its cell, which the user did not place and which is not recorded."""
    recorded = {history.site.layer for history in evidence.of("activations")}
    outer = layer.rpartition("/")[0] if layer else ""
    return outer if outer in recorded and layer not in recorded else layer


def _counting(evidence: Evidence) -> dict[Site, Broken]:
    """The sites with NaN and Inf, without the overflows that loss scaling finds and skips."""
    found = {site: b for site, b in evidence.broken.items() if site.base in _KINDS and not site.moved}
    scaled = "loss_scale" in evidence.histories or evidence.setting("optimizer", "loss_scale") is not None
    if not scaled:
        return found
    end = min((b.step for site, b in found.items() if site.base not in _BACKWARD), default=None)
    return {
        site: b
        for site, b in found.items()
        if site.base not in _BACKWARD or (end is not None and b.step >= end)
    }


def _last_healthy(evidence: Evidence, site: Site, step: int) -> int | None:
    history = evidence.history(site)
    before = history.before(step) if history is not None else None
    return int(before.steps[-1]) if before else None


def origin_of(evidence: Evidence, here: dict[Site, Broken]) -> Origin:
    """The first operation among the sites that broke in one step."""
    for kind, cure in (
        ("inputs", "Clean the data: look for missing values and divisions by zero where it is prepared."),
        (
            "targets",
            "Clean the targets: look for missing values and divisions by zero where they are prepared.",
        ),
    ):
        data = sorted(site for site in here if site.base == kind)
        if data:
            return Origin(data[0], None, f"the data ({kind} of the batch)", cure, 0.99)
    return (
        _in_weights(evidence, here)
        or _forward(evidence, here)
        or _in_loss(evidence, here)
        or _backward(evidence, here)
        or _in_optimizer(here)
    )


def _in_weights(evidence: Evidence, here: dict[Site, Broken]) -> Origin | None:
    """Weights are the state before the step: their NaN comes from an earlier step, which was not recorded."""
    sites = [site for site in here if site.base == "weights"]
    if not sites:
        return None
    layers = evidence.network.sorted({site.layer for site in sites})
    site = min(sites, key=lambda s: (evidence.network.depth(s.layer), s))
    all_layers = {history.site.layer for history in evidence.of("weights")}
    alone = len(layers) < max(2, len(all_layers))
    cure = "Record more often (every=1) to see the step in which it happens; lower the learning rate or clip gradients."
    what = (
        f"the weights of {layers[0]}, by a step that was not recorded,"
        if alone
        else "a step that was not recorded; all weights were hit"
    )
    return Origin(site, layers[0] if alone else None, what, cure, 0.4)


def _forward(evidence: Evidence, here: dict[Site, Broken]) -> Origin | None:
    sites = {site.layer: site for site in here if site.base == "activations"}
    recorded = frozenset(history.site.layer for history in evidence.of("activations"))
    for layer in evidence.network.sorted(sites):
        if not any(source in sites for source in evidence.network.producers(layer, recorded)):
            cure = (
                f"Look inside {layer} for log, exp, sqrt or a division at the edge of its domain; "
                "add an epsilon or clip its input. Its inputs and weights are finite."
            )
            return Origin(
                sites[layer],
                layer,
                f"the forward pass of {layer}",
                cure,
                0.95 if evidence.network.graph else 0.8,
            )
    taps = sorted(site for site in here if site.base in ("taps", "predictions"))
    if taps:
        return Origin(
            taps[0], _output(evidence), f"the forward pass ({taps[0]})", "Look at what computes it.", 0.7
        )
    return None


def _in_loss(evidence: Evidence, here: dict[Site, Broken]) -> Origin | None:
    sites = sorted(site for site in here if site.base == "loss")
    if not sites:
        return None
    captured = any(
        evidence.history(h.site) is not None and here[sites[0]].step in h.steps
        for h in evidence.of("activations")
    )
    overflowing = None if captured else _overflowing(evidence, here[sites[0]].step)
    if overflowing is not None:
        return overflowing
    layer = _output(evidence) if captured else None
    cure = (
        "Its predictions are finite, so the loss itself overflows: use from_logits=True instead of a probability, "
        "or keep predictions away from 0 where their logarithm is taken."
    )
    if not captured:
        cure = (
            "Only the loss of this step was recorded: record every step around it (every=1) to see the layer."
        )
    return Origin(sites[0], layer, "the loss", cure, 0.85 if captured else 0.4)


def _overflowing(evidence: Evidence, step: int) -> Origin | None:
    """The layer that was about to overflow when it was last recorded, shortly before a step that was not."""
    for history in evidence.of("activations"):
        before = history.before(step)
        size = float(np.fmax(abs(before.max[-1]), abs(before.min[-1]))) if len(before) else 0.0
        if size > _NEARLY and size > 1e3 * float(np.fmax(abs(before.max[0]), abs(before.min[0]))):
            layer, last = history.site.layer, int(before.steps[-1])
            what = f"the forward pass of {layer}, whose output had grown to {size:.2g} by step {last:,},"
            cure = f"Look inside {layer} for exp or a power, and clip its input; record every step (every=1) to be sure."
            broken = next(site for site in evidence.broken if site.base == "loss")
            return Origin(broken, layer, what, cure, 0.6)
    return None


def _output(evidence: Evidence) -> str | None:
    return evidence.network.outputs[0] if evidence.network.outputs else None


def _backward(evidence: Evidence, here: dict[Site, Broken]) -> Origin | None:
    """The first layer in the backward pass with a healthy output gradient that hands on something that is not finite."""
    network = evidence.network
    recorded = frozenset(history.site.layer for history in evidence.of("gradients"))
    at_output = {site.layer: site for site in here if site.base == "gradients"}
    of_weights = {one.layer: one for one in sorted(here, reverse=True) if one.base == "weight_gradients"}
    if not at_output and not of_weights:
        return None
    cure = (
        "Look for sqrt, norm, division or a power at zero in {}: their derivatives are infinite there. Add an epsilon "
        "inside the root, or guard with where() on the input, not on the result."
    )
    layers = network.sorted({*recorded, *of_weights, *network.order})
    for layer in reversed(layers):
        if layer in at_output:
            continue
        passed_on = [p for p in network.producers(layer, recorded) if p in at_output]
        handed_on = at_output[passed_on[-1]] if passed_on and layer in recorded else None
        site = of_weights.get(layer) or handed_on
        if site is not None:
            return Origin(
                site,
                layer,
                f"the backward pass of {layer}",
                cure.format(layer),
                0.95 if network.graph else 0.75,
            )
        if layer in network.ends and layer not in recorded and passed_on:
            return Origin(
                at_output[passed_on[-1]], layer, f"the backward pass of {layer}", cure.format(layer), 0.6
            )
    last = network.sorted(at_output or of_weights)[-1]
    site = at_output[last] if last in at_output else of_weights[last]
    return Origin(
        site,
        last,
        "the gradient of the loss",
        "The loss is finite but its derivative is not: " + cure.format("the loss"),
        0.85,
    )


def _in_optimizer(here: dict[Site, Broken]) -> Origin:
    sites = sorted(here)
    layers = {site.layer for site in sites}
    layer = layers.pop() if len(layers) == 1 else None
    cure = "The gradients are finite, the update is not: check the optimizer's epsilon (0 divides by zero) and learning rate."
    return Origin(sites[0], layer or None, "the optimizer's update", cure, 0.9)
