"""The harness itself: it finds one bit that differs, what is left on a model, and outlives a crash."""

from __future__ import annotations

import keras
import numpy as np

import fitscope as fs
from programs import checks
from programs.__main__ import process
from programs.catalog import PROGRAMS, Program
from programs.program import Trained, Unwatched


def trained(history=None) -> Trained:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="only")])
    model.compile("sgd", "mse", metrics=["mae"])
    return Trained(model, history or {"loss": [1.0, float("nan")]})


def test_equal_trainings_do_not_differ():
    assert checks.differences(trained(), trained()) == []


def test_one_bit_of_a_weight_is_a_difference():
    other = trained()
    kernel = keras.ops.convert_to_numpy(other.model.layers[0].kernel).copy()
    kernel[0, 0] = np.nextafter(kernel[0, 0], np.float32(9))
    other.model.layers[0].kernel.assign(kernel)
    (found,) = checks.differences(trained(), other)
    assert "only/kernel" in found


def test_a_history_that_differs_is_named():
    (found,) = checks.differences(trained({"loss": [1.0]}), trained({"loss": [2.0]}))
    assert found == "history.loss[0] by 1"


def test_leftovers_on_a_layer_are_named():
    other = trained()
    assert checks.left_over(trained(), other) == []
    other.model.layers[0].call = fs.Scope.attach
    assert checks.left_over(trained(), other) == ["Dense only: call", "Dense only: call"]


def test_a_worker_that_dies_costs_one_row(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(
        "import json, os, signal, sys\n"
        "from programs.worker import MARK\n"
        "print(MARK + json.dumps({'program': sys.argv[1], 'backend': 'jax', 'identical': True}), flush=True)\n"
        "print(MARK + json.dumps({'begins': sys.argv[2]}), flush=True)\n"
        "sys.stderr.write('the end\\n')\n"
        "sys.stderr.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rows = list(process("jax", [Program("one", ""), Program("two", ""), Program("three", "")], "dying"))
    assert [(row.program, row.verdict) for row in rows] == [("one", "ok"), ("two", "FAILS")]
    assert "the process ended with -9" in rows[1].problems[0]
    assert "the end" in rows[1].problems[0]


def test_the_placeholder_scope_records_nothing():
    scope, function = Unwatched(), object()
    with scope.attach(None):
        assert scope.step(function) is function
        scope.epoch_end()


def test_the_catalog_lists_each_module_once():
    modules = [
        ".".join(path.relative_to(checks.FOLDER).with_suffix("").parts)
        for path in checks.FOLDER.glob("*/*.py")
        if path.stem != "world"  # what programs of one folder share
    ]
    assert sorted(modules) == sorted(program.name for program in PROGRAMS)
    assert all(program.after.startswith(("guides/", "examples/")) for program in PROGRAMS)
