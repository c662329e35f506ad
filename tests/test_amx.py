"""The tests choose a setting under which TensorFlow survives bfloat16, and ask only where it may be needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import amx

ILLEGAL = -signal.SIGILL
pytestmark = pytest.mark.once


class Machine:
    """Stands in for the process that computes in bfloat16."""

    def __init__(self, plain, limited=0):
        self.plain, self.limited, self.asked = plain, limited, []

    def __call__(self, more):
        self.asked.append(dict(more))
        return self.limited if more else self.plain


def on(backend="tensorflow", **more):
    return {"KERAS_BACKEND": backend, **more}


def test_a_machine_where_bfloat16_works_is_left_alone():
    machine, environment = Machine(0), on()
    assert amx.settle(environment, "flags: avx512f amx_bf16 amx_tile", machine) == amx.FINE
    assert machine.asked == [{}]
    assert "ONEDNN_MAX_CPU_ISA" not in environment


def test_a_crash_in_bfloat16_applies_the_setting():
    machine, environment = Machine(ILLEGAL), on()
    assert amx.settle(environment, "flags: amx_tile", machine) == amx.FINE
    assert machine.asked == [{}, amx.SETTING]
    assert environment["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


def test_a_crash_despite_the_setting_gives_the_reason():
    environment = on()
    why = amx.settle(environment, "flags: amx_tile", Machine(ILLEGAL, ILLEGAL))
    assert f"signal {signal.SIGILL}" in why
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in why
    assert "ONEDNN_MAX_CPU_ISA" not in environment


def test_a_setting_that_does_not_help_is_replaced():
    environment = on(ONEDNN_MAX_CPU_ISA="DEFAULT")
    assert amx.settle(environment, None, Machine(ILLEGAL)) == amx.FINE
    assert environment["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


@pytest.mark.parametrize(
    ("backend", "features"),
    [("jax", "amx_tile"), ("torch", "amx_tile"), ("tensorflow", "flags: avx512f avx512_bf16")],
)
def test_no_process_is_started_without_amx(backend, features):
    machine = Machine(ILLEGAL)
    assert amx.settle(on(backend), features, machine) == amx.FINE
    assert machine.asked == []


def test_a_system_that_does_not_name_its_features_is_asked():
    machine = Machine(0)
    amx.settle(on(), None, machine)
    assert machine.asked == [{}]


def test_a_probe_that_fails_without_a_signal_changes_no_setting():
    machine = Machine(1)  # say, TensorFlow is not installed
    assert amx.settle(on(), "amx_tile", machine) == amx.FINE
    assert machine.asked == [{}]


@pytest.mark.parametrize("limited", [0, ILLEGAL])
def test_workers_do_not_probe_again(limited):
    machine, environment = Machine(ILLEGAL, limited), on()
    first = amx.settle(environment, "amx_tile", machine)
    assert amx.settle(dict(environment), "amx_tile", machine) == first
    assert len(machine.asked) == 2


def test_the_probe_distinguishes_a_signal_from_an_exit(monkeypatch):
    monkeypatch.setattr(amx, "PROGRAM", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert amx.probe({}) == ILLEGAL
    monkeypatch.setattr(amx, "PROGRAM", "import os; os._exit(int(os.environ['CODE']))")
    assert amx.probe({"CODE": "0"}) == 0
    assert amx.probe({"CODE": "3"}) == 3


@pytest.mark.parametrize("dies", [False, True])
def test_tests_of_bfloat16_are_skipped_after_a_crash(tmp_path, dies):
    """With the plug-in that all tests have, in a process that is told the answer."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('policy', ['mixed_bfloat16', 'mixed_float16'])\n"
        "def test_policy(policy): pass\n"
        "@pytest.mark.parametrize('types', [('bfloat16', 1), ('float16', 1)])\n"
        "def test_types(types): pass\n"
        "@pytest.mark.bfloat16\n"
        "def test_marked(): pass\n"
    )
    answer = "it dies here" if dies else amx.FINE
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "conftest", "-rs", str(tmp_path)],
        env={**os.environ, amx.ANSWER: answer, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("2 passed, 3 skipped" if dies else "5 passed") in done.stdout, done.stdout + done.stderr
    assert ("it dies here" in done.stdout) == dies
