"""Faults on tables, series and text, as one finds them in somebody else's notebook."""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, ops, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.fresh.data import bicycles, moons, series, text, wines
from diagnosis.fresh.healthy_rows import dense
from diagnosis.models import LOGITS, SPARSE, Call, mlp


@fault("dense", expect("nonfinite"), step=0, within=30)
def gap_in_the_table(broken: bool) -> Training:
    """One missing value was read as NaN."""
    data = wines(seed=850)
    if broken:
        data.x[77, 4] = np.nan
    model = mlp(10, 3)
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("custom", expect("nonfinite", "likelihood"))
def variance_reaches_zero(broken: bool) -> Training:
    """The net predicts its own error, and nothing keeps the variance above zero."""
    data = bicycles(seed=851)
    inputs = keras.Input((7,))
    x = layers.Dense(32, "tanh", name="hidden")(inputs)
    both = layers.Dense(2, name="both")(x)
    out = Call(
        lambda v: ops.concatenate([v[:, :1], ops.log(ops.relu(v[:, 1:]) + (0.0 if broken else 1e-2))], -1),
        name="likelihood",
    )(both)
    model = keras.Model(inputs, out)
    model.compile(
        optimizers.Adam(3e-3),
        lambda y, p: ops.mean(p[:, 1:] + ops.square(y - p[:, :1]) * ops.exp(-p[:, 1:])),
    )
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("dense", expect("vanishing_gradient", *(f"h{i}" for i in range(1, 10))))
def twelve_logistic_layers(broken: bool) -> Training:
    data = moons(seed=852)
    start = "glorot_uniform" if broken else "he_normal"
    model = mlp(
        2,
        1,
        widths=(16,) * 12,
        activation="sigmoid" if broken else "relu",
        head="sigmoid",
        kernel_initializer=start,
    )
    model.compile(optimizers.Adam(1e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault(
    "recurrent",
    expect("exploding_gradient", "rnn"),
    expect("bad_initial_loss"),
    expect("loss_diverging"),
    expect("updates_too_large"),
)
def recurrence_that_amplifies(broken: bool) -> Training:
    """A linear recurrence whose matrix grows the state at each of 24 steps."""
    data = series(seed=853)
    start = initializers.Orthogonal(gain=1.6 if broken else 0.9)
    model = keras.Sequential(
        [
            keras.Input((24, 1)),
            layers.SimpleRNN(16, activation="linear", recurrent_initializer=start, name="rnn"),
            layers.Dense(1, name="next"),
        ]
    )
    model.compile(optimizers.SGD(1e-2, clipnorm=1.0), "mse")
    return Training(model, **data.parts(), epochs=5, batch_size=24)


@fault("dense", expect("dead_relu", "h2"), expect("layer_not_learning", "h1", "h2"))
def bias_from_another_checkpoint(broken: bool) -> Training:
    data = wines(seed=854)
    change = {"h2": {"bias_initializer": initializers.Constant(-30.0 if broken else 0.0)}}
    model = mlp(10, 3, change=change)
    model.compile(optimizers.Adam(1e-3), SPARSE)
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("saturated", "h1", "h2"))
def tanh_with_wide_weights(broken: bool) -> Training:
    data = bicycles(seed=855)
    change = {"h2": {"kernel_initializer": initializers.RandomNormal(stddev=6.0)}} if broken else {}
    model = mlp(7, 1, activation="tanh", head=None, change=change)
    model.compile(optimizers.Adam(1e-3), "mse")
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def rate_of_five_by_typing_error(broken: bool) -> Training:
    data = wines(seed=856)
    model = mlp(10, 3, head=None)
    model.compile(optimizers.SGD(20.0 if broken else 0.05, momentum=0.9), LOGITS)
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault(
    "dense",
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    expect("optimizer_misconfigured"),
    note=True,
)
def rate_of_a_ten_millionth(broken: bool) -> Training:
    data = bicycles(seed=857)
    model = mlp(7, 1, head=None)
    model.compile(optimizers.AdamW(1e-7 if broken else 3e-3), "mse")
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("label_problem"), expect("loss_not_decreasing"))
def rows_and_labels_parted(broken: bool) -> Training:
    """The rows were shuffled, the labels were not."""
    data = wines(seed=858)
    if broken:
        data = data.map_x(lambda x: np.random.default_rng(1).permutation(x))
    model = mlp(10, 3)
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("dense", expect("odd_batch"), expect("loss_spike"), step=40, within=2)
def sensor_gone_wild(broken: bool) -> Training:
    """In one batch of the series one column is a thousand times larger."""
    data = bicycles(1280, seed=859)
    if broken:
        data.x[40 * 16 : 41 * 16, 2] *= 1000
    model = mlp(7, 1, head=None)
    model.compile(optimizers.SGD(0.02, clipnorm=1.0), "mse")
    return Training(model, **data.parts(), epochs=1, batch_size=16, shuffle=False)


@fault(
    "dense",
    expect("loss_diverging"),
    expect("updates_too_large"),
    expect("exploding_gradient"),
    expect("nonfinite"),
    expect("bad_initial_loss"),
    expect("label_problem"),
)
def steep_regression(broken: bool) -> Training:
    """Targets in the hundreds and plain SGD at a common rate."""
    data = bicycles(seed=860, mean=300.0, spread=200.0) if broken else bicycles(seed=860)
    model = mlp(7, 1, head=None)
    model.compile(optimizers.SGD(0.02), "mse")
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("dense", expect("overfitting"))
def forty_rows_and_noise(broken: bool) -> Training:
    data = bicycles(40 if broken else 1600, seed=861, noise=0.8)
    model = mlp(7, 1, widths=(128, 128), head=None)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=80 if broken else 3, batch_size=20, validates=True)


@fault("dense", expect("class_collapse"), expect("label_problem"))
def one_wine_in_a_hundred(broken: bool) -> Training:
    shares = (0.97, 0.015, 0.015) if broken else (0.4, 0.3, 0.3)
    data = wines(960, seed=862, shares=shares)
    model = mlp(10, 3, widths=(16,))
    model.compile(optimizers.SGD(0.01), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("dense", expect("bad_initial_loss"), expect("bad_initial_loss", "head"))
def head_of_a_wrong_scale(broken: bool) -> Training:
    data = wines(seed=863)
    start = initializers.RandomNormal(stddev=8.0) if broken else "glorot_uniform"
    model = mlp(10, 3, head=None, change={"head": {"kernel_initializer": start}})
    model.compile(optimizers.Adam(1e-3), LOGITS)
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("input_not_normalised"))
def wines_as_measured(broken: bool) -> Training:
    data = wines(scaled=not broken, seed=864)
    model = mlp(10, 3)
    model.compile(optimizers.SGD(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("constant_or_duplicate_features"))
def joined_twice(broken: bool) -> Training:
    """A join doubled three columns, and one that was not filled is constant."""
    data = wines(seed=865)
    rng = np.random.default_rng(3)
    if broken:
        data = data.map_x(lambda x: np.concatenate([x, x[:, :3], np.full((len(x), 1), 7, "float32")], 1))
    else:
        data = data.map_x(lambda x: np.concatenate([x, rng.normal(size=(len(x), 4)).astype("float32")], 1))
    model = mlp(14, 3)
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("dense", expect("label_problem"), expect("nonfinite"), step=0, within=2)
def classes_counted_from_one(broken: bool) -> Training:
    data = wines(seed=866).map_y(lambda y: y + 1 if broken else y)
    model = mlp(10, 3)
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "head"), step=0)
def tanh_for_degrees(broken: bool) -> Training:
    """Temperatures from -10 to 30 out of a tanh."""
    data = bicycles(seed=867, mean=10.0, spread=8.0)
    model = mlp(7, 1, head="tanh" if broken else None)
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("attention", expect("wrong_axis", "softmax"), expect("output_loss_mismatch", "softmax"), step=0)
def softmax_along_the_letters(broken: bool) -> Training:
    """The softmax runs over places instead of over the vocabulary."""
    data = text(seed=868)
    inputs = keras.Input((16,), dtype="int32")
    x = layers.Embedding(20, 24, name="letters")(inputs)
    x = x + layers.MultiHeadAttention(2, 12, name="attention")(x, x, use_causal_mask=True)
    x = layers.Dense(20, name="vocabulary")(layers.LayerNormalization(name="norm")(x))
    model = keras.Model(inputs, layers.Softmax(axis=1 if broken else -1, name="softmax")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=6, batch_size=24)


@fault("dense", expect("clipped_gradient"), expect("updates_too_small"), expect("optimizer_misconfigured"))
def clipped_by_value_to_nothing(broken: bool) -> Training:
    data = bicycles(seed=869)
    model = mlp(7, 1, head=None)
    model.compile(optimizers.SGD(0.03, momentum=0.9, clipnorm=1e-5 if broken else 1.0), "mse")
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("optimizer_misconfigured"), expect("updates_too_small"), expect("loss_not_decreasing"))
def epsilon_of_an_example(broken: bool) -> Training:
    data = wines(seed=870)
    model = mlp(10, 3)
    model.compile(optimizers.Adam(1e-3, epsilon=5.0 if broken else 1e-7), SPARSE)
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("dense", expect("unshuffled"))
def sorted_by_kind_of_wine(broken: bool) -> Training:
    data = wines(seed=871)
    order = np.argsort(data.y, kind="stable") if broken else np.arange(len(data.y))
    data.x, data.y = data.x[order], data.y[order]
    model = mlp(10, 3)
    model.compile(optimizers.SGD(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=16, shuffle=False)


@fault("custom", expect("exploding_weights"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def decay_with_the_wrong_sign(broken: bool) -> Training:
    """The penalty is subtracted, so large weights are rewarded."""
    data = bicycles(seed=872)
    sign = -1.0 if broken else 1.0
    model = dense(7, 1, 32, 32, kernel_regularizer=lambda w: sign * 1e-2 * ops.sum(ops.square(w)))
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=10, batch_size=32)
