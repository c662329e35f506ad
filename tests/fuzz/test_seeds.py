"""A fixed set of drawn models on each backend, and the proof that the fuzzer sees what it looks for.

`make fuzz` draws many more. A seed that fails here: `make fuzz BACKEND=… N=1 SEED=…` shrinks it and prints the program.
"""

from __future__ import annotations

import sys
import threading
import warnings

import keras
import pytest

from fitscope.errors import FitscopeWarning
from fuzz import compare, workers
from fuzz.draw import draw
from fuzz.program import program
from fuzz.shrink import shrink
from fuzz.workers import Worker

BACKEND = keras.backend.backend()
#: Cheap to compile, and different: nested and shared layers, custom steps, several inputs and outputs, masks.
SEEDS = {"jax": (2, 6), "tensorflow": (5, 8), "torch": (2, 3, 5, 7, 12, 19, 20, 28)}[BACKEND]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_model_trains_identically_with_a_scope(seed):
    result = compare.judge(draw(seed, BACKEND))
    assert (result["outcome"], result.get("faults"), result.get("error")) == ("equal", [], None)


@pytest.fixture
def spec():
    """The smallest model there is."""
    dense = {"id": "n1", "layer": "Dense", "args": {"units": "2"}, "in": ["x0"], "name": "out0"}
    return {
        "seed": 0, "attempt": 0, "backend": BACKEND, "must": "Dense", "policy": "float32",
        "jit": None if BACKEND == "jax" else False, "eager": False,
        "distribution": None, "step": "", "callbacks": [],
        "graph": {"style": "functional", "inputs": [{"id": "x0", "shape": [3], "takes": "float"}], "nodes": [dense], "outputs": ["n1"]},
        "losses": [{"name": "MeanSquaredError", "args": {}, "targets": "real", "units": 2, "lead": [], "metrics": []}],
        "optimizer": {"name": "SGD", "args": {"learning_rate": "0.1"}, "scaled": False},
        "data": {"n": 8, "batch": 4, "form": "arrays", "epochs": 1},
        "scope": {"watch": ["fs.activations()", "fs.loss()"], "settings": {"every": "1"}},
    }  # fmt: skip


BREAKING = {
    "differs": "self.model.layers[-1].bias.assign_add([0.0, 1e-7])",
    "left": "vars(self.model.layers[-1])['call'] = lambda x: x",
    "raised": "raise RuntimeError('ours')",
    "warned": "warnings.warn('ours', FitscopeWarning)",
}


@pytest.mark.parametrize("kind", BREAKING)
def test_a_scope_that_changes_the_training_is_detected(kind, spec, monkeypatch):
    class Broken(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            exec(BREAKING[kind], {"self": self, "warnings": warnings, "FitscopeWarning": FitscopeWarning})

    # The scope itself stays as it is, so that there is a run.
    text = (
        program(spec).replace("return fs.Scope(", "return keras.callbacks.CallbackList([broken(), fs.Scope(")
        + "\n"
    )
    text = text.replace("callbacks=[*callbacks]", "callbacks=[c for one in callbacks for c in one.callbacks]")
    text = text.replace("every=1)", "every=1)])")
    monkeypatch.setattr(compare, "program", lambda spec: text.replace("broken()", "keras.broken()"))
    monkeypatch.setattr(keras, "broken", Broken, raising=False)
    result = compare.judge(spec)
    assert result["outcome"] == "failed"
    assert {fault for fault, _ in result["faults"]} == {kind}


def test_an_error_in_a_thread_is_detected(spec, monkeypatch):
    class Broken(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()

    text = program(spec).replace(
        "return histories",
        "return histories if not callbacks else (keras.broken().on_train_end(), histories)[1]",
    )
    monkeypatch.setattr(compare, "program", lambda spec: text)
    monkeypatch.setattr(keras, "broken", Broken, raising=False)
    assert compare.judge(spec)["faults"][0][0] == "raised"


def test_a_missing_watched_site_is_detected(spec, monkeypatch):
    from fitscope.pipeline.recorder import Recorder

    spec["scope"]["watch"] = ["fs.activations()", "fs.gradients()"]
    spec["graph"]["nodes"].insert(0, {"id": "n2", "op": "keras.ops.stop_gradient({0})", "in": ["n3"]})
    spec["graph"]["nodes"].insert(0, {"id": "n3", "layer": "Dense", "args": {"units": "3"}, "in": ["x0"]})
    spec["graph"]["nodes"][-1]["in"] = ["n2"]
    assert compare.judge(spec)["faults"] == []
    monkeypatch.setattr(Recorder, "unseen", lambda self, site, why: None)
    assert compare.judge(spec)["faults"] == [("unexplained", "gradients/n3")]


def test_a_nondeterministic_training_is_recognised(spec, monkeypatch):
    text = program(spec).replace("return histories", "return [{'time': [__import__('time').perf_counter()]}]")
    monkeypatch.setattr(compare, "program", lambda spec: text)
    assert compare.judge(spec)["outcome"] == "unrepeatable"


def test_a_training_that_fails_without_a_scope_is_not_a_failure(spec):
    spec["graph"]["nodes"][0]["args"]["units"] = "0"
    assert compare.judge(spec)["outcome"] == "invalid"


#: A worker that does as its models say.
ODD_WORKER = """
import json, sys, time
for line in sys.stdin:
    spec = json.loads(line)
    time.sleep(spec["must"] == "hang" and 1000)
    if spec["must"] == "die":
        sys.exit(3)
    print(json.dumps({"outcome": "equal"}), flush=True)
"""


@pytest.mark.once
def test_a_worker_that_dies_or_hangs_is_a_finding_and_the_next_model_gets_another(spec, monkeypatch):
    monkeypatch.setattr(workers, "PATIENCE", 1)
    worker = Worker(seconds=2, starting=60, command=(sys.executable, "-c", ODD_WORKER))
    for must, faults in (
        ("", None),
        ("hang", [["died", "no answer in 2 s"]]),
        ("", None),
        ("die", [["died", "the process died with 3"]]),
        ("", None),
    ):
        result = worker.ask({**spec, "must": must})
        assert result.get("faults") == faults
        assert faults is None or result["spec"]["must"] == must
    worker.close()


@pytest.mark.once
def test_shrinking_keeps_the_cause_of_the_failure():
    """Here a model fails if it has a LayerNormalization and a scope that watches gradients."""

    class Judge:
        def __init__(self, seconds):
            pass

        def ask(self, spec):
            text = program(spec)
            failed = "layers.LayerNormalization(" in text and "fs.gradients(" in text
            return {"outcome": "failed" if failed else "equal", "faults": [("differs", "")] if failed else []}

        def close(self):
            pass

    judge = Judge(0)
    drawn = [draw(seed, "jax") for seed in range(400)]
    chosen = [
        s for s in drawn if judge.ask(s)["faults"] and s["step"] != "two" and len(s["graph"]["nodes"]) >= 5
    ]
    for spec in chosen[:5]:
        text = shrink(spec, judge.ask(spec), Judge, most=1000)
        compile(text, "<shrunk>", "exec")
        assert text.count("layers.") <= 4, text  # an import, an input, the culprit, at most one more
        assert "fs.Scope(to, watch=[fs.gradients(" in text
    assert len(chosen) >= 5
