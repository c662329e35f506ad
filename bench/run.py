"""Runs the benchmarks, one process per backend, and writes `bench/results.md`.

python bench/run.py                      all backends, both models
python bench/run.py --backend jax        one of them
python bench/run.py --rounds 3           quicker, noisier
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
#: backend → how Keras compiles in each table
TABLES = {"jax": ["auto"], "tensorflow": ["auto", "yes", "session"], "torch": ["auto"]}
MODES = {
    ("jax", "auto"): "jax.jit",
    ("tensorflow", "auto"): "tf.function",
    ("tensorflow", "yes"): "tf.function, XLA",
    ("tensorflow", "session"): "TF1 session",
    ("torch", "auto"): "eager",
}


def measure(backend: str, model: str, jit: str, rounds: int, steps: int) -> dict:
    script = ["sessions.py"] if jit == "session" else ["train.py", "--model", model, "--jit", jit]
    command = [sys.executable, str(HERE / script[0]), *script[1:]]
    command += ["--rounds", str(rounds), "--steps", str(steps)]
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def table(result: dict) -> str:
    mode = MODES[result["backend"], result["jit"]]
    lines = [f"### {result['backend']} ({mode}), {result['model']}", ""]
    lines += ["| | CPU time | wall time | CPU per step |", "|---|---|---|---|"]
    for name, row in result["rows"].items():
        cpu, wall = (
            f"{row[k]:.2f} ({row[k + '_spread'][0]:.2f}–{row[k + '_spread'][1]:.2f})" for k in ("cpu", "wall")
        )
        lines.append(f"| {name} | {cpu} | {wall} | {row['ms_cpu']:.1f} ms |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=list(TABLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "results.md")
    options = parser.parse_args()
    text = [
        "# What capture costs",
        "",
        (
            "Made by `make bench`. Time of `fit` relative to plain `fit`: the median of the ratios of neighbouring trainings "
            f"in {options.rounds} rounds (lowest–highest), interleaved in one process. CPU time is that of the whole process, "
            'writer thread included. "Default watches" are the statistics of all activations, gradients, weights, weight '
            'gradients and updates, the loss and the metrics. "plain again" shows the noise.'
        ),
        "",
        f"{os.cpu_count()} cores, Python {platform.python_version()}.",
        "",
    ]
    for backend in [options.backend] if options.backend else list(TABLES):
        for jit in TABLES[backend]:
            for model, steps in (("cnn", 6), ("mlp", 60)) if jit != "session" else (("cnn", 8),):
                result = measure(backend, model, jit, options.rounds, steps)
                text.append(table(result))
                print(text[-1], flush=True)
                options.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
