"""Evidence made up for tests: a chain of layers with the numbers of a healthy training, of which a test changes some."""

from __future__ import annotations

from typing import Any

import numpy as np

from fitscope.diagnose import Evidence, Findings, diagnose
from fitscope.diagnose.history import columns_of
from fitscope.sites import Site

STEPS = np.arange(0, 200, 5)
LAYERS = ("dense", "dense_1", "dense_2", "out")


def configuration(**changed: Any) -> dict[str, Any]:
    """A classifier of five classes. `changed`: by key of the configuration, or `layer__key` of a layer."""
    layers = [{"path": "input", "class": "InputLayer", "inbound": [], "parameters": 0, "trainable": True}]
    for i, path in enumerate(LAYERS):
        layers.append(
            {
                "path": path,
                "class": "Dense",
                "activation": "softmax" if path == "out" else "relu",
                "trainable": True,
                "units": 5 if path == "out" else 32,
                "inbound": [LAYERS[i - 1] if i else "input"],
                "parameters": 100,
                "kernel_initializer": {"class": "GlorotUniform"},
            }
        )
    made: dict[str, Any] = {
        "layers": layers,
        "outputs": [{"layer": "out", "name": "out", "activation": "softmax", "shape": [None, 5]}],
        "losses": [{"output": "out", "class": "SparseCategoricalCrossentropy", "from_logits": False}],
        "optimizer": {
            "class": "Adam",
            "learning_rate": 1e-3,
            "epsilon": 1e-7,
            "beta_1": 0.9,
            "beta_2": 0.999,
        },
        "fit": {"batch_size": 32, "steps_per_epoch": 50, "epochs": 4, "shuffle": True},
        "dtype_policy": "float32",
    }
    for name, value in changed.items():
        layer, _, key = name.partition("__")
        if key:
            next(one for one in layers if one["path"] == layer)[key] = value
        elif isinstance(made.get(name), dict):
            made[name] = {**made[name], **value}
        else:
            made[name] = value
    return made


class Made:
    """A training that went well, until a test changes something."""

    def __init__(self, steps: np.ndarray[Any, Any] = STEPS, **changed: Any) -> None:
        self.steps = steps
        self.configuration = configuration(**changed)
        self.random = np.random.default_rng(0)
        self.sites: dict[str, dict[str, Any]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        n = len(steps)
        for i, layer in enumerate(LAYERS):
            shape = (32, 5 if layer == "out" else 32)
            self.put(f"activations/{layer}", shape, rms=self.near(0.5), zeros=0.6 * np.prod(shape))
            if layer == "out":
                self.put(f"activations/{layer}", shape, mean=np.full(n, 0.2), rms=self.near(0.3))
            else:
                self.put(f"activity/{layer}", (32,), zeros=1, mean=self.near(0.4))
            self.put(f"gradients/{layer}", shape, rms=self.near(1e-3 * 1.5**i))
            for kind, rms in (("weights", 0.2), ("weight_gradients", 2e-3 * 1.2**i), ("updates", 4e-4)):
                self.put(f"{kind}/{layer}/kernel", (32, shape[1]), rms=self.near(rms), std=rms)
                self.put(f"{kind}/{layer}/bias", (shape[1],), rms=self.near(rms / 10))
        losses = 1.6 * np.exp(-np.arange(200) / 80) * (1 + 0.05 * self.random.standard_normal(200))
        self.loss(losses)
        self.put(
            "inputs",
            (32, 8),
            mean=self.near(0.0),
            rms=self.near(1.0),
            max=self.near(3.0),
            min=-self.near(3.0),
        )
        targets = self.random.integers(0, 5, (n, 32))
        self.put(
            "targets", (32,), mean=targets.mean(1), std=targets.std(1), min=targets.min(1), max=targets.max(1),
            rms=np.sqrt((targets**2).mean(1)),
        )  # fmt: skip
        self.put("classes/targets", (5,), max=self.near(0.3), zeros=0)
        self.put("classes/predictions", (5,), max=self.near(0.35), zeros=0)
        self.put("features/inputs", (8,), zeros=0, mean=self.near(1.0))
        self.put("features/mean", (8,), mean=self.near(0.05))
        self.put("features/range", (8,), mean=self.near(6.0), max=self.near(7.0))
        self.scalar("features/duplicates", steps, np.zeros(n))
        self.scalar("learning_rate", steps, np.full(n, 1e-3))
        self.scalar("logs/loss", np.arange(50, 201, 50), [1.2, 0.8, 0.5, 0.3])
        self.scalar("logs/val_loss", np.arange(50, 201, 50), [1.3, 0.9, 0.65, 0.5])

    def near(self, value: float) -> np.ndarray[Any, Any]:
        """About so much at every step."""
        return value * (1 + 0.05 * self.random.standard_normal(len(self.steps)))

    def put(self, site: str, shape: tuple[int, ...] | None = None, **stats: Any) -> Made:
        """Statistics of a site: numbers, or an array with one for each step."""
        n = len(self.steps)
        known = self.sites.setdefault(site, {"steps": self.steps})
        if shape is not None:
            self.shapes[site] = shape
            known["count"] = np.full(n, float(np.prod(shape)))
        for name, value in stats.items():
            known[name] = np.broadcast_to(np.asarray(value, np.float64), (n,)).copy()
        return self

    def scalar(self, site: str, steps: Any, values: Any) -> Made:
        values = np.asarray(values, np.float64)
        self.shapes[site] = ()
        broken = ~np.isfinite(values)
        self.sites[site] = {
            "steps": np.asarray(steps), "value": values, "count": np.ones(len(values)), "min": values, "max": values,
            "mean": values, "rms": np.abs(values), "nans": np.isnan(values), "infs": broken & ~np.isnan(values),
        }  # fmt: skip
        return self

    def loss(self, values: Any, steps: Any = None) -> Made:
        return self.scalar("loss", np.arange(len(values)) if steps is None else steps, values)

    def drop(self, *sites: str) -> Made:
        for site in sites:
            del self.sites[site]
        return self

    def broken(self, site: str, step: int, *, nans: int = 0, infs: int = 0) -> Made:
        """A site with NaN or Inf from a step on."""
        since = self.sites[site]["steps"] >= step
        self.sites[site]["nans"] = nans * since
        self.sites[site]["infs"] = infs * since
        return self

    def evidence(self) -> Evidence:
        found = Evidence(None, self.configuration)
        for name, stats in self.sites.items():
            columns = {key: value for key, value in stats.items() if key != "steps"}
            found.fill(
                _site(name), self.dtypes.get(name, "float32"), self.shapes[name], stats["steps"],
                columns_of(**columns).astype(np.float64),
            )  # fmt: skip
        return found

    def findings(self, *rules: str, **given: Any) -> Findings:
        return diagnose(self.evidence(), rules=rules or None, **given)


def _site(name: str) -> Site:
    kind, _, path = name.partition("/")
    if kind == "activity":
        return Site(kind, path)
    return Site.parse(name)
