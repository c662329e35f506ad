"""The learning rate of each captured step, beside the updates it made; training stays as it is, bit for bit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from watching import EACH_MODE

DECAY = keras.optimizers.schedules.ExponentialDecay


@pytest.fixture
def maker():
    def of(optimizer, **mode):
        def make():
            keras.utils.set_random_seed(0)
            model = keras.Sequential(
                [layers.Input((5,)), layers.Dense(4, activation="relu"), layers.Dense(2, name="last")]
            )
            model.compile(optimizer(), "mse", **mode)
            return model

        return make

    return of


@EACH_MODE
def test_a_learning_rate_set_by_a_callback_is_recorded(watch_fit, xy, maker, mode):
    def callbacks():
        return [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5**epoch)]

    seen = watch_fit(
        maker(lambda: keras.optimizers.SGD(0.3), **mode),
        *xy,
        watch=[fs.updates()],
        epochs=2,
        callbacks=callbacks,
    )
    rate = seen.run.series("learning_rate")
    assert rate.index.tolist() == list(range(6))
    np.testing.assert_allclose(rate, [0.1] * 3 + [0.05] * 3, rtol=1e-6)


@EACH_MODE
def test_the_learning_rate_of_a_schedule_is_recorded(watch_fit, xy, maker, mode):
    seen = watch_fit(
        maker(lambda: keras.optimizers.Adam(DECAY(0.1, 2, 0.5)), **mode),
        *xy,
        watch=[fs.updates(every=2)],
        epochs=2,
    )
    rate = seen.run.series("learning_rate")
    assert rate.index.tolist() == [0, 2, 4]
    np.testing.assert_allclose(rate, [0.1, 0.05, 0.025], rtol=1e-5)


def test_the_learning_rate_under_a_loss_scale_is_recorded(watch_fit, xy, maker):
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25))

    seen = watch_fit(maker(optimizer), *xy, watch=[fs.updates()])
    assert set(seen.run.series("learning_rate")) == {0.25}


def test_a_custom_learning_rate_function_is_not_called_an_extra_time(watch_fit, xy, maker):
    asked = []

    def rate():
        asked.append(1)
        return 0.1

    def counted(watch):
        asked.clear()
        seen = watch_fit(maker(lambda: keras.optimizers.SGD(rate), run_eagerly=True), *xy, watch=watch)
        return len(asked), seen.run

    calls, run = counted([fs.updates()])
    assert calls == 2 * 3, "three steps without a scope, three with one"
    assert "learning_rate" not in run.sites
    assert run.unseen == {}


def test_the_learning_rate_is_recorded_only_with_updates(watch_fit, xy, maker):
    seen = watch_fit(maker(lambda: keras.optimizers.SGD(0.1)), *xy, watch=[fs.loss(), fs.weights()])
    assert "learning_rate" not in seen.run.sites
