"""Whether TensorFlow survives bfloat16 on this machine, and with which setting.

Some machines name AMX among the CPU's features and do not let programs use it. TensorFlow's oneDNN then dies of an
illegal instruction at the first bfloat16 product, with or without fitscope. `settle` tries that in a process of its own and
leaves the environment such that TensorFlow, imported later, survives. The answer stands in the environment too, so that
the workers of pytest-xdist and the processes that tests start neither ask again nor die.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

SETTING = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}  #: oneDNN uses no AMX
ANSWER = "FITSCOPE_TESTS_BFLOAT16"  #: in the environment: "fine", or why bfloat16 cannot be tested
FINE = "fine"

#: Returns the exit code of a process that computes in bfloat16, with these variables added to its environment.
Probe = Callable[[Mapping[str, str]], int]

#: What the tests do: Keras's compiled step, its eager step, and products large enough for oneDNN's blocked kernels.
PROGRAM = """
import keras, numpy as np, tensorflow as tf
x, y = np.ones((22, 5), "float32"), np.ones((22, 2), "float32")
for mode in {}, {"jit_compile": False}, {"run_eagerly": True}:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, dtype="mixed_bfloat16"), keras.layers.Dense(2)])
    model.compile("sgd", "mse", **mode)
    model.fit(x, y, batch_size=8, verbose=0)
for n in (1, 64, 512):
    a = tf.ones((n, 512), tf.bfloat16)
    tf.matmul(a, a, transpose_b=True).numpy()
"""


def settle(environment: MutableMapping[str, str], features: str | None, probe: Probe) -> str:
    """Leaves the environment as TensorFlow needs it. Returns FINE, or why bfloat16 cannot be tested.

    `features` is what the system says about its CPU; None if it says nothing.
    """
    if ANSWER not in environment:
        environment[ANSWER] = _answer(environment, features, probe)
    return environment[ANSWER]


def _answer(environment: MutableMapping[str, str], features: str | None, probe: Probe) -> str:
    on_tensorflow = environment.get("KERAS_BACKEND") == "tensorflow"
    named = features is None or "amx" in features
    if not on_tensorflow or not named or not _died(probe({})):
        return FINE
    died = probe(SETTING)
    if not _died(died):
        environment.update(SETTING)
        return FINE
    setting = " ".join(f"{name}={value}" for name, value in SETTING.items())
    return f"TensorFlow dies of signal {-died} on bfloat16 on this machine, also with {setting}"


def _died(code: int) -> bool:
    """A signal ended it. Any other failure, such as TensorFlow not being installed, is for the tests to report."""
    return code < 0


def features() -> str | None:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return None


def probe(more: Mapping[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **more},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode
