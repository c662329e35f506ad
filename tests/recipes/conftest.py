"""What the tests of the recipes share: the model that `by_hand.train` trains too, and a look at what the recipe's page claims."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import by_hand
from watching import Reader, anew, same, watch_fit

__all__ = ["watch_fit"]  # a fixture

PAGES = Path(__file__).parents[2] / "docs/recipes"


def make(loss: Any = None, metrics: Any = (), *, outputs: int = 3, **compile_: Any) -> keras.Model:
    """The network of `by_hand.train`, with the same first weights."""
    inputs = keras.layers.Input((6,), name="x")
    hidden = keras.layers.Dense(5, name="hidden")(inputs)
    relu = keras.layers.ReLU(name="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(outputs, name="head")(relu))
    model.set_weights(list(by_hand.weights(outputs=outputs).values()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    model.compile(keras.optimizers.SGD(by_hand.LR), loss, metrics=list(metrics), **compile_)
    return model


class Rows(keras.utils.PyDataset):
    """Batches of 8, in order."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__()
        self.arrays = arrays

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // 8)

    def __getitem__(self, i: int) -> tuple[np.ndarray, ...]:
        return tuple(array[8 * i : 8 * i + 8] for array in self.arrays)


class Shuffled(Rows):
    """Gives its rows in another order at each walk, as a `tf.data.Dataset` with `shuffle` does."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__(*arrays)
        self.walks = 0
        self._rng, self._all = np.random.default_rng(0), arrays

    def __getitem__(self, i: int) -> tuple[np.ndarray, ...]:
        if i == 0:
            self.walks += 1
            order = self._rng.permutation(len(self._all[0]))
            self.arrays = tuple(array[order] for array in self._all)
        return super().__getitem__(i)


def close(a: Any, b: Any) -> None:
    """Equal to float32's precision, after a few steps of training in it."""
    np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=2e-4, atol=3e-6)


def every_value(run: Any, site: str, by: by_hand.Training, steps: Any = None) -> None:
    """The tensors of a site are those of the training written by hand, at all steps or at just these."""
    wanted = range(len(by)) if steps is None else steps
    assert list(run.tensor(site).step.values) == list(wanted)
    for step in wanted:
        recorded = run.array(site, step)
        assert recorded.shape == by[step][site].shape
        close(recorded, by[step][site])


@pytest.fixture
def page_says(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Asserts that the recipe's page says this, word for word: its numbers are those of the test."""
    number = request.path.name.split("_")[1]
    (page,) = PAGES.glob(f"{number}-*.md")
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))

    def says(words: str) -> None:
        assert words in text, f"{page.name} does not say {words!r}"

    return says


@pytest.fixture
def tools() -> SimpleNamespace:
    return SimpleNamespace(
        make=make,
        Rows=Rows,
        Shuffled=Shuffled,
        close=close,
        every_value=every_value,
        same=same,
        anew=anew,
        Reader=Reader,
    )
