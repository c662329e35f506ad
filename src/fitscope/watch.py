"""What the user asks for: watches, and the steps at which they are due.

A watch is plain frozen data: a kind of site, a choice of layers, what to keep, and when. It knows nothing of any
model; `plan.resolve` reads it against one. The functions here are the public way to make them.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from fitscope.errors import WatchError, one_of
from fitscope.sites import OF_LAYERS, OF_WEIGHTS

#: What may be watched, in the order in which the plan lists it, with one line of meaning each.
KINDS = {
    "activations": "the output of a layer",
    "gradients": "the gradient of the loss with respect to a layer's output",
    "weights": "a weight as the step found it, before the update",
    "weight_gradients": "the gradient of the loss with respect to a weight, as the optimizer got it",
    "updates": "a weight after the step minus before it",
    "loss": "the loss of this batch alone",
    "sample_loss": "the loss of each sample of this batch",
    "metrics": "each metric of this batch alone",
    "inputs": "what went into the model",
    "targets": "what it should have predicted",
    "predictions": "what it did predict",
    "taps": "what `fs.tap` or a Tap layer showed",
    "changes": "how far something moved since the batch before",
}
LAYER_KINDS = (*OF_LAYERS, *OF_WEIGHTS)


#: Where a kind of site exists. All exist in training; the rest of `fit` and the other walks over data show less.
PHASES = {
    "train": frozenset(KINDS),
    "validation": frozenset(
        (
            "activations",
            "loss",
            "sample_loss",
            "metrics",
            "inputs",
            "targets",
            "predictions",
            "taps",
            "changes",
        )
    ),
    "predict": frozenset(("activations", "inputs", "predictions", "taps", "changes")),
}
PHASES["evaluate"] = PHASES["validation"]
CHANGING = ("activations", "gradients", "weights", "predictions")  #: what `changes` can compare

Selector = Any  #: a glob on a layer's name or path, a layer class, or a layer
Keep = Literal["stats", "tensor", "both", "mean"]


@dataclass(frozen=True, slots=True)
class Turn:
    """The step about to run, as a schedule sees it."""

    step: int
    epoch: int
    batch: int
    batches: int | None  #: in this epoch or pass, where that is known
    phase: str = "train"

    def following(self) -> Turn | None:
        """The next turn as far as can be told; None after the last of a pass."""
        if self.batches is None or self.batch + 1 < self.batches:
            return replace(self, step=self.step + (self.phase == "train"), batch=self.batch + 1)
        return (
            replace(self, step=self.step + 1, epoch=self.epoch + 1, batch=0)
            if self.phase == "train"
            else None
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Says at which steps something is due.

    `due` answers yes, no, or "last": this step counts only if it turns out to be the last of its epoch (a
    generator does not tell how long it is).
    """

    due: Callable[[Turn], bool | Literal["last"]]
    text: str  #: how it reads in the plan
    #: Of a step of the training: for how many steps after it nothing is due, at least. They need not be asked about.
    rest: Callable[[int], int] = lambda step: 0  # noqa: ARG005

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Watch:
    """One thing the user asked for."""

    kind: str
    layers: tuple[Selector, ...] = ()  #: empty: all
    stats: bool = True
    tensor: bool = False
    samples: int | None = None  #: of the tensor, the first so many rows of the batch; None: all
    every: Schedule | None = None  #: None: as the scope says
    mean: bool = False  #: keep the mean over everything captured, per element
    on: tuple[str, ...] | None = None  #: parts of fit; None: as the scope says
    of: str = ""  #: what `changes` compares
    per_sample: bool = False  #: the loss of each sample too,
    ids: str | None = None  #: which this input names
    exact: bool = False  #: statistics of all elements, also of large tensors


def schedule(every: Any) -> Schedule:
    """Reads `every=`: a number, `steps(...)`, `epochs(...)` or a callable `step -> bool`."""
    if isinstance(every, Schedule):
        return every
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        # The batches of a validation all come at one step.
        return Schedule(
            lambda turn: (turn.step if turn.phase == "train" else turn.batch) % every == 0,
            f"every {every}" if every > 1 else "every step",
            lambda step: every - 1 - step % every,
        )
    if callable(every):
        return Schedule(lambda turn: bool(every(turn.step)), getattr(every, "__name__", repr(every)))
    raise WatchError(
        "`every` to be a positive whole number, fs.steps(...), fs.epochs(...) or a function step -> bool",
        repr(every),
        "Use every=1 to capture each step",
    )


def steps(*at: int | Iterable[int]) -> Schedule:
    """Due at just these steps: `steps(0, 100, 200)` or `steps(range(0, 1000, 50))`."""
    wanted = frozenset(int(s) for item in at for s in ([item] if isinstance(item, int) else item))
    if not wanted or min(wanted) < 0:
        raise WatchError("steps to name one or more steps from 0 up", repr(at), "Write fs.steps(0, 100, 200)")
    ordered = sorted(wanted)
    shown = ", ".join(str(s) for s in ordered[:6]) + (", …" if len(ordered) > 6 else "")

    def rest(step: int) -> int:
        after = bisect.bisect_right(ordered, step)
        return ordered[after] - step - 1 if after < len(ordered) else sys.maxsize

    return Schedule(lambda turn: turn.step in wanted, f"steps {shown}", rest)


def epochs(*at: int | Iterable[int], batch: int | Literal["first", "last", "all"] = "last") -> Schedule:
    """Due in these epochs (none named: in every epoch), at the last, the first, all or the n-th of its batches."""
    wanted = frozenset(int(e) for item in at for e in ([item] if isinstance(item, int) else item))
    if batch not in ("first", "last", "all") and not (isinstance(batch, int) and batch >= 0):
        raise WatchError("batch to be 'first', 'last', 'all' or an index", repr(batch), "Write batch='last'")
    index = 0 if batch == "first" else batch

    def due(turn: Turn) -> bool | Literal["last"]:
        if wanted and turn.epoch not in wanted:
            return False
        if batch == "all":
            return True
        if batch == "last":
            return "last" if turn.batches is None else turn.batch == turn.batches - 1
        return turn.batch == index

    shown = "epochs " + ", ".join(map(str, sorted(wanted))) if wanted else "every epoch"
    return Schedule(due, f"{shown}, batch {batch}")


def phases(on: Any, kind: str | None = None) -> tuple[str, ...]:
    """Reads `on=`: the parts of `fit` that are watched."""
    named = (on,) if isinstance(on, str) else tuple(on)
    unknown = [name for name in named if name not in ("train", "validation")]
    if unknown or not named:
        raise WatchError(
            "`on` to be 'train', 'validation' or both",
            repr(on),
            "evaluate() and predict() need no `on`: they are recorded when they are given the scope",
        )
    if kind is not None and "validation" in named and kind not in PHASES["validation"]:
        raise WatchError(
            f"{kind} to be watched where there are some",
            f"fs.{kind}(on={on!r}), and a validation has none",
            "Watch them in training: on='train'",
        )
    return named


def _watch(
    kind: str,
    layers: tuple[Any, ...],
    keep: Any,
    samples: int | None,
    every: Any,
    on: Any = None,
    *,
    exact: bool = False,
    default: Keep = "stats",
) -> Watch:
    if keep is None:
        keep = "both" if samples is not None else default
    parts = ("stats", "tensor") if keep == "both" else (keep,) if isinstance(keep, str) else tuple(keep)
    known = ("stats", "tensor", "both", "mean")
    if not parts or any(part not in ("stats", "tensor", "mean") for part in parts):
        raise WatchError(
            "`keep` to be 'stats', 'tensor', 'both' or 'mean'", repr(keep), one_of(known, str(keep))
        )
    if samples is not None and not (isinstance(samples, int) and samples > 0):
        raise WatchError("`samples` to be a positive whole number", repr(samples), "Leave it out to keep all")
    if samples is not None and "tensor" not in parts:
        raise WatchError(
            "`samples` together with a kept tensor",
            f"keep={keep!r}, samples={samples}",
            "Write keep='tensor' or keep='both'",
        )
    flat: list[Any] = []
    for item in layers:
        flat.extend(item if isinstance(item, list | tuple | set) else [item])
    return Watch(
        kind,
        tuple(flat),
        stats="stats" in parts,
        tensor="tensor" in parts,
        samples=samples,
        every=None if every is None else schedule(every),
        mean="mean" in parts,
        on=None if on is None else phases(on, kind),
        exact=exact,
    )


def activations(
    *layers: Any,
    keep: Any = None,
    samples: int | None = None,
    every: Any = None,
    on: Any = None,
    exact: bool = False,
) -> Watch:
    """The output of each matching layer, as this step computed it.

    Layers are chosen by glob on name or path (`"conv*"`, `"encoder/*"`), by class, or by the layer itself; none means all. `keep` is
    "stats", "tensor", "both" or "mean" (over all captured batches, per element); `samples=n` keeps the tensor of the first n
    samples only. `on` says in which part of `fit`: "train", "validation" or both. The statistics of a large tensor are those of
    some of its rows, the same at every layer; `exact=True` has all of it read.
    """
    return _watch("activations", layers, keep, samples, every, on, exact=exact)


def gradients(
    *layers: Any, keep: Any = None, samples: int | None = None, every: Any = None, exact: bool = False
) -> Watch:
    """The gradient of the loss with respect to the output of each matching layer."""
    return _watch("gradients", layers, keep, samples, every, exact=exact)


def weights(*layers: Any, keep: Any = None, every: Any = None, exact: bool = False) -> Watch:
    """The weights of each matching layer as the step found them, before its update."""
    return _watch("weights", layers, keep, None, every, exact=exact)


def weight_gradients(*layers: Any, keep: Any = None, every: Any = None, exact: bool = False) -> Watch:
    """The gradient of the loss with respect to each weight, as the optimizer was given it."""
    return _watch("weight_gradients", layers, keep, None, every, exact=exact)


def updates(*layers: Any, keep: Any = None, every: Any = None, exact: bool = False) -> Watch:
    """How far this step moved each weight: new minus old."""
    return _watch("updates", layers, keep, None, every, exact=exact)


def loss(*, per_sample: bool = False, ids: str | None = None, every: Any = None, on: Any = None) -> Watch:
    """The loss of this batch alone: not the running mean that callbacks get as `logs["loss"]`.

    With `per_sample`, the loss of each sample too, with its weight, target and prediction: `run.samples`. A sample is known again by
    the input named `ids`, or by a hash of what went into the model.
    """
    if ids is not None and not per_sample:
        raise WatchError(
            "`ids` together with `per_sample`", f"ids={ids!r}", "Write fs.loss(per_sample=True, ids=…)"
        )
    return replace(_watch("loss", (), "stats", None, every, on), per_sample=per_sample, ids=ids)


def metrics(*, every: Any = None, on: Any = None) -> Watch:
    """Each metric on this batch alone; the model's own metric state is left untouched."""
    return _watch("metrics", (), "stats", None, every, on)


def inputs(
    *, keep: Any = None, samples: int | None = None, every: Any = None, on: Any = None, exact: bool = False
) -> Watch:
    """What went into the model."""
    return _watch("inputs", (), keep, samples, every, on, exact=exact)


def targets(*, keep: Any = None, samples: int | None = None, every: Any = None, on: Any = None) -> Watch:
    """What the model should have predicted. The values themselves are kept unless `keep` says otherwise."""
    return _watch("targets", (), keep, samples, every, on, default="both")


def predictions(*, keep: Any = None, samples: int | None = None, every: Any = None, on: Any = None) -> Watch:
    """What the model did predict in this step. The values themselves are kept unless `keep` says otherwise."""
    return _watch("predictions", (), keep, samples, every, on, default="both")


def taps(
    *names: str,
    keep: Any = None,
    samples: int | None = None,
    every: Any = None,
    on: Any = None,
    exact: bool = False,
) -> Watch:
    """What `fs.tap(name, x)` and `fs.layers.Tap` show in the step: those whose name matches a glob; none means all."""
    for name in names:
        if not isinstance(name, str):
            raise WatchError("taps to be chosen by name", repr(name), 'Write fs.taps("attention*")')
    return _watch("taps", names, keep, samples, every, on, exact=exact)


def changes(*layers: Any, of: str = "activations", every: Any = None, on: Any = None) -> Watch:
    """How far something moved since the batch before: stats of the absolute change, and the cosine similarity of the two.

    `of` is "activations", "gradients", "weights" or "predictions". The batch before is always the one just before: where `every`
    leaves it out, it is captured for this alone. Of two batches of different size the samples that both have are compared.
    """
    if of not in CHANGING:
        raise WatchError(f"`of` to be one of {CHANGING}", repr(of), one_of(CHANGING, str(of)))
    if layers and of == "predictions":
        raise WatchError(
            "predictions of the model", f"layers {layers!r} too", "Write fs.changes(of='predictions')"
        )
    if on is not None:
        phases(on, of)
    return replace(_watch("changes", layers, "stats", None, every, on), of=of)


def several(watch: Iterable[Watch] | Watch | None) -> tuple[Watch, ...]:
    """Reads `watch=`: one, several, or none, which means the default ones."""
    if watch is None:
        return defaults()
    found = (watch,) if isinstance(watch, Watch) else tuple(watch)
    for each in found:
        if not isinstance(each, Watch):
            raise WatchError(
                "`watch` to hold watches",
                repr(each),
                "Make them with fs.activations(...), fs.gradients(...), fs.loss() and so on",
            )
    return found


def defaults() -> tuple[Watch, ...]:
    """What a scope watches when it is not told: statistics of everything, in every layer."""
    return (
        activations(), gradients(), weights(), weight_gradients(), updates(), loss(), metrics(), taps(),
    )  # fmt: skip
