"""Steps that draw from Python's and NumPy's generators while they are traced: a trace of fitscope takes none of their numbers."""

from __future__ import annotations

import random
import threading

import keras
import numpy as np
from keras import layers

import fitscope as fs
from watching import EACH_MODE

BACKEND = keras.backend.backend()
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(20, 5)).astype("float32"), RNG.normal(size=(20, 2)).astype("float32")


class Draws(layers.Layer):
    def call(self, x):
        return x * float(np.random.uniform(0.5, 1.5)) + random.random()


class Drawing(keras.callbacks.Callback):
    """Draws while the training runs, in its thread."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_train_batch_begin(self, batch, logs=None):
        self.drawn += [random.random(), np.random.random()]


@EACH_MODE
def test_a_step_that_draws_in_python_leaves_the_generators_as_without_a_scope(tmp_path, mode):
    def train(callbacks):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((5,)), Draws(), layers.Dense(2, name="last")])
        model.compile("sgd", "mse", **mode)
        drawing = Drawing()
        history = model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[drawing, *callbacks]).history
        return [*model.get_weights(), history["loss"], drawing.drawn, random.random(), np.random.random()]

    plain = train([])
    for every in (1, None):
        seen = train([fs.Scope(tmp_path / "runs", every=every)])
        for mine, theirs in zip(plain, seen, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_only_the_thread_that_traces_draws_from_a_copy():
    from fitscope.capture.backends._draws import own_draws

    def drawn():
        return [random.random(), random.randint(0, 9), np.random.uniform(), *np.random.permutation(5)]

    random.seed(1)
    np.random.seed(1)
    expected = drawn()
    functions = random.random, np.random.uniform, np.random.seed
    random.seed(1)
    np.random.seed(1)
    elsewhere = []
    with own_draws():
        assert drawn() == expected
        np.random.seed(5)
        other = threading.Thread(target=lambda: elsewhere.extend(drawn()))
        other.start()
        other.join()
        with own_draws():
            random.random()
    assert elsewhere == expected
    assert functions == (random.random, np.random.uniform, np.random.seed)
    assert drawn() != expected
