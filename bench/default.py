"""What a plain `fs.Scope("runs")` records of four small networks, and what that costs in seconds.

    KERAS_BACKEND=jax python bench/default.py        one backend; the others keep their rows
    python bench/default.py --quick                  only see that it runs

Each network is trained in a process of its own, plain and watched in turn. Seconds added are those of the whole `fit`, compiling
included; compile time has its own column. Writes `bench/default.json` and `bench/default.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BACKENDS = ("tensorflow", "jax", "torch")
STEPS, BATCH = 3_125, 32
ROUNDS = 3

NETWORKS = {
    "tutorial": "the tutorial's MLP, 784-128-64-10",
    "cnn": "a CNN on 28×28 pictures",
    "transformer": "a text transformer of one block",
    "lstm": "an LSTM of 32 units on 40 words",
}


def network(name: str) -> tuple[Any, Any]:
    """A model, and what makes samples for it."""
    import keras
    import numpy as np
    from keras import layers

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)

    def words(n: int) -> Any:
        return rng.integers(0, 1_000, (n, 40)).astype("int32")

    if name == "tutorial":
        stack = [
            layers.Input((784,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
        ]
        return keras.Sequential([*stack, _answer()]), lambda n: rng.standard_normal((n, 784), np.float32)
    if name == "cnn":
        stack = [layers.Input((28, 28, 1))]
        for width in (16, 32):
            stack += [layers.Conv2D(width, 3, activation="relu"), layers.MaxPooling2D()]
        model = keras.Sequential([*stack, layers.Flatten(), layers.Dropout(0.5), _answer()])
        return model, lambda n: rng.standard_normal((n, 28, 28, 1), np.float32)
    text = layers.Input((40,), dtype="int32")
    h = layers.Embedding(1_000, 32)(text)
    if name == "lstm":
        return keras.Model(text, _answer()(layers.LSTM(32)(h))), words
    h = layers.LayerNormalization()(layers.Add()([h, layers.MultiHeadAttention(2, 16)(h, h)]))
    inner = layers.Dense(32)(layers.Dense(64, activation="relu")(h))
    h = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(layers.Add()([h, inner])))
    return keras.Model(text, _answer()(h)), words


def _answer() -> Any:
    from keras import layers

    return layers.Dense(10, activation="softmax")


def measured(name: str, steps: int, rounds: int) -> dict[str, Any]:
    """One network, plain and watched in turn."""
    import numpy as np

    import fitscope as fs

    rng = np.random.default_rng(1)
    plain: list[tuple[float, float]] = []  # seconds of wall time and of CPU time
    watched: list[tuple[float, float]] = []
    told: list[dict[str, Any]] = []
    for turn in range(rounds + 1):  # the first plain training warms the machine up
        for scope in (None, fs.Scope(tempfile.mkdtemp())):
            model, samples = network(name)
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
            x, y = samples(steps * BATCH), rng.integers(0, 10, steps * BATCH)
            began = time.perf_counter(), time.process_time()
            model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[scope] if scope else [])
            took = time.perf_counter() - began[0], time.process_time() - began[1]
            (watched if scope else plain).append(took)
            if scope is not None:
                run = fs.open(scope.path)
                losses = {"losses": len(run.series("loss")), "identity": str(run.identity)}
                told.append({**run.overhead, **losses})
        if not turn and rounds > 1:
            plain.clear()
            watched.clear()
            told.clear()
    found = {
        f"{what}{kind}": statistics.median(values)
        for k, kind in enumerate(("", "_cpu"))
        for what, values in {
            "plain": [one[k] for one in plain],
            "added": [w[k] - p[k] for w, p in zip(watched, plain, strict=True)],
        }.items()
    }
    names = {"compile": "compile_seconds", "proofs": "proof_seconds", "recorded": "captured"}
    for name, key in names.items():
        found[name] = statistics.median(one[key] for one in told)
    found["load"] = os.getloadavg()[0] / (os.cpu_count() or 1)
    return {**found, **{name: told[-1][name] for name in ("steps", "losses", "identity")}}


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The results in Markdown."""
    lines = [
        "# The default, on small networks",
        "",
        f'Written by `bench/default.py`. Each network is trained for {STEPS:,} steps of {BATCH} samples with `fs.Scope("runs")` and',
        "nothing else said. *Added* are the seconds by which `fit` took longer than a plain one, compiling included; *compiling* is the",
        "part of it that fitscope reports as `compile_seconds`. CPU time counts all threads, so it includes what the writer thread does",
        "while the training goes on. The loss is known at every step, recorded or not. *Load* is how many programs wanted each core;",
        "above 1, seconds are mostly those of other programs, and CPU time is the better figure.",
        "",
        "| network | backend | recorded steps | losses | plain `fit` (CPU) | added (CPU) | compiling | proofs | identity | load |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name, about in NETWORKS.items():
        for backend in BACKENDS:
            one = found.get(name, {}).get(backend)
            if one is not None:
                lines.append(
                    f"| {about} | {backend} | {one['recorded']:,.0f} of {one['steps']:,} | {one['losses']:,} "
                    f"| {one['plain']:.1f} s ({one['plain_cpu']:.1f} s) | {one['added']:+.1f} s ({one['added_cpu']:+.1f} s) "
                    f"| {one['compile']:.1f} s | {one['proofs']:.1f} s | {one['identity']} | {one['load']:.1f} |"
                )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is written")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    steps, rounds = (200, 1) if args.quick else (STEPS, args.rounds)
    if args.one:
        print("result:" + json.dumps(measured(args.one, steps, rounds)))
        return
    path = HERE / "default.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in args.networks:
        for backend in (args.backend,) if args.backend else BACKENDS:
            command = [
                sys.executable,
                __file__,
                "--one",
                name,
                "--rounds",
                str(rounds),
                *(["--quick"] if args.quick else []),
            ]
            env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
            result = next(line for line in said.splitlines() if line.startswith("result:"))
            found.setdefault(name, {})[backend] = json.loads(result.removeprefix("result:"))
            print(name, backend, found[name][backend], flush=True)
            if not args.quick:
                path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
                (HERE / "default.md").write_text(table(found))


if __name__ == "__main__":
    main()
