"""`input_not_normalised`: inputs far from the scale that layers are made for.

Looks at the rms of the inputs, whether all of them are close to zero, and of single features their range against the others and their
mean against their spread. The usual batch must have such a range: a single odd one does not count. Integers that go into an embedding
are left alone, and so are inputs whose first layer normalises them: the output of that layer must not be as large.

False alarms: sparse inputs with a few large numbers; one-hot columns next to a scaled one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace

from fitscope.diagnose.curves import course, highest, lowest, median
from fitscope.diagnose.evidence import Evidence
from fitscope.diagnose.finding import Finding, NotJudged, Series
from fitscope.diagnose.history import History
from fitscope.diagnose.rule import rule

_NORMALISING = (
    "Normalization",
    "Rescaling",
    "BatchNormalization",
    "LayerNormalization",
    "GroupNormalization",
    "RMSNormalization",
)
_LOOKS_UP = (
    "Embedding",
    "StringLookup",
    "IntegerLookup",
    "Hashing",
    "CategoryEncoding",
    "TextVectorization",
    "TokenAndPositionEmbedding",
)

_PASSING = (
    "InputLayer", "Flatten", "Reshape", "Permute", "ZeroPadding2D", "Dropout", "GaussianNoise", "Tap", "Masking",
)  # fmt: skip


@rule(
    "input_not_normalised",
    sees="inputs far from zero mean and unit size, or features of very different scale",
)
def input_not_normalised(evidence: Evidence, limit: SimpleNamespace) -> Iterator[Finding | NotJudged]:
    inputs = [h for h in evidence.of("inputs") if h.dtype.startswith(("float", "bfloat"))]
    if not inputs:
        yield NotJudged("no inputs of floating point were recorded")
        return
    first = first_layers(evidence)
    if first and all(
        _kind(evidence, layer) in _LOOKS_UP or _normalises(evidence, layer, limit.size) for layer in first
    ):
        return
    if any(_kind(evidence, layer) in _LOOKS_UP for layer in first):
        yield NotJudged("some inputs go into a look-up")
        return
    layer = first[0] if first else None
    for history in inputs:
        size = median(history.rms)
        if size >= limit.size:
            yield _found(
                history,
                layer,
                f"The inputs have an rms of {size:.4g} (mean {median(history.mean):.4g}, up to {highest(history.max):.4g})",
                "warning",
                rms=size,
            )
            return
        largest = max(abs(highest(history.max)), abs(lowest(history.min)))
        if 0 < largest <= limit.tiny:
            yield _found(
                history,
                layer,
                f"No number of the inputs is larger than {largest:.2g} (rms {size:.2g})",
                "warning" if _stands(evidence) else "note",
                rms=size,
            )
            return
    yield from _by_feature(evidence, layer, limit)


def _normalises(evidence: Evidence, layer: str, size: float) -> bool:
    """Whether the layer normalises: a frozen or unadapted normalisation layer passes its input on."""
    out = evidence.history(f"activations/{layer}")
    return _kind(evidence, layer) in _NORMALISING and (out is None or not median(out.rms) >= size)


def _stands(evidence: Evidence) -> bool:
    """Whether the loss has not fallen by a fifth."""
    went = course(evidence.loss)
    return went is not None and went.end > went.start - 0.2 * abs(went.start)


def _by_feature(evidence: Evidence, layer: str | None, limit: SimpleNamespace) -> Iterator[Finding]:
    """Judges single features if the inputs as a whole look fine."""
    ranges, means, stds = (evidence.history(f"features/{name}") for name in ("range", "mean", "inputs"))
    if ranges is not None and len(ranges) and ranges.shape and ranges.shape[-1] > 1:
        # compare the largest range with the mean of the others, to find a feature a thousand times as wide
        count = float(ranges.count[-1])
        largest = float(ranges.max[-1])
        usual = [median(h.max.astype("float64") - h.min) for h in evidence.of("inputs")]
        rest = max((float(ranges.mean[-1]) * count - largest) / max(count - 1, 1), 1e-12)
        # The ranges cover all samples so far: a single odd batch, which odd_batch reports, must not count.
        largest = min(largest, max(usual)) if usual else largest
        if largest >= limit.ranges * rest and largest > limit.size:
            yield _found(
                ranges,
                layer,
                f"One feature spans {largest:.4g} while the others span {rest:.4g} on average",
                "warning",
                largest=largest,
                others=rest,
            )
            return
    if (
        means is not None
        and stds is not None
        and len(means)
        and float(means.mean[-1]) >= limit.offset * max(float(stds.mean[-1]), 1e-12)
    ):
        offset = float(means.mean[-1]) / max(float(stds.mean[-1]), 1e-12)
        if float(means.mean[-1]) > 2:
            yield _found(
                means,
                layer,
                f"The features lie {offset:.3g} standard deviations away from zero",
                "warning",
                offset=offset,
            )


def first_layers(evidence: Evidence) -> list[str]:
    """The layers that take the inputs."""
    network = evidence.network
    real = [
        n for n in network.order if network.kind(n) != "InputLayer" and not network.get(n, "container", False)
    ]
    if not network.graph:
        return real[:1]
    among, seen = frozenset(real), dict[str, bool]()  # by layer: whether the inputs pass through it
    todo = deque(n for n in network.order if network.kind(n) == "InputLayer")
    while todo:
        name = todo.popleft()
        if name not in seen:  # a layer that is called twice may feed itself
            seen[name] = network.kind(name) in _PASSING
            if seen[name]:
                todo.extendleft(reversed(network.consumers(name, among)))
    return [name for name, passing in seen.items() if not passing] or real[:1]


def _kind(evidence: Evidence, layer: str) -> str:
    return evidence.network.kind(layer)


def _found(history: History, layer: str | None, text: str, severity: str, **numbers: float) -> Finding:
    return Finding(
        "input_not_normalised",
        severity,  # type: ignore[arg-type]
        site=str(history.site),
        layer=layer,
        first_step=int(history.steps[0]),
        last_step=int(history.steps[-1]),
        message=f"{text}: initializers and learning rates are made for inputs of about mean 0 and std 1.",
        evidence=numbers,
        cure=(
            "Add a keras.layers.Normalization (adapted to the training data) or Rescaling(1/255) as the first layer, "
            "or scale the data before."
        ),
        confidence=0.8,
        series=Series.from_history(history, "rms"),
    )
