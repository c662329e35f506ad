"""Watches: what to record.

A watch is frozen data: a kind of site, a selection of layers, what to keep, and when. It knows nothing about the
model; `plan.resolve` applies it to one. Users create watches with the functions in this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

from fitscope.errors import WatchError, one_of
from fitscope.schedule import Every, Schedule, schedule
from fitscope.sites import OF_LAYERS, OF_WEIGHTS

#: Every kind of site that can be watched, with its meaning, in the order of the plan.
KINDS = {
    "activations": "the output of a layer",
    "gradients": "the gradient of the loss with respect to a layer's output",
    "weights": "a weight at the start of the step, before its update",
    "weight_gradients": "the gradient of the loss with respect to a weight, as passed to the optimizer",
    "updates": "a weight after the step minus the weight before it",
    "loss": "the loss of this batch alone",
    "sample_loss": "the loss of each sample of this batch",
    "metrics": "each metric of this batch alone",
    "inputs": "the inputs of the model",
    "targets": "the targets of the batch",
    "predictions": "the predictions of the model in this step",
    "activity": "the share of recent samples at which each unit of a layer was active",
    "data": "classes of targets and predictions, and features of inputs",
    "taps": "a value passed to `fs.tap` or through a Tap layer",
    "changes": "the change since the previous batch",
}
LAYER_KINDS = (*OF_LAYERS, *OF_WEIGHTS)


#: Which kinds of site each pass has. Training has all of them.
KINDS_IN = {
    "train": frozenset(KINDS),
    "validation": frozenset(KINDS) - {"gradients", "weights", "weight_gradients", "updates"},
    "predict": frozenset(("activations", "inputs", "predictions", "activity", "taps", "changes")),
}
KINDS_IN["evaluate"] = KINDS_IN["validation"]


class Layer(Protocol):
    """A Keras layer. A protocol, because importing Keras would import a framework."""

    name: str


Selector = str | type | Layer  #: a glob on a layer's name or path, a class of layers, or a layer
Layers = Selector | Iterable[Selector]
Keep = Literal["stats", "tensor", "both", "average"]  #: "average": per element, over all captured batches
Keeps = Keep | Iterable[Keep]
Part = Literal["train", "validation"]  #: a part of `fit`
On = Part | Iterable[Part]
Changing = Literal["activations", "gradients", "weights", "predictions"]  #: what `changes` compares
CHANGING: tuple[str, ...] = get_args(Changing)


@dataclass(frozen=True, slots=True, repr=False)
class Watch:
    """One request of the user."""

    kind: str
    layers: tuple[Selector, ...] = ()  #: empty: all
    stats: bool = True
    tensor: bool = False
    samples: int | None = None  #: keep the tensor of this many rows, the first of the batch; None: all rows
    every: Schedule | None = None  #: None: the schedule of the scope
    average: bool = False  #: keep the mean and std of each element over all captured batches
    on: tuple[str, ...] | None = None  #: parts of `fit`; None: those of the scope
    of: str = ""  #: what `changes` compares
    per_sample: bool = False  #: record the loss of each sample too
    ids: str | None = None  #: the model input that identifies a sample
    exact: bool = False  #: compute statistics from all elements, even in large tensors
    local: bool = False  #: record the gradient of each process or replica too, before they are reduced

    def __repr__(self) -> str:
        return f"<Watch: {self}>"

    def __str__(self) -> str:
        """In a few words: `activations of conv* (stats, tensor, every 5)`."""
        names = [
            each if isinstance(each, str) else each.__name__ if isinstance(each, type) else each.name
            for each in self.layers
        ]
        kept = [name for name in ("stats", "tensor", "average") if getattr(self, name)]
        about = [*(kept if kept != ["stats"] else ()), *([str(self.every)] if self.every else ())]
        return (
            self.kind
            + (f" of {' '.join(names)}" if names else "")
            + (f" ({', '.join(about)})" if about else "")
        )


def passes(on: On, kind: str | None = None) -> tuple[str, ...]:
    """Parses `on=`: the parts of `fit` to record."""
    named: tuple[str, ...] = (on,) if isinstance(on, str) else tuple(on)
    unknown = [name for name in named if name not in ("train", "validation")]
    if unknown or not named:
        raise WatchError(
            "`on` to be 'train', 'validation' or both",
            repr(on),
            "evaluate() and predict() need no `on`: pass them the scope as a callback",
        )
    if kind is not None and "validation" in named and kind not in KINDS_IN["validation"]:
        raise WatchError(
            f"`on` to be 'train' for {kind}",
            f"on={on!r}, but a validation has no backward pass and no update",
            "Write on='train', or leave it out",
        )
    return named


def _watch(
    kind: str,
    layers: tuple[Layers, ...],
    keep: Keeps | None,
    samples: int | None,
    every: Every | None,
    on: On | None = None,
    *,
    exact: bool = False,
    default: Keep = "stats",
) -> Watch:
    if keep is None:
        keep = "both" if samples is not None else default
    parts: tuple[str, ...]
    parts = ("stats", "tensor") if keep == "both" else (keep,) if isinstance(keep, str) else tuple(keep)
    known = ("stats", "tensor", "both", "average")
    if not parts or any(part not in ("stats", "tensor", "average") for part in parts):
        raise WatchError("one of the choices for `keep`", repr(keep), one_of(known, str(keep)))
    if samples is not None and not (isinstance(samples, int) and samples > 0):
        raise WatchError("`samples` to be a positive whole number", repr(samples), "Leave it out to keep all")
    if samples is not None and "tensor" not in parts:
        raise WatchError(
            "`samples` together with a kept tensor",
            f"keep={keep!r}, samples={samples}",
            "Write keep='tensor' or keep='both'",
        )
    flat: list[Selector] = []
    for item in layers:
        flat.extend(item if isinstance(item, list | tuple | set) else [item])  # type: ignore[list-item]
    return Watch(
        kind,
        tuple(flat),
        stats="stats" in parts,
        tensor="tensor" in parts,
        samples=samples,
        every=None if every is None else schedule(every),
        average="average" in parts,
        on=None if on is None else passes(on, kind),
        exact=exact,
    )


def activations(
    *layers: Layers,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The output of each selected layer, as the training step computed it.

    Args:
        layers: Globs on a layer's name or path (`"conv*"`, `"encoder/*"`), layer classes, or layers. All layers by default.
        keep: "stats", "tensor", "both" or "average" (mean and std of each element over all captured batches), or several of these.
        samples: Keep the tensor for this many samples only, the first of the batch.
        every: When to record: every n-th step, `fs.steps(...)`, `fs.epochs(...)` or a function `step -> bool`. The scope's by default.
        on: Which part of `fit` to record: "train", "validation" or both. The scope's by default.
        exact: Compute statistics from every value. By default fitscope reads only some rows of a large tensor.
    """
    return _watch("activations", layers, keep, samples, every, on, exact=exact)


def gradients(
    *layers: Layers,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The gradient of the loss with respect to the output of each selected layer."""
    return _watch("gradients", layers, keep, samples, every, on, exact=exact)


def weights(
    *layers: Layers,
    keep: Keeps | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The weights of each selected layer at the start of the step, before its update."""
    return _watch("weights", layers, keep, None, every, on, exact=exact)


def weight_gradients(
    *layers: Layers,
    keep: Keeps | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
    local: bool = False,
) -> Watch:
    """The gradient of the loss with respect to each weight, as passed to the optimizer.

    Args:
        layers: Which layers, as in `fs.activations`.
        keep: What to keep, as in `fs.activations`.
        every: When to record, as in `fs.activations`.
        on: Which part of `fit` to record, as in `fs.activations`.
        exact: Compute statistics from every value, as in `fs.activations`.
        local: In distributed training, also record the gradients of each process (torch) or replica (TensorFlow) before they are reduced,
            as `weight_gradients/dense/kernel/local`.
    """
    return replace(_watch("weight_gradients", layers, keep, None, every, on, exact=exact), local=local)


def updates(
    *layers: Layers,
    keep: Keeps | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The change of each weight in this step: new minus old."""
    return _watch("updates", layers, keep, None, every, on, exact=exact)


def loss(
    *,
    per_sample: bool = False,
    ids: str | None = None,
    every: Every | None = None,
    on: On | None = None,
) -> Watch:
    """The loss of this batch alone, not the running mean that Keras passes to callbacks as `logs["loss"]`.

    Args:
        per_sample: Also record the loss, weight, target and prediction of each sample, in `run.samples`.
        ids: The name of the model input that identifies a sample. By default fitscope uses a hash of the sample's inputs.
        every: When to record, as in `fs.activations`.
        on: Which part of `fit` to record, as in `fs.activations`.
    """
    if ids is not None and not per_sample:
        raise WatchError(
            "`ids` together with `per_sample`", f"ids={ids!r}", "Write fs.loss(per_sample=True, ids=…)"
        )
    return replace(_watch("loss", (), "stats", None, every, on), per_sample=per_sample, ids=ids)


def metrics(*, every: Every | None = None, on: On | None = None) -> Watch:
    """Each metric of this batch alone. The state of the model's own metrics does not change."""
    return _watch("metrics", (), "stats", None, every, on)


def inputs(
    *,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The inputs of the model."""
    return _watch("inputs", (), keep, samples, every, on, exact=exact)


def targets(
    *,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The targets of the batch. Keeps statistics and values by default."""
    return _watch("targets", (), keep, samples, every, on, exact=exact, default="both")


def predictions(
    *,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The predictions of the model in this step. Keeps statistics and values by default."""
    return _watch("predictions", (), keep, samples, every, on, exact=exact, default="both")


def activity(*layers: Layers, every: Every | None = None, on: On | None = None, exact: bool = False) -> Watch:
    """The share of recent samples at which each unit of a layer was active. A unit at 0 is dead or saturated.

    It exists for layers with a ReLU, sigmoid, tanh, softmax or similar activation. Units of other layers cannot be stuck.
    """
    return _watch("activity", layers, "stats", None, every, on, exact=exact)


def data(*, every: Every | None = None, on: On | None = None, exact: bool = False) -> Watch:
    """The share of each class among targets and predictions, and the variation of each input feature."""
    return _watch("data", (), "stats", None, every, on, exact=exact)


def taps(
    *names: str,
    keep: Keeps | None = None,
    samples: int | None = None,
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """Values passed to `fs.tap(name, x)` or through an `fs.layers.Tap`. `names` are globs; all taps by default."""
    for name in names:
        if not isinstance(name, str):
            raise WatchError("taps to be chosen by name", repr(name), 'Write fs.taps("attention*")')
    return _watch("taps", names, keep, samples, every, on, exact=exact)


def changes(
    *layers: Layers,
    of: Changing = "activations",
    every: Every | None = None,
    on: On | None = None,
    exact: bool = False,
) -> Watch:
    """The change since the previous batch: statistics of the absolute difference, and the cosine similarity.

    fitscope always compares with the batch right before. If `every` skips that batch, fitscope captures it for the comparison. If two
    batches differ in size, only the rows both have are compared.

    Args:
        layers: Which layers, as in `fs.activations`.
        of: What to compare: "activations", "gradients", "weights" or "predictions".
        every: When to record, as in `fs.activations`.
        on: Which part of `fit` to record, as in `fs.activations`.
        exact: Compute statistics from every value, as in `fs.activations`.
    """
    if of not in CHANGING:
        raise WatchError("one of the choices for `of`", repr(of), one_of(CHANGING, str(of)))
    if layers and of == "predictions":
        raise WatchError(
            "no layers with of='predictions'", f"{layers!r}", "Write fs.changes(of='predictions')"
        )
    if on is not None:
        passes(on, of)
    return replace(_watch("changes", layers, "stats", None, every, on, exact=exact), of=of)


def several(watch: Iterable[Watch] | Watch | None) -> tuple[Watch, ...]:
    """Parses `watch=`: one watch, several, or None for the defaults."""
    if watch is None:
        return defaults()
    if isinstance(watch, Watch | str) or not isinstance(watch, Iterable):
        watch = (watch,)
    found = tuple(watch)
    for each in found:
        if not isinstance(each, Watch):
            raise _not_a_watch(each)
    return found


def _not_a_watch(each: object) -> WatchError:
    """The error for an object in `watch=`: often the name of a kind, or the function that makes its watch."""
    made = "Make them with fs.activations(...), fs.gradients(...), fs.loss() and so on"
    name = getattr(each, "__name__", None)
    if name in KINDS and getattr(each, "__module__", None) == __name__:
        return WatchError("`watch` to hold watches", f"fs.{name}", f"Write fs.{name}()")
    return WatchError("`watch` to hold watches", repr(each), f"Write fs.{each}()" if each in KINDS else made)


def defaults() -> tuple[Watch, ...]:
    """The default watches of a scope: statistics of everything in every layer."""
    return (
        activations(), gradients(), weights(), weight_gradients(), updates(), loss(), metrics(),
        inputs(), targets(keep="stats"), predictions(keep="stats"), activity(), data(), taps(),
    )  # fmt: skip
