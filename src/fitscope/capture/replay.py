"""Runs a step again that a black box kept: from its state, on its batch, with its random numbers.

The state at the start of the step's lap is put into the model, and the model's own compiled function runs the steps up to the wanted
one. Each returns the logs that it returned in the training, or the replay reports the first that did not. The wanted step then runs
like a captured one (`identity`): the user's own program takes it, and a program with taps, compared with it bit for bit, shows its
activations and gradients. Afterwards the model has the state before the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from fitscope import watch
from fitscope.capture.backends import Adapter, Ask, adapter
from fitscope.capture.backends._black_box import Array, Keeper
from fitscope.capture.identity import Checked
from fitscope.capture.optimizer_taps import optimizers
from fitscope.capture.stored_model import model_from
from fitscope.errors import FitscopeWarning, RunError, one_of
from fitscope.pipeline.by_site import BySite
from fitscope.pipeline.handover import Finish
from fitscope.pipeline.identity import Standing
from fitscope.plan.anatomy import Anatomy
from fitscope.plan.plan import resolve
from fitscope.schedule import schedule
from fitscope.store.black_box import KeptCall
from fitscope.store.software import software
from fitscope.store.structure import put_together

if TYPE_CHECKING:
    from fitscope.read.black_box import KeptStep

#: Software whose version may change the last bit of a result, besides the backend.
MATTERS = ("keras", "numpy", "platform")
#: The watches of the replayed step.
WATCHES = (
    watch.activations(keep="tensor"), watch.gradients(keep="tensor"), watch.weight_gradients(keep="tensor"), watch.loss(),
    watch.predictions(keep="tensor"),
)  # fmt: skip


class Replay(BySite):
    """A step of a training, run again: `replay["weight_gradients/dense/kernel"]` is a NumPy array.

    `.model` has the state before the step, so you can call it on `.x`. `.before` and `.after` are its weights before and after the
    step.
    """

    def __init__(self, step: int, model: Any, batch: Any) -> None:
        super().__init__({})
        self.step = step
        self.model = model  #: the model, with the weights before the step
        self.batch = batch  #: the batch, as the step got it
        self.x, self.y, self.sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        self.logs: dict[str, Array] = {}  #: the logs of the replayed step
        self.recorded: dict[str, Array] | None = (
            None  #: the logs in the training; None if the step never ended
        )
        self.before: dict[str, Array] = {}  #: the weights: `before["dense/kernel"]`
        self.after: dict[str, Array] = {}
        self.agrees: bool | None = None  #: whether every step returned the bits of the training
        self.notes: list[str] = []  #: possible reasons for a difference
        self.identity = Standing(
            "not provable", ""
        )  #: whether activations and gradients are those of the step itself
        self._to_numpy: Any = np.asarray

    @property
    def loss(self) -> float:
        """The loss of the batch; NaN if fitscope finds none in the step."""
        value = self.get("loss")
        return float("nan") if value is None else float(np.mean(value, dtype=np.float64))

    def __getitem__(self, site: str) -> Array:
        if site not in self._values:
            raise RunError("a site of the replayed step", repr(site), one_of(self._values, site))
        return np.asarray(self._to_numpy(self._values[site]))

    def get(self, site: str, default: Any = None) -> Any:
        return self[site] if site in self._values else default

    def __repr__(self) -> str:
        same = {
            True: "as in the training, bit for bit",
            False: "NOT as in the training",
            None: "not comparable",
        }
        return f"<Replay of step {self.step}: loss {self.loss:.6g}, {same[self.agrees]}, {len(self)} sites>"


def replay(kept: KeptStep, model: Any = None) -> Replay:
    """Runs a kept step again, in this model or in the stored one."""
    backend = keras.backend.backend()
    if backend != kept.box.backend:
        raise RunError(
            f"the backend of the training, {kept.box.backend!r}",
            f"{backend!r}",
            f"Set KERAS_BACKEND={kept.box.backend} before Keras is imported; `fitscope replay` does so",
        )
    notes = _other_software(kept.box.software, backend)
    given = model is not None
    model = model if given else model_from(kept.box.model(), kept.box.model_why)
    notes += _compiled(model, kept.box.compiled, given=given)
    border = adapter(backend)
    anatomy = Anatomy.of(model)
    keeper = border.keeper(model, list(optimizers(anatomy).values()))
    calls = list(kept.calls())
    keeper.build(_batches(keeper, calls[0])[0], calls[0].facts)
    places = _places(keeper, kept.variables)
    keeper.put(dict(zip(places, kept.state(), strict=True)))
    for note in notes:
        warnings.warn(note, FitscopeWarning, stacklevel=3)
    return _run(keeper, border, kept.step, calls, places, notes)


def _run(
    keeper: Keeper, border: Adapter, step: int, calls: list[KeptCall], places: list[int], notes: list[str]
) -> Replay:
    """Runs the steps of a lap, the last one with taps."""
    agreeing: list[bool] = []

    def compare(call: KeptCall, logs: Any) -> None:
        if call.logs is not None:
            same = _same(call.logs, _arrays(border, logs))
            if not same and all(agreeing):
                notes.append(f"step {call.step} returned other logs than in the training")
            agreeing.append(same)

    def begin(call: KeptCall) -> list[Any]:
        keeper.put({places[n]: value for n, value in call.changed.items()})
        keeper.set_random(call.random)
        return _batches(keeper, call)

    for call in calls[:-1]:
        compare(call, keeper.adopt(keeper.call(begin(call), call.facts).of(keeper.model.train_function)))
    last = calls[-1]
    batches = begin(last)
    found = Replay(step, keeper.model, batches[step - last.step])
    before = keeper.values()
    found._values, logs, found.identity = _shown(keeper, border, last, batches, step)
    found._to_numpy = border.to_numpy
    compare(last, logs)
    found.logs, found.recorded = _arrays(border, logs), None if last.logs is None else dict(last.logs)
    found.before, found.after = _named(keeper, before), _named(keeper, keeper.values())
    keeper.put(dict(enumerate(before)))
    keeper.set_random(last.random)
    found.agrees = all(agreeing) if agreeing else None
    found.notes = notes
    return found


def _shown(
    keeper: Keeper, border: Adapter, call: KeptCall, batches: list[Any], step: int
) -> tuple[dict[str, Any], Any, Standing]:
    """Takes a step with taps: the tapped values, the logs, and whether the program with taps is the user's own."""
    anatomy = Anatomy.of(keeper.model)
    plan = resolve(WATCHES, anatomy, schedule(1))
    ask = Ask(anatomy, plan.wants(frozenset(range(len(WATCHES)))), "train", Finish())
    own = keeper.model.train_function
    checked = Checked(border.tapped(ask), own, "proven")
    ran = checked(keeper.call(batches, call.facts), step)
    standing = checked.standing
    if ran.failure is not None:
        standing = Standing("not provable", f"the step could not run with taps: {ran.failure}")
    shown = ran.harvests[step - call.step].tensors if step - call.step < len(ran.harvests) else {}
    return dict(shown), keeper.adopt(ran.result), standing


def _batches(keeper: Keeper, call: KeptCall) -> list[Any]:
    given = call.facts["given"]
    if len(given) != len(call.arrays):
        raise RunError(
            "a description of every array of the batch",
            f"{len(given)} for {len(call.arrays)} arrays",
            "This step is damaged: replay another one of run.black_box",
        )
    leaves = [keeper.tensor(array, given=how) for array, how in zip(call.arrays, given, strict=True)]
    try:
        return [put_together(form, leaves, keeper.missing) for form in call.forms]
    except ValueError as problem:
        raise RunError(
            "batches of a known form",
            str(problem),
            "This step is damaged: replay another one of run.black_box",
        ) from problem


def _places(keeper: Keeper, recorded: list[dict[str, Any]]) -> list[int]:
    """The number of each recorded variable among those of the model. The first step may add to an optimizer and to metrics."""
    here: dict[str, list[tuple[int, Any]]] = {}
    for number, (group, variable) in enumerate(keeper.variables()):
        here.setdefault(group, []).append((number, variable))
    there: dict[str, list[dict[str, Any]]] = {}
    for one in recorded:
        there.setdefault(one["group"], []).append(one)
    found = []
    for group in dict.fromkeys([*there, *here]):
        mine, theirs = here.get(group, []), there.get(group, [])
        shapes = [tuple(variable.shape) for _, variable in mine], [tuple(one["shape"]) for one in theirs]
        grows = group in ("optimizer", "optimizers", "metrics")
        if shapes[0][: len(theirs)] != shapes[1] or (not grows and len(mine) != len(theirs)):
            raise RunError(
                f"a model whose {group} variables are those of the training: {_listed(theirs)}",
                _listed([{"path": v.path, "shape": list(v.shape)} for _, v in mine]),
                "Build and compile the model as in the training, and pass it: run.replay(step, model=model)",
            )
        if group.startswith("optimizer") and len(mine) > len(theirs) and _trained(keeper):
            raise RunError(
                "a model that was never trained, because the step is the first of its training",
                "one whose optimizer has run",
                "Build and compile it again before you pass it",
            )
        found += [number for number, _ in mine[: len(theirs)]]
    keeper.model.reset_metrics()
    return found


def _trained(keeper: Keeper) -> bool:
    optimizer = keeper.model.optimizer
    return optimizer is not None and int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0


def _listed(variables: list[dict[str, Any]]) -> str:
    shown = [f"{one['path']} {one['shape']}" for one in variables]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "") or "none"


def _named(keeper: Keeper, values: list[Array]) -> dict[str, Array]:
    """The weights of the model by their paths, as in the names of sites."""
    known = {id(variable): value for (_, variable), value in zip(keeper.variables(), values, strict=True)}
    return {
        weight.path: known[id(weight.variable)]
        for weight in Anatomy.of(keeper.model).weights
        if id(weight.variable) in known
    }


def _other_software(recorded: Mapping[str, str], backend: str) -> list[str]:
    here = software()
    differs = [
        f"{name} {recorded[name]}, here {here.get(name, 'none')}"
        for name in (*MATTERS, backend)
        if name in recorded and recorded[name] != here.get(name)
    ]
    if not differs:
        return []
    return [f"The step was recorded with {'; '.join(differs)}: its results may differ in the last bits"]


def _compiled(model: Any, recorded: Mapping[str, Any], *, given: bool) -> list[str]:
    """Compiles the stored model as in the training. For a given model it only reports the differences."""
    notes = []
    for name, value in recorded.items():
        if name not in ("run_eagerly", "jit_compile", "steps_per_execution") or getattr(model, name) == value:
            continue
        if given:
            notes.append(f"The model has {name}={getattr(model, name)!r}, and had {value!r} in the training")
        else:
            setattr(model, name, value)
    return notes


def _arrays(border: Adapter, logs: Any) -> dict[str, Array]:
    return {
        name: np.asarray(border.to_numpy(v) if hasattr(v, "shape") else v) for name, v in (logs or {}).items()
    }


def _same(recorded: Mapping[str, Array], now: Mapping[str, Array]) -> bool:
    return set(recorded) == set(now) and all(
        value.dtype == now[name].dtype and value.tobytes() == now[name].tobytes()
        for name, value in recorded.items()
    )
