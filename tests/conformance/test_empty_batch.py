"""A batch without samples, on which TensorFlow trains like on any other."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import fitscope as fs
from watching import everything

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="elsewhere such a batch is an error of Keras"
)


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
def test_a_batch_without_samples_is_recorded_like_any_other(watch_fit, mode):
    x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")

    def batches():
        for start, end in ((0, 8), (8, 8), (8, 12)):
            yield x[start:end], x[start:end, :2]

    def model():
        keras.utils.set_random_seed(0)
        made = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="last")]
        )
        made.compile("sgd", keras.losses.Huber(), **mode)
        return made

    watch = [*everything(), fs.loss(per_sample=True), fs.changes(), fs.activations("last", keep="average")]
    seen = watch_fit(model, batches, watch=watch, steps_per_epoch=3)
    samples = seen.run.samples
    assert samples.groupby("step").size().to_dict() == {0: 8, 2: 4}
    assert seen.run.stats.query("site == 'activations/first'")["count"].tolist() == [24, 0, 12]
