"""Trains the model of a spec with and without a scope, and says what is wrong with the pair.

A *fault* is a kind and a detail. The kinds: `differs` (weights, state of the optimizers, metrics, history or random state are not the same
to the last bit), `raised` (only the training with the scope raised), `warned`, `unexplained` (a watched site is neither recorded nor named
in `run.unseen`), `left` (something is still patched), `status`. A program that does not repeat itself without a scope is `unrepeatable`,
which is no fault; one that raises without a scope is `invalid`.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
import traceback
import warnings
from types import CodeType, ModuleType
from typing import Any

import keras
import numpy as np

import fitscope as fs
from complete import unexplained
from fitscope.errors import FitscopeWarning
from fuzz.program import names, program

Fault = tuple[str, str]
State = dict[str, Any]

#: Warnings that say something true of the training, by a part of their text.
ALLOWED = (
    "cannot keep its budget",
    "sample_loss: the loss",  # is one number for the whole batch, such as Dice
    "sample_loss: the step does not use a loss given to compile()",
    "this name is used more than once in a step",  # a tap in a layer that the step calls twice: nothing is missing
)


def judge(spec: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one spec, as plain data."""
    text = program(spec)
    result: dict[str, Any] = {
        "seed": spec["seed"],
        "attempt": spec["attempt"],
        "must": spec["must"],
        "layers": sorted(names(text)),
    }
    code = compile(text, f"<seed {spec['seed']}>", "exec")
    began, cpu = time.perf_counter(), time.process_time()
    try:
        plain = _train(code)
    except Exception as error:
        return {
            **result,
            "outcome": "invalid",
            "error": _short(error),
            "trace": traceback.format_exc()[-1500:],
            "seconds": [time.perf_counter() - began],
        }
    plain_done = time.perf_counter()
    # A training that raised may still be written while its directory goes.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as to:
        faults, facts = _watched(code, plain, to, spec)
    seconds = [plain_done - began, time.perf_counter() - plain_done]
    outcome = "failed" if faults else "equal"
    if any(kind == "differs" for kind, _ in faults) and _differences(plain, _train(code)):
        outcome, faults = "unrepeatable", [fault for fault in faults if fault[0] != "differs"]
        outcome = "failed" if faults else outcome
    if faults:
        result["spec"] = spec  # the same also when draws have changed since
    return {
        **result,
        "outcome": outcome,
        "faults": faults,
        "seconds": seconds,
        "cpu": time.process_time() - cpu,
        **facts,
    }


def _watched(
    code: CodeType, plain: State, to: str, spec: dict[str, Any]
) -> tuple[list[Fault], dict[str, Any]]:
    faults: list[Fault] = []
    hook, threading.excepthook = (
        threading.excepthook,
        lambda args: faults.append(("raised", f"in a thread: {_short(args.exc_value)}")),
    )
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", FitscopeWarning)
            watched = _train(code, to)
    except Exception as error:
        return [("raised", _short(error))], {"trace": traceback.format_exc()[-3000:]}
    finally:
        threading.excepthook = hook
    faults += [("differs", text) for text in _differences(plain, watched)[:3]]
    faults += [("left", text) for text in left_over(plain["model"], watched["model"])]
    texts = dict.fromkeys(
        str(warning.message) for warning in told if issubclass(warning.category, FitscopeWarning)
    )
    faults += [("warned", text) for text in texts if not any(known in text for known in ALLOWED)]
    runs = [fs.open(to, brief.id) for brief in fs.runs(to)]
    if not runs and not texts:
        faults.append(("status", "no run was made"))
    facts: dict[str, Any] = {"nan": watched["nan"]}
    passes = ("train", "validation") if spec["data"].get("validation") else ("train",)
    for run in runs:
        if run.status != "complete":
            faults.append(("status", run.status))
        faults += [("unexplained", site) for site in unexplained(run, passes)]
        facts |= {"identity": str(run.identity), "why": run.identity.why}
        facts["unseen"] = dict(list(run.unseen.items())[:40])
    return faults, facts


def _train(code: CodeType, to: str | None = None) -> State:
    """One training from the same beginning, watched if there is a place to record to, and all that it leaves behind."""
    keras.backend.clear_session(free_memory=False)
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(None)
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    try:
        drawn = ModuleType("drawn")  # anew: making a functional model changes its class
        exec(code, vars(drawn))
        model = drawn.make()
        histories = drawn.fit(model, [drawn.scope(to)] if to is not None else [])
    finally:
        keras.config.set_dtype_policy(policy)
    arrays = {
        f"history {i} {name}": np.asarray(values, "float64")
        for i, h in enumerate(histories)
        for name, values in h.items()
    }
    owners = {
        "model": model,
        "metrics": None,
        **{f"optimizer {i}": o for i, o in enumerate(optimizers(model))},
    }
    for owner, part in owners.items():
        variables = [v for m in model.metrics for v in m.variables] if owner == "metrics" else part.variables
        arrays |= {
            f"{owner} {i} {v.path}": np.asarray(keras.ops.convert_to_numpy(v))
            for i, v in enumerate(variables)
        }
    nan = any(a.dtype.kind == "f" and np.isnan(a).any() for a in arrays.values())
    return {"arrays": arrays, "random": _random_state(), "model": model, "nan": nan}


def optimizers(model: Any) -> list[Any]:
    """Every optimizer that a model holds."""
    found = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    return list({id(o): o for o in found}.values())


def _random_state() -> list[Any]:
    from keras.src.random.seed_generator import global_seed_generator

    found: list[Any] = [random.getstate(), *np.random.get_state()]
    found.append(np.asarray(keras.ops.convert_to_numpy(global_seed_generator().state)))
    if keras.backend.backend() == "torch":
        import torch

        found.append(torch.get_rng_state().numpy())
    return found


def _differences(a: State, b: State) -> list[str]:
    """What is not the same to the last bit; a NaN is like any other."""
    mine, theirs = a["arrays"], b["arrays"]
    if mine.keys() != theirs.keys():
        return [f"one has {sorted(mine.keys() ^ theirs.keys())[:3]}, the other not"]
    found = [
        f"{name}: {_apart(mine[name], theirs[name])}" for name in mine if not _same(mine[name], theirs[name])
    ]
    if not all(
        np.array_equal(np.asarray(x), np.asarray(y))
        for x, y in zip(_flat(a["random"]), _flat(b["random"]), strict=True)
    ):
        found.append("random state")
    return found


def _flat(state: list[Any]) -> list[Any]:
    return [
        item for part in state for item in (part if isinstance(part, tuple) else [part]) if item is not None
    ]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.tobytes() == b.tobytes():
        return True
    numbers = a.dtype.kind not in "biuSUO"
    return (
        numbers and _same(np.nan_to_num(a), np.nan_to_num(b))
        if numbers and np.isnan(a).any() and np.array_equal(np.isnan(a), np.isnan(b))
        else False
    )


def _apart(a: np.ndarray, b: np.ndarray) -> str:
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{a.shape} and {b.dtype}{b.shape}"
    return f"{np.nanmax(np.abs(a.astype('float64') - b.astype('float64'))):.1e}"


def _short(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error)[:400]}"


# ---- what is left on the model --------------------------------------------------------------------------------------

#: Attributes that Keras itself sets on its way, whether or not a step of ours was there.
KERAS_OWN = {"_losses", "_loss_ids", "history", "_saved_model_inputs_spec"}


def left_over(plain: Any, watched: Any) -> list[str]:
    """Where a model that was watched is not made like one that was not."""
    found = []
    for a, b in zip(_parts(plain), _parts(watched), strict=True):
        mine, theirs = _make(a), _make(b)
        changed = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        found += [
            f"{type(b).__name__} {getattr(b, 'name', '')}.{key}: {mine.get(key)} became {theirs.get(key)}"
            for key in changed
        ]
    return found


def _parts(model: Any) -> list[Any]:
    inner = [getattr(o, "inner_optimizer", None) for o in optimizers(model)]
    return [*model._flatten_layers(), *model.metrics, *optimizers(model), *filter(None, inner)]


def _make(part: Any) -> dict[str, str]:
    """What each attribute is: its type, and the name of a function."""
    return {
        name: f"{type(value).__module__}.{type(value).__qualname__} {getattr(value, '__qualname__', '')}"
        for name, value in vars(part).items()
        if name not in KERAS_OWN
    }
