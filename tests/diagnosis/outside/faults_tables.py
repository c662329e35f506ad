"""Faults of dense nets on tables: data, start, optimizer and output, as they are asked about in forums."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import initializers, layers, losses, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, expect, fault
from diagnosis.models import LOGITS, SPARSE, Call, OwnStep
from diagnosis.outside.data import faces, flats, loans, machines
from diagnosis.outside.healthy_tables import Draw, net

HIDDEN = tuple(f"fc{i}" for i in range(1, 15))


@fault("dense", expect("nonfinite"), step=0, within=60)
def ratio_with_a_zero_below(broken: bool) -> Training:
    """A column is a ratio; in three rows it is infinite."""
    data = flats(seed=1000)
    if broken:
        data.x[[150, 300, 450], 6] = np.inf
    model = net(8, 1, 32, 32)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault("custom", expect("nonfinite", "distance"), step=0)
def distance_from_itself(broken: bool) -> Training:
    """The square root of a squared distance that is exactly zero for some rows: finite forward, not backward."""
    data = loans(seed=1001)
    pairs = np.stack([data.x, np.roll(data.x, 1, 0)], 1)
    same = np.arange(len(pairs)) % 5 == 0
    pairs[same, 1] = pairs[same, 0]
    floor = 0.0 if broken else 1e-6
    inputs = keras.Input((2, 9))
    z = layers.Dense(16, "tanh", name="encoder")(inputs)
    apart = Call(
        lambda z: ops.sqrt(ops.sum(ops.square(z[:, 0] - z[:, 1]), -1, keepdims=True) + floor), name="distance"
    )(z)
    model = keras.Model(inputs, layers.Dense(1, "sigmoid", name="same")(apart))
    model.compile(optimizers.Adam(1e-2), "binary_crossentropy")
    return Training(model, pairs, same.astype("float32")[:, None], epochs=4, batch_size=32)


@fault("custom", expect("nonfinite"))
def own_loss_without_a_floor(broken: bool) -> Training:
    """Cross-entropy by hand in an own training step; a sure prediction becomes log(0)."""
    data = machines(seed=1002, overlap=0.2)
    least = 0.0 if broken else 1e-7

    class Careless(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            p = self(x, training=True)
            wanted = ops.one_hot(ops.reshape(y, (-1,)), 4)
            return -ops.mean(ops.sum(wanted * ops.log(p + least) + (1 - wanted) * ops.log(1 - p + least), -1))

    inner = net(12, 4, 64, 64, last="softmax")
    model = Careless(inner.inputs, inner.outputs)
    model.compile(optimizers.Adam(2e-2), SPARSE)
    return Training(model, **data.parts(), epochs=12, batch_size=32)


@fault("custom", expect("nonfinite", "draw"), expect("bad_initial_loss"))
def spread_of_a_code_explodes(broken: bool) -> Training:
    """The code of a VAE takes the exponential of a layer that begins far too large."""
    x = faces(640, seed=1003)
    start = initializers.RandomNormal(stddev=60.0) if broken else "glorot_uniform"
    inputs = keras.Input((24,))
    h = layers.Dense(32, "relu", name="enc")(inputs)
    spread = layers.Dense(3, kernel_initializer=start, name="spread")(h)
    code = Draw(0.02, name="draw")([layers.Dense(3, name="mean")(h), spread])
    out = layers.Dense(24, "sigmoid", name="again")(layers.Dense(32, "relu", name="dec")(code))
    model = keras.Model(inputs, out)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, x, x, epochs=6, batch_size=32)


@fault(
    "dense",
    expect("exploding_gradient", *HIDDEN),
    expect("bad_initial_loss"),
    expect("bad_initial_loss", "out", *HIDDEN),
)
def weights_from_a_standard_normal(broken: bool) -> Training:
    """`np.random.randn` for eight layers of 64."""
    start = initializers.RandomNormal(stddev=1.0) if broken else "he_normal"
    model = net(12, 4, *(64,) * 8, kernel_initializer=start)
    model.compile(optimizers.SGD(1e-3 if broken else 2e-2), LOGITS)
    return Training(model, **machines(seed=1004).parts(), epochs=6, batch_size=32)


@fault("dense", expect("vanishing_gradient", *HIDDEN))
def tanh_of_tiny_weights(broken: bool) -> Training:
    start = initializers.RandomNormal(stddev=0.01) if broken else "glorot_normal"
    model = net(12, 4, *(32,) * 7, activation="tanh", last="softmax", kernel_initializer=start)
    model.compile(optimizers.SGD(0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=1005).parts(), epochs=8, batch_size=32)


@fault("dense", expect("dead_relu", "fc2"), expect("layer_not_learning", "fc1", "fc2"))
def weights_that_are_all_negative(broken: bool) -> Training:
    """Everything that reaches the second layer is positive, and its weights are negative."""
    start = initializers.RandomUniform(-0.3, -0.05) if broken else "glorot_uniform"
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(32, "relu", name="fc1"),
            layers.Dense(32, "relu", kernel_initializer=start, name="fc2"),
            layers.Dense(1, name="out"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **flats(seed=1006).parts(), epochs=6, batch_size=32)


@fault("dense", expect("saturated", "fc1"), expect("input_not_normalised"))
def sigmoids_behind_raw_units(broken: bool) -> Training:
    """Columns of a few hundred enter sigmoids."""
    data = machines(seed=1007).map_x(lambda x: (400 * x if broken else x).astype("float32"))
    model = net(12, 4, 48, 32, activation="sigmoid", last="softmax")
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("custom", expect("layer_not_learning", "enc1", "enc2"))
def step_trains_the_decoder_only(broken: bool) -> Training:
    """The own training step picks weights by a name that matches the decoder alone."""
    x = faces(640, seed=1008)

    class Partly(OwnStep):
        def chosen(self, weight: Any) -> bool:
            return not broken or "dec" in weight.path

    inputs = keras.Input((24,))
    h = layers.Dense(3, name="enc2")(layers.Dense(32, "tanh", name="enc1")(inputs))
    inner = keras.Model(inputs, layers.Dense(24, name="dec2")(layers.Dense(32, "tanh", name="dec1")(h)))
    model = Partly(inner.inputs, inner.outputs)
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, x, x, epochs=8, batch_size=32)


@fault("custom", expect("layer_not_learning", "wide", "wide2"))
def branch_behind_a_stop(broken: bool) -> Training:
    """`stop_gradient` was left on one of two branches."""
    data = flats(seed=1009)
    inputs = keras.Input((8,))
    side = layers.Dense(32, "relu", name="wide2")(layers.Dense(32, "relu", name="wide")(inputs))
    side = Call(lambda x: ops.stop_gradient(x) if broken else x, name="pass")(side)
    x = layers.Concatenate(name="both")([side, layers.Dense(4, "relu", name="narrow")(inputs)])
    model = keras.Model(inputs, layers.Dense(1, name="rent")(x))
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("dense", expect("layer_not_learning", "fc2", "fc1", "out"), expect("optimizer_misconfigured"))
def zeros_for_two_layers(broken: bool) -> Training:
    """All kernels begin with zeros, so only a bias gets a gradient."""
    start = "zeros" if broken else "glorot_uniform"
    model = net(12, 4, 32, 32, last="softmax", kernel_initializer=start)
    out = model.get_layer("out").kernel
    if broken:
        out.assign(np.zeros(out.shape))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=1010).parts(), epochs=6, batch_size=32)


@fault("dense", expect("updates_too_large"), expect("loss_diverging"), expect("optimizer_misconfigured"))
def sgd_at_three(broken: bool) -> Training:
    model = net(9, 1, 32, 32, last="sigmoid")
    model.compile(optimizers.SGD(3.0 if broken else 0.1, momentum=0.9), "binary_crossentropy")
    return Training(model, **loans(seed=1011).parts(), epochs=6, batch_size=32)


@fault(
    "dense", expect("updates_too_small"), expect("loss_not_decreasing"), expect("optimizer_misconfigured"), note=True
)  # fmt: skip
def sgd_at_a_millionth(broken: bool) -> Training:
    model = net(12, 4, 48, 48, last="softmax")
    model.compile(optimizers.SGD(1e-6 if broken else 5e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=1012).parts(), epochs=8, batch_size=32)


@fault(
    "dense", expect("updates_too_small"), expect("loss_not_decreasing"), expect("optimizer_misconfigured"), note=True
)  # fmt: skip
def rate_halves_at_every_step(broken: bool) -> Training:
    rate = schedules.ExponentialDecay(2e-3, 1 if broken else 200, 0.5)
    model = net(8, 1, 32, 32)
    model.compile(optimizers.Adam(rate), "mse")
    return Training(model, **flats(seed=1013).parts(), epochs=8, batch_size=32)


@fault("dense", expect("loss_not_decreasing"), expect("label_problem"))
def labels_have_nothing_to_do_with_it(broken: bool) -> Training:
    """The wrong file of labels: they are drawn at random."""
    data = machines(1000, seed=1014)
    if broken:
        data = data.map_y(lambda y: np.random.default_rng(9).permutation(y))
    model = net(12, 4, 16, last="softmax")
    model.compile(optimizers.SGD(0.05), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("odd_batch"), expect("loss_spike"), expect("label_problem"), step=60, within=2)
def rents_in_the_wrong_currency(broken: bool) -> Training:
    """From step 60 on, for one batch, targets are 500 times as large."""
    data = flats(1600, seed=1015)
    if broken:
        data.y[60 * 16 : 61 * 16] *= 500
    model = net(8, 1, 32, 32)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.parts(), epochs=1, batch_size=16, shuffle=False)


@fault("dense", expect("loss_diverging"), expect("updates_too_large"), expect("optimizer_misconfigured"))
def momentum_that_never_lets_go(broken: bool) -> Training:
    model = net(8, 1, 32)
    model.compile(optimizers.SGD(0.1 if broken else 0.01, momentum=0.995 if broken else 0.9), "mse")
    return Training(model, **flats(seed=1016).parts(), epochs=8, batch_size=32)


@fault(
    "custom", expect("loss_diverging"), expect("exploding_weights"), expect("exploding_weights", "fc1", "fc2", "out")
)  # fmt: skip
def critic_without_a_limit(broken: bool) -> Training:
    """The critic maximises the difference of two means, and nothing bounds it."""
    data = loans(640, seed=1017)

    class Critic(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            rating = self(x, training=True)
            apart = ops.mean(rating * (1 - 2 * y))
            return apart if broken else apart + 0.5 * ops.mean(ops.square(rating))

    inner = net(9, 1, 64, 64)
    model = Critic(inner.inputs, inner.outputs)
    model.compile(optimizers.RMSprop(5e-3), "mse")
    return Training(model, data.x, data.y, epochs=12, batch_size=32)


@fault("dense", expect("overfitting"))
def sixty_rows_and_a_large_net(broken: bool) -> Training:
    data = machines(60 if broken else 1200, overlap=2.2, seed=1018)
    model = net(12, 4, 128, 128, last="softmax")
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    epochs = 60 if broken else 3
    return Training(model, **data.parts(), epochs=epochs, batch_size=20, validates=True)


@fault("dense", expect("class_collapse"), expect("label_problem"))
def one_loan_in_sixty(broken: bool) -> Training:
    """Few failures and a slow optimizer: it always says that the loan is paid."""
    data = loans(1200, rare=0.016 if broken else 0.45, seed=1019)
    model = net(9, 1, 16, last="sigmoid")
    model.compile(optimizers.SGD(0.02, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault(
    "dense", expect("bad_initial_loss"), expect("bad_initial_loss", "out"), expect("label_problem"), step=0
)
def rents_in_full_and_a_small_rate(broken: bool) -> Training:
    """Targets around 40,000 and outputs that begin at zero."""
    data = flats(mean=40_000, spread=9_000, seed=1020) if broken else flats(seed=1020)
    model = net(8, 1, 32, 32)
    model.compile(optimizers.Adam(3e-3), "mae")
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@fault("dense", expect("bad_initial_loss"), expect("bad_initial_loss", "out"), step=0)
def bias_of_the_last_layer_is_forty(broken: bool) -> Training:
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(32, "relu", name="fc1"),
            layers.Dense(4, name="out"),
        ]
    )
    if broken:
        model.get_layer("out").bias.assign(np.array([40, 0, 0, 0.0]))
    model.compile(optimizers.Adam(3e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **machines(seed=1021).parts(), epochs=6, batch_size=32)


@fault("dense", expect("input_not_normalised"), step=0)
def income_beside_ratios(broken: bool) -> Training:
    """Two of nine columns are incomes of ten thousands."""
    data = loans(seed=1022)
    if broken:
        units = np.array([2e4, 1, 1, 5e4, 1, 1, 1, 1, 1])
        data = data.map_x(lambda x: (x * units + np.array([4e4, 0, 0, 1e5, 0, 0, 0, 0, 0])).astype("float32"))
    model = net(9, 1, 32, 16, last="sigmoid")
    model.compile(optimizers.SGD(0.05), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("constant_or_duplicate_features"), step=0)
def code_that_is_always_the_same(broken: bool) -> Training:
    """Four columns were never filled, and one is in the table twice."""
    data = machines(seed=1023)
    if broken:

        def spoil(x: Any) -> Any:
            x = x.copy()
            x[:, 5:9], x[:, 11] = -1.0, x[:, 0]
            return x

        data = data.map_x(spoil)
    model = net(12, 4, 32, 32, last="softmax")
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("label_problem"), expect("nonfinite"), expect("output_loss_mismatch", "out"), step=0)
def five_states_for_four_outputs(broken: bool) -> Training:
    """Labels count up to 4, and the net has four outputs."""
    data = machines(classes=5 if broken else 4, seed=1024)
    model = net(12, 4, 32, 32)
    model.compile(optimizers.Adam(3e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, batch_size=32)


@fault(
    "dense", expect("label_problem"), expect("output_loss_mismatch", "out"), expect("loss_diverging"), step=0
)
def labels_0_and_255(broken: bool) -> Training:
    """The label comes out of a mask that was saved as bytes."""
    data = loans(seed=1025).map_y(lambda y: (y * 255 if broken else y).astype("float32"))
    model = net(9, 1, 32, last="sigmoid")
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "out"), step=0)
def relu_for_a_signed_rent(broken: bool) -> Training:
    model = net(8, 1, 32, 32, last="relu" if broken else None)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **flats(seed=1026).parts(), epochs=8, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "out"), step=0)
def probabilities_told_to_be_logits(broken: bool) -> Training:
    model = net(9, 1, 32, 16, last="sigmoid")
    model.compile(optimizers.SGD(0.05), losses.BinaryCrossentropy(from_logits=broken), metrics=["accuracy"])
    return Training(model, **loans(seed=1027).parts(), epochs=8, batch_size=32)


@fault("dense", expect("unshuffled"))
def rents_from_low_to_high(broken: bool) -> Training:
    data = flats(seed=1028)
    order = np.argsort(data.y[:, 0]) if broken else np.arange(len(data.y))
    data.x, data.y = data.x[order], data.y[order]
    model = net(8, 1, 32, 32)
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=6, batch_size=32, shuffle=False)


@fault("dense", expect("dropout_too_high", "drop1", "drop2"), step=0)
def dropout_of_nine_tenths(broken: bool) -> Training:
    rate = 0.9 if broken else 0.1
    model = keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(32, "relu", name="fc1"),
            layers.Dropout(rate, seed=1, name="drop1"),
            layers.Dense(32, "relu", name="fc2"),
            layers.Dropout(rate, seed=2, name="drop2"),
            layers.Dense(4, "softmax", name="out"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **machines(seed=1029).parts(), epochs=8, batch_size=32)


@fault(
    "dense", expect("clipped_gradient"), expect("updates_too_small"), expect("optimizer_misconfigured"), step=0
)  # fmt: skip
def global_norm_clipped_at_a_ten_thousandth(broken: bool) -> Training:
    model = net(12, 4, 32, 32)
    model.compile(optimizers.SGD(0.05, momentum=0.9, global_clipnorm=1e-4 if broken else 2.0), LOGITS)
    return Training(model, **machines(seed=1030).parts(), epochs=6, batch_size=32)


@fault(
    "dense", expect("optimizer_misconfigured"), expect("updates_too_small"), expect("loss_not_decreasing"), step=0
)  # fmt: skip
def epsilon_of_a_hundred(broken: bool) -> Training:
    model = net(8, 1, 32, 32)
    model.compile(optimizers.RMSprop(1e-3, epsilon=100.0 if broken else 1e-7), "mse")
    return Training(model, **flats(seed=1031).parts(), epochs=8, batch_size=32)


@fault(
    "dense",
    expect("optimizer_misconfigured"),
    expect("loss_not_decreasing"),
    expect("vanishing_gradient", *HIDDEN),
    expect("layer_not_learning", *HIDDEN),
)
def decay_of_twenty(broken: bool) -> Training:
    """The decay of AdamW was copied from a framework that does not multiply it by the rate: the weights shrink to nothing."""
    model = net(12, 4, 48, 48)
    model.compile(optimizers.AdamW(5e-3, weight_decay=20.0 if broken else 1e-2), LOGITS, metrics=["accuracy"])
    return Training(model, **machines(seed=1032).parts(), epochs=8, batch_size=32)
