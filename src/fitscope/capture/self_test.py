"""Tests the adapter with the installed versions: `python -m fitscope.capture.self_test` prints what is wrong, or nothing.

Trains two layers for one step and compares everything that a scope recorded with the same step written out in NumPy, and the weights with
those of a training without a scope. `failure` runs it where a framework is newer than all that were tested. It runs in a separate
process, because it would otherwise draw from the user's random state and use up names that Keras counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PATIENCE = 180  #: seconds
SWITCH = "FITSCOPE_SELF_TEST"  #: set to 0 in the environment: no self-test
#: Variables by which a launcher tells a process that it is one of many.
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")
RATE = 0.1
NAMES = ("first", "second")


def failure(backend: str) -> str | None:
    """Why the adapter of a backend does not work here; None if it does, or if that cannot be found out."""
    if os.environ.get(SWITCH) == "0":
        return None
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    # It runs on the CPU, because the training uses the devices.
    environment |= {"KERAS_BACKEND": backend, SWITCH: "0", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fitscope.capture.self_test"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return None
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return said[-1] if said else f"it ended with code {done.returncode}"


def by_hand(x: Array, y: Array, weights: list[Array]) -> dict[str, Array]:
    """One step of gradient descent on the mean squared error of two layers, in float64."""
    x, y = x.astype("float64"), y.astype("float64")
    kernel1, bias1, kernel2, bias2 = [weight.astype("float64") for weight in weights]
    hidden = np.tanh(x @ kernel1 + bias1)
    out = hidden @ kernel2 + bias2
    at_out = 2 * (out - y) / y.size
    at_hidden = at_out @ kernel2.T
    before = at_hidden * (1 - hidden**2)
    gradients = (x.T @ before, before.sum(0), hidden.T @ at_out, at_out.sum(0))
    places = [f"{layer}/{weight}" for layer in NAMES for weight in ("kernel", "bias")]
    return {
        "loss": ((out - y) ** 2).mean(),
        "activations/first": hidden,
        "activations/second": out,
        "gradients/first": at_hidden,
        "gradients/second": at_out,
        **{f"weights/{place}": weight for place, weight in zip(places, weights, strict=True)},
        **{f"weight_gradients/{place}": gradient for place, gradient in zip(places, gradients, strict=True)},
        **{f"updates/{place}": -RATE * gradient for place, gradient in zip(places, gradients, strict=True)},
    }


def compare(seen: Mapping[str, Any], expected: Mapping[str, Array]) -> str | None:
    """The missing or wrong values of a recorded step, in words."""
    missing = [site for site in expected if site not in seen]
    if missing:
        return f"a two-layer model showed no {', '.join(missing)}"
    wrong = [
        site
        for site, value in expected.items()
        if np.shape(seen[site]) != np.shape(value) or not np.allclose(seen[site], value, rtol=1e-3, atol=1e-5)
    ]
    return f"a two-layer model showed wrong values of {', '.join(wrong)}" if wrong else None


def main() -> str | None:
    """The errors of the adapter of this process's backend, in words."""
    import keras

    import fitscope as fs

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    keras.utils.set_random_seed(0)
    given = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, "tanh", name="first"),
            keras.layers.Dense(1, name="second"),
        ]
    )
    start = given.get_weights()

    def trained(callbacks: list[Any]) -> list[Array]:
        model = keras.models.clone_model(given)
        model.compile(keras.optimizers.SGD(RATE), "mse")
        model.set_weights(start)
        model.fit(x, y, batch_size=8, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)
        return list(model.get_weights())

    with tempfile.TemporaryDirectory() as to:
        scope = fs.Scope(to, every=1, exact=True)
        watched = trained([scope])
        seen = {str(site): np.asarray(value) for site, value in scope.batch.items()}
    if any(one.tobytes() != other.tobytes() for one, other in zip(trained([]), watched, strict=True)):
        return "a two-layer model was trained to other weights than without a scope"
    return compare(seen, by_hand(x, y, start))


if __name__ == "__main__":
    wrong = main()
    print(wrong or "")
    sys.exit(wrong is not None)
