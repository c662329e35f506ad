"""Does an object store slow a training down, and what does an outage of a minute do to it?

    python bench/remote.py [--rounds 12] [--outage 60] [--quick]

The store is moto, an S3 server, in a process of its own on 127.0.0.1. The first part trains the same small CNN under the same scope on
a local directory and on s3://, in turns, in one process, and compares wall time and CPU time of that process, from `fit` to the last
byte written. The server has one core to itself and the training the others, because a store is not on the machine that trains. The
second part lets the store go away in the middle of a training for a minute, by a proxy that refuses every request, and reports how
long the training waited and what was lost.

Prints the two tables of docs/scale.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "store"))
os.environ.setdefault("KERAS_BACKEND", "jax")

#: The last one is the server's.
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
SERVER = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


def server(port: int) -> subprocess.Popen[bytes]:
    """moto in a process of its own."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=quiet, stderr=quiet)
    if CORES[1:]:
        os.sched_setaffinity(child.pid, CORES[-1:])
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
            return child
        except OSError:
            time.sleep(0.1)
    child.kill()
    raise TimeoutError("moto does not answer")


def model() -> tuple[Any, Any, Any]:
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(512, "relu", name=f"d{n}") for n in range(4)]
    net = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(8)])
    net.compile("adam", "mse")
    rng = np.random.default_rng(0)
    return net, rng.random((16_384, 256), np.float32), rng.random((16_384, 8), np.float32)


def cnn(images: int) -> tuple[Any, Any, Any]:
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv_1"),
            layers.MaxPooling2D(name="pool_1"),
            layers.Conv2D(64, 3, padding="same", activation="relu", name="conv_2"),
            layers.MaxPooling2D(name="pool_2"),
            layers.Flatten(name="flat"),
            layers.Dense(128, activation="relu", name="dense"),
            layers.Dense(10, name="out"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile("adam", loss)
    rng = np.random.default_rng(0)
    return net, rng.random((images, 32, 32, 3), np.float32), rng.integers(0, 10, images)


def timed(net: Any, x: Any, y: Any, to: str) -> tuple[float, float]:
    """Wall and CPU seconds of a training, every tenth step captured, with one whole tensor: the end is waited for."""
    import fitscope as fs

    watch = [
        fs.activations(),
        fs.activations("dense", keep="tensor"),
        fs.gradients(),
        fs.weights(),
        fs.updates(),
        fs.loss(),
    ]
    scope = fs.Scope(to, watch, every=10)
    net.fit(x[:640], y[:640], batch_size=64, verbose=0, callbacks=[scope])  # compiles, proves, begins the run
    began = time.perf_counter(), time.process_time()
    net.fit(x, y, batch_size=64, verbose=0, shuffle=False, callbacks=[scope])
    return time.perf_counter() - began[0], time.process_time() - began[1]


def compare(remote: str, rounds: int, steps: int) -> None:
    net, x, y = cnn(64 * steps)
    seconds: list[float] = []
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as local:
        for number in range(rounds + 1):
            places = [f"{local}/{number}", f"{remote}/{uuid.uuid4().hex}"]
            order = places if number % 2 else places[::-1]
            found = {place: timed(net, x, y, place) for place in order}
            if number:  # the first imports and compiles
                (wall, cpu), (wall_there, cpu_there) = (found[place] for place in places)
                seconds.append(wall)
                ratios.append((wall_there / wall, cpu_there / cpu))
    print(
        f"{steps:,} steps of {1000 * statistics.median(seconds) / steps:.0f} ms, load {os.getloadavg()[0]:.0f}.\n"
    )
    print("| s3:// by local directory | wall | CPU |\n|---|---|---|")
    for name, pick in (("median", statistics.median), ("lowest", min), ("highest", max)):
        print(f"| {name} of {rounds} | {pick(w for w, _ in ratios):.3f} | {pick(c for _, c in ratios):.3f} |")


def outage(remote: str, proxy: Any, seconds: float) -> None:
    import warnings

    import keras
    from faulty import always

    import fitscope as fs

    net, x, y = model()
    net_end = time.monotonic() + 3 * seconds
    place = f"{remote}/{uuid.uuid4().hex}"

    class Enough(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = time.monotonic() > net_end
            time.sleep(0.02)

    def go_away() -> None:
        proxy.fault = always(503)
        threading.Timer(seconds, come_back).start()

    def come_back() -> None:
        proxy.fault = always(None)

    threading.Timer(seconds, go_away).start()
    watch = [fs.activations(), fs.activations(keep="tensor"), fs.weights(), fs.loss()]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scope = fs.Scope(place, watch, every=10)
        net.fit(x, y, batch_size=128, epochs=10**6, verbose=0, callbacks=[scope, Enough()])
    run = fs.open(place)
    kept = run.tensor("activations/d0")
    print(f"| an outage of {seconds:g} s in a training of {3 * seconds:g} s | |\n|---|---|")
    print(f"| captured steps, kept tensors of each layer | {run.overhead['captured']:,}, {len(kept):,} |")
    print(f"| records lost, dropped | {sum(run.lost.values())}, {sum(run.dropped.values())} |")
    print(f"| seconds that the training waited | {run.overhead['waited_seconds']:.1f} |")
    print(f"| largest queue | {run.overhead['queue_peak_bytes'] / 1e6:.0f} MB |")
    ours = {str(w.message)[:120] for w in said if w.category is fs.FitscopeWarning}
    print(f"| warnings | {len(ours)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--outage", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("compare", "outage"))
    given = parser.parse_args()
    logging.getLogger("fitscope").setLevel(logging.ERROR)  # random numbers have findings
    from faulty import Faulty

    port = 20_000 + os.getpid() % 20_000
    child = server(port)
    if CORES[1:]:
        os.sched_setaffinity(0, CORES[:-1])  # of all threads to come
    proxy = Faulty("127.0.0.1", port)
    try:
        os.environ.update(
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_REGION="us-east-1",
            AWS_ALLOW_HTTP="true", NO_PROXY="127.0.0.1",
        )  # fmt: skip
        bucket = urllib.request.Request(f"http://127.0.0.1:{port}/runs", method="PUT")
        urllib.request.urlopen(bucket, timeout=30).close()
        if given.only != "outage":
            compare("s3://runs", *((2, 20) if given.quick else (given.rounds, 400)))
        if given.only != "compare":
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            outage("s3://runs", proxy, 5.0 if given.quick else given.outage)
    finally:
        proxy.close()
        child.kill()
        child.wait(30)


if __name__ == "__main__":
    main()
