"""Random data, a compiled model and its sites, for the tests of models."""

from __future__ import annotations

import keras
import numpy as np

import fitscope as fs
from complete import assert_complete
from watching import everything

RNG = np.random.default_rng(5)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def compiled(
    model: keras.Model, loss: object = "mse", optimizer: object = "sgd", **more: object
) -> keras.Model:
    model.compile(optimizer, loss, **more)
    return model


def with_passes(watch_fit, tmp_path):
    """A fit after which the model is evaluated and predicts too: what is watched then is recorded or explained as well."""

    def fit(make, x, y=None, **more):
        seen = watch_fit(make, x, y, **more)
        scope = fs.Scope(tmp_path / "passes", [*everything(), fs.loss(per_sample=True)], every=1)
        seen.model.evaluate(x, y, batch_size=8, verbose=0, callbacks=[scope])
        seen.model.predict(x, batch_size=8, verbose=0, callbacks=[scope])
        run = fs.open(tmp_path / "passes")
        assert run.errors == []
        assert_complete(run, ("evaluate", "predict"))
        return seen

    return fit


def sites(run: fs.Run, kind: str) -> list[str]:
    return sorted(site.removeprefix(kind + "/") for site in run.sites if site.startswith(kind + "/"))
