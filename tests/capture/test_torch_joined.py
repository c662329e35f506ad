"""What leaves an eager torch step joined is what would leave it by itself: weights, updates and values of every dtype."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from fitscope.pipeline.handover import JOINED, OnHost, slots
from fitscope.plan.wants import Want, Wants
from fitscope.sites import Site

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch alone")


def _values(harvest: Any, adapter: Any) -> dict[str, np.ndarray]:
    """All values of a harvest by site, joined or not."""
    found = {}
    for name, value in harvest.tensors.items():
        if name != JOINED:
            found[str(name)] = adapter.to_numpy(getattr(value, "rows", value))
    for vector, layout in harvest.tensors.get(JOINED, []):
        for slot in slots(adapter.to_numpy(layout)):
            found[slot.name] = slot.of(adapter.to_numpy(vector)).copy()
    return found


def _watched(variables: dict[str, Any], kinds: dict[str, list[str]], step: Any) -> dict[str, np.ndarray]:
    """Runs a step with taps on these weights, and gives what it hands out."""
    from fitscope.capture.backends._base import Ask
    from fitscope.capture.backends._torch_taps import Collector
    from fitscope.capture.backends._torch_weights import WeightTaps
    from fitscope.capture.backends.torch import ADAPTER

    wants = Wants({(kind, path): Want(stats=True) for kind, paths in kinds.items() for path in paths})
    weights = tuple(SimpleNamespace(path=path, variable=variable) for path, variable in variables.items())
    anatomy: Any = SimpleNamespace(weights=weights)
    ask = Ask(anatomy, wants, finish=OnHost(wants, ADAPTER))
    taps = WeightTaps(ask)
    for _ in range(2):  # the second step knows the layout of the first
        collector = Collector(ask.finish, joins=True)
        with taps.on(collector):
            step()
    harvest = collector.finished(ask, versions_tell=True)
    assert harvest.broken is None
    assert set(harvest.sites) == set(_values(harvest, ADAPTER))
    return _values(harvest, ADAPTER)


def test_weights_and_updates_of_every_dtype_and_size() -> None:
    shapes = {"a/kernel": (3, 4), "a/bias": (), "b/kernel": (300, 200), "b/count": (5,), "c/half": (2, 2)}
    dtypes = dict.fromkeys(shapes, "float32") | {"b/count": "int64", "c/half": "float16"}
    variables = {
        path: keras.Variable(np.ones(shape), dtype=dtypes[path], trainable=False)
        for path, shape in shapes.items()
    }

    def step() -> None:
        for n, variable in enumerate(variables.values(), 1):
            variable.assign_add(keras.ops.full(variable.shape, n, variable.dtype))

    paths = list(shapes)
    found = _watched(variables, {"weights": paths[:4], "updates": paths[1:]}, step)
    for n, path in enumerate(paths, 1):
        if path in paths[:4]:
            assert (found[f"weights/{path}"] == 1 + n).all()  # before the second step
            assert found[f"weights/{path}"].dtype == dtypes[path]
        if path in paths[1:]:
            assert (found[f"updates/{path}"] == n).all()
    assert found["weights/a/kernel"].shape == (3, 4)
    assert found["weights/a/bias"].shape == ()


def test_a_weight_that_the_step_replaces_does_not_cost_the_others() -> None:
    import torch

    odd, even = keras.Variable(np.ones(3)), keras.Variable(np.ones(2))

    def step() -> None:
        odd._value = torch.nn.Parameter(torch.full((4 if len(odd._value) == 3 else 3,), 2.0))
        even.assign_add([1.0, 1.0])

    found = _watched({"odd": odd, "even": even}, {"weights": ["odd", "even"], "updates": ["even"]}, step)
    assert (found["weights/even"] == 2).all()
    assert (found["updates/even"] == 1).all()
    assert found["weights/odd"].tolist() == [2.0] * 4


def test_a_value_changed_in_place_is_named_and_not_recorded() -> None:
    import torch

    from fitscope.capture.backends._base import Ask
    from fitscope.capture.backends._torch_taps import Collector
    from fitscope.capture.backends.torch import ADAPTER

    left, changed, rate = Site("activations", "left"), Site("activations", "changed"), Site("learning_rate")
    wants = Wants({site.place: Want(stats=True) for site in (left, changed, rate)})
    ask = Ask(SimpleNamespace(weights=()), wants, finish=OnHost(wants, ADAPTER))  # type: ignore[arg-type]
    collector = Collector(ask.finish, joins=True)
    tensors = [torch.ones(2, 2), torch.ones(3), torch.tensor(0.5)]
    for site, tensor in zip((left, changed, rate), tensors, strict=True):
        collector.see(site, tensor)
    tensors[1].add_(1)
    tensors[2].mul_(2)  # which a step may do: it was copied
    harvest = collector.finished(ask, versions_tell=True)
    assert "in place" in harvest.failed[changed]
    found = _values(harvest, ADAPTER)
    assert set(found) == {left, rate}
    assert found[rate] == 0.5
