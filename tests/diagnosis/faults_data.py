"""Faults of the data: NaN, scale, dead columns, wrong, shuffled or constant labels, order, imbalance, one bad batch."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import Data, binary, blobs, curve, images, thinned, tokens, waves
from diagnosis.models import SPARSE, convnet, mlp, transformer


@fault("conv", expect("input_not_normalised"), step=0)
def pixels_from_0_to_255(broken: bool) -> Training:
    data = images(seed=43)
    if broken:
        data = data.map_x(lambda x: np.clip(x * 45 + 110, 0, 255).astype("float32"))
    model = convnet(3)
    model.compile(optimizers.SGD(0.03), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault("dense", expect("input_not_normalised"), step=0)
def salary_beside_age(broken: bool) -> Training:
    """One column in euros, the others standardised."""
    data = curve(seed=44)

    def salary(x):
        x = x.copy()
        x[:, 4] = x[:, 4] * 20_000 + 50_000 if broken else x[:, 4]
        return x

    model = mlp(6, 1, head=None)
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(model, **data.map_x(salary).parts(), epochs=5)


@fault("dense", expect("constant_or_duplicate_features"), step=0)
def constant_columns(broken: bool) -> Training:
    """A join failed: three columns hold the same value in every row."""
    data = blobs(seed=45, features=10)

    def joined(x):
        x = x.copy()
        if broken:
            x[:, [2, 5, 7]] = (1.0, 0.0, -1.0)
        return x

    model = mlp(10, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.map_x(joined).parts(), epochs=5)


@fault("dense", expect("constant_or_duplicate_features"), step=0)
def duplicated_columns(broken: bool) -> Training:
    """A column was appended twice."""
    data = curve(seed=46, features=8)

    def appended(x):
        x = x.copy()
        if broken:
            x[:, 6], x[:, 7] = x[:, 0], x[:, 1]
        return x

    model = mlp(8, 1, head=None)
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.map_x(appended).parts(), epochs=5)


@fault(
    "conv",
    expect("constant_or_duplicate_features"),
    expect("label_problem"),
    expect("loss_not_decreasing"),
    step=0,
)
def blank_pictures(broken: bool) -> Training:
    """The loader gives a blank picture where the file cannot be read; no file can."""
    data = images(seed=47)
    if broken:
        data = data.map_x(lambda x: np.full_like(x, 0.5))
    model = convnet(3)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("label_problem"), step=0)
def labels_all_the_same(broken: bool) -> Training:
    data = blobs(seed=48)
    if broken:
        data = data.map_y(np.zeros_like)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault(
    "dense", expect("label_problem"), expect("output_loss_mismatch", "head"), expect("loss_diverging"), step=0
)
def labels_1_and_2_with_a_sigmoid(broken: bool) -> Training:
    data = binary(seed=50).map_y(lambda y: y + 1 if broken else y)
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=5)


@fault(
    "conv", expect("label_problem"), expect("output_loss_mismatch", "head"), expect("loss_diverging"), step=0
)
def labels_of_plus_and_minus_one(broken: bool) -> Training:
    """Labels of a hinge loss, with a cross-entropy."""
    data = images(seed=51, classes=2)
    data = data.map_y(lambda y: (2.0 * y - 1 if broken else 1.0 * y).astype("float32")[:, None])
    model = convnet(1, head="sigmoid")
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy")
    return Training(model, **data.parts(), epochs=5)


@fault("dense", expect("label_problem"), expect("loss_not_decreasing"))
def labels_shuffled_apart(broken: bool) -> Training:
    """Inputs were shuffled, labels were not."""
    data = blobs(960, seed=52)
    if broken:
        data = Data(np.random.default_rng(0).permutation(data.x), data.y, data.validation)
    model = mlp(8, 3)
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=3)


@fault("recurrent", expect("loss_not_decreasing"), expect("label_problem"))
def sequences_without_signal(broken: bool) -> Training:
    """The labels belong to other sequences."""
    data = waves(480, seed=53)
    if broken:
        data = data.map_y(np.random.default_rng(0).permutation)
    model = keras.Sequential(
        [layers.Input((12, 2)), layers.GRU(10, name="gru"), layers.Dense(2, "softmax", name="head")]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=4)


@fault("conv", expect("loss_spike"), expect("label_problem"), step=88)
def one_batch_with_foreign_labels(broken: bool) -> Training:
    """One file of labels was saved in another order of classes, so one batch of the second half has wrong labels."""
    data = images(1920, seed=57, noise=0.3)
    at = slice(16 * 88, 16 * 89)
    data.y[at] = (data.y[at] + 1) % 3 if broken else data.y[at]
    model = convnet(3)
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=1, shuffle=False)


@fault("conv", expect("odd_batch"), expect("loss_spike"), step=25)
def one_unscaled_batch_behind_a_norm(broken: bool) -> Training:
    """One file of pictures was never divided by 255. They come together, at step 25, 55, 85, …; a normalisation hides them."""
    data = images(480, seed=60)
    data.x[16 * 25 : 16 * 26] *= 255.0 if broken else 1.0
    model = keras.Sequential(
        [
            layers.Input(data.x.shape[1:]),
            layers.Conv2D(8, 3, use_bias=False, name="conv1"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(name="relu"),
            layers.GlobalAveragePooling2D(name="pool"),
            layers.Dense(3, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, shuffle=False)


@fault("attention", expect("loss_spike"), expect("label_problem"), step=12)
def one_target_in_other_units(broken: bool) -> Training:
    """One target in a batch is in grams, the others in kilograms."""
    data = tokens(seed=58).map_y(lambda y: (2.0 * y - 1).astype("float32")[:, None])
    data.y[16 * 12 + 7, 0] *= 1000.0 if broken else 1.0
    words = layers.Input((10,), dtype="int32")
    x = layers.Embedding(20, 16, name="embedding")(words)
    x = layers.Add(name="add")([x, layers.MultiHeadAttention(2, 8, name="attn")(x, x)])
    x = layers.LayerNormalization(name="norm")(layers.GlobalAveragePooling1D(name="pool")(x))
    model = keras.Model(words, layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(5e-3), "mse")
    return Training(model, **data.parts(), epochs=5, shuffle=False)


@fault("dense", expect("unshuffled"), step=0)
def sorted_by_class(broken: bool) -> Training:
    data = blobs(seed=59)
    if broken:
        order = np.argsort(data.y, kind="stable")
        data = Data(data.x[order], data.y[order], data.validation)
    model = mlp(8, 3)
    model.compile(optimizers.SGD(0.1), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5, shuffle=not broken)


@fault("recurrent", expect("unshuffled"), step=0)
def sorted_by_target(broken: bool) -> Training:
    """Regression on rows that come sorted by what is to be predicted."""
    data = waves(seed=60)
    x = data.x.copy()
    level = np.linspace(-2, 2, len(x)).astype("float32")
    if not broken:
        level = np.random.default_rng(0).permutation(level)
    x[:, :, 1] = level[:, None] + x[:, :, 1] * 0.2
    x[:, :, 1] /= 1.2
    held = data.validation[0].copy()
    held_level = np.random.default_rng(1).uniform(-2, 2, len(held)).astype("float32")
    held[:, :, 1] = (held_level[:, None] + held[:, :, 1] * 0.2) / 1.2
    model = keras.Sequential([layers.Input((12, 2)), layers.GRU(8, name="gru"), layers.Dense(1, name="head")])
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, x, level[:, None], (held, held_level[:, None]), epochs=5, shuffle=not broken)


@fault("dense", expect("class_collapse"), expect("label_problem"))
def collapse_under_imbalance(broken: bool) -> Training:
    """One positive in forty, and inputs that hardly tell: the model says no to everything."""
    data = binary(960, seed=61, spread=6.0 if broken else 1.0)
    data = thinned(data, 0.025) if broken else data
    model = mlp(8, 1, head="sigmoid")
    model.compile(optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=5)


@fault("conv", expect("class_collapse"), expect("label_problem"))
def collapse_of_three_classes(broken: bool) -> Training:
    data = images(640, seed=62, noise=3.0 if broken else 0.6)
    data = thinned(data, 0.04) if broken else data
    model = convnet(3)
    model.compile(optimizers.Adam(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)


@fault("dense", expect("overfitting"))
def few_rows_large_model(broken: bool) -> Training:
    """Forty-eight noisy rows for twelve thousand weights."""
    data = blobs(960, features=20, classes=2, spread=8.0 if broken else 1.5, seed=63)
    if broken:
        data = Data(data.x[:48], data.y[:48], data.validation)
    model = mlp(20, 2, widths=(96, 96))
    model.compile(optimizers.Adam(3e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=40 if broken else 3, validates=True)


@fault("attention", expect("overfitting"))
def transformer_learns_by_heart(broken: bool) -> Training:
    data = tokens(960, seed=64)
    if broken:
        few = np.random.default_rng(3).permutation(data.y[:64])
        few[:44] = data.y[:44]
        data = Data(data.x[:64], few, data.validation)
    model = transformer()
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=30 if broken else 2, validates=True)


@fault("recurrent", expect("label_problem"))
def mislabelled_words(broken: bool) -> Training:
    """One sentence in fifteen has the wrong label; the rest are clear."""
    data = tokens(480, seed=65)
    for x, y in ((data.x, data.y), data.validation):
        x[(y[:, None] == 0) & (x >= 10)] -= 9
        x[(y[:, None] == 1) & (x < 10)] += 9
    if broken:
        wrong = np.random.default_rng(4).choice(len(data.y), len(data.y) // 15, replace=False)
        data.y[wrong] = 1 - data.y[wrong]
    model = keras.Sequential(
        [
            layers.Input((10,), dtype="int32"),
            layers.Embedding(20, 8, name="embedding"),
            layers.GRU(8, name="gru"),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(1e-2), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6)
