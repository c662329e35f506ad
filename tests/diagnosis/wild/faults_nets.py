"""Faults of convolutional, recurrent and attention models on pictures, signals and text."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, expect, fault
from diagnosis.data import Data
from diagnosis.models import LOGITS, SPARSE, Call
from diagnosis.wild.data import digits, heartbeats, reviews, sales, unit


def pictures(outputs: int, *, activation="relu", start="glorot_uniform", behind=()):
    """Two convolutions with pooling, as every tutorial has them: `conv1`, `conv2`, `dense`, `head`."""
    return keras.Sequential(
        [
            layers.Input((12, 12, 1)),
            layers.Conv2D(12, 3, activation=activation, kernel_initializer=start, name="conv1"),
            *behind,
            layers.MaxPooling2D(name="pool1"),
            layers.Conv2D(24, 3, activation=activation, kernel_initializer=start, name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dense(32, activation, name="dense"),
            layers.Dense(outputs, name="head"),
        ]
    )


@fault(
    "conv",
    expect("updates_too_large"),
    expect("optimizer_misconfigured"),
    expect("dead_relu"),
    expect("class_collapse"),
    expect("loss_not_decreasing"),
)
def convnet_with_adam_at_a_tenth(broken: bool) -> Training:
    """`Adam(0.1)`, because 0.1 worked with SGD."""
    model = pictures(10)
    model.compile(optimizers.Adam(0.1 if broken else 2e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **unit(digits(seed=621)).parts(), epochs=6, batch_size=32)


@fault(
    "conv",
    expect("optimizer_misconfigured"),
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
)
def decay_counted_in_epochs(broken: bool) -> Training:
    """`PolynomialDecay(decay_steps=EPOCHS)`: the rate is zero after ten batches."""
    rate = schedules.PolynomialDecay(3e-3, 10 if broken else 200, end_learning_rate=0.0 if broken else 1e-4)
    model = pictures(10)
    model.compile(optimizers.Adam(rate), LOGITS, metrics=["accuracy"])
    return Training(model, **unit(digits(seed=622)).parts(), epochs=10, batch_size=32)


@fault("conv", expect("batchnorm", "norm"))
def momentum_of_another_framework(broken: bool) -> Training:
    """In PyTorch 0.1 is the share of the new batch; in Keras it is the share of the old average."""
    norm = layers.BatchNormalization(momentum=0.1 if broken else 0.9, name="norm")
    model = pictures(10, behind=[norm])
    model.compile(optimizers.Adam(2e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **unit(digits(seed=623)).parts(), epochs=5, batch_size=8, validates=True)


@fault(
    "conv",
    expect("class_collapse", "mask", "head"),
    expect("label_problem"),
    expect("loss_not_decreasing"),
)
def lesion_of_three_pixels(broken: bool) -> Training:
    """Two pixels in a hundred belong to the object, so the model paints everything as background."""
    rng = np.random.default_rng(624)
    x = rng.normal(size=(384, 12, 12, 1)).astype("float32") * 0.8
    y = np.zeros((384, 12, 12, 1), "float32")
    for i in range(384):
        wide = 1 if broken else 6
        top, left = rng.integers(0, 12 - wide, 2)
        y[i, top : top + wide, left : left + wide] = 1
    x = x + y * (1.0 if broken else 2.0)
    model = keras.Sequential(
        [
            layers.Input((12, 12, 1)),
            layers.Conv2D(12, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid", name="mask"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["binary_accuracy"])
    return Training(model, x[:320], y[:320], (x[320:], y[320:]), epochs=6)


@fault(
    "conv",
    expect("bad_initial_loss"),
    expect("exploding_gradient"),
    expect("loss_diverging"),
    expect("updates_too_large"),
    expect("nonfinite"),
)
def residual_sum_without_a_norm(broken: bool) -> Training:
    """Ten residual blocks with He weights and no normalisation: each doubles the variance. Blocks that start as nothing do not."""
    data = unit(digits(seed=625))
    inputs = layers.Input((12, 12, 1))
    x = layers.Conv2D(12, 3, strides=2, padding="same", name="stem")(inputs)
    for i in range(10):
        settings = {"padding": "same", "kernel_initializer": "he_normal"}
        inner = layers.Conv2D(12, 3, activation="relu", name=f"a{i}", **settings)(x)
        settings["kernel_initializer"] = "he_normal" if broken else "zeros"
        x = layers.Add(name=f"add{i}")([x, layers.Conv2D(12, 3, name=f"b{i}", **settings)(inner)])
    x = layers.Flatten(name="flatten")(x)
    model = keras.Model(inputs, layers.Dense(10, name="head")(x))
    model.compile(optimizers.Adam(2e-3), LOGITS)
    return Training(model, **data.parts(), epochs=4, batch_size=32)


@fault("conv", expect("overfitting"), expect("input_not_normalised"))
def validation_not_scaled(broken: bool) -> Training:
    """The training pictures are divided by 255, the validation pictures are not."""
    data = unit(digits(seed=626))
    if broken:
        data = Data(data.x, data.y, (data.validation[0] * 255, data.validation[1]))
    model = pictures(10)
    model.compile(optimizers.Adam(2e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32, validates=True)


@fault("conv", expect("overfitting"), expect("label_problem"))
def the_same_batch_for_ever(broken: bool) -> Training:
    """The loader counts files wrongly and reads the first 32 pictures again and again."""
    data = unit(digits(seed=627))
    if broken:
        rows = np.arange(len(data.x)) % 32
        data = Data(data.x[rows], data.y[rows], data.validation)
    model = pictures(10)
    model.compile(optimizers.Adam(2e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32, validates=True)


@fault(
    "recurrent",
    expect("vanishing_gradient"),
    expect("loss_not_decreasing"),
    expect("class_collapse"),
)
def padding_behind_the_words(broken: bool) -> Training:
    """Reviews of 24 words are padded to 120 behind, without a mask: the LSTM forgets them on the way to the end."""
    wide = reviews(seed=628).map_x(lambda x: np.pad(x, ((0, 0), (0, 96))))
    model = keras.Sequential(
        [
            layers.Input((120,), dtype="int32"),
            layers.Embedding(200, 16, mask_zero=not broken, name="embedding"),
            layers.LSTM(16, name="lstm", use_cudnn=False),
            layers.Dense(1, "sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **wide.map_y(lambda y: y.astype("float32")[:, None]).parts(), epochs=4)


@fault(
    "recurrent",
    expect("output_loss_mismatch", "lstm"),
    expect("saturated", "lstm"),
    expect("loss_not_decreasing"),
)
def forecast_straight_from_the_lstm(broken: bool) -> Training:
    """The last layer is an LSTM, whose output lies between -1 and 1, and the sales are around 40."""
    data = sales(seed=629)
    if broken:
        data = data.map_y(lambda y: y * 10 + 40)
    stack = [layers.Input((28, 1))]
    stack += (
        [layers.LSTM(1, name="lstm")]
        if broken
        else [layers.LSTM(16, name="lstm"), layers.Dense(1, name="head")]
    )
    model = keras.Sequential(stack)
    model.compile(optimizers.Adam(1e-2), "mse")
    return Training(model, **data.parts(), epochs=5)


@fault(
    "recurrent",
    expect("clipped_gradient"),
    expect("updates_too_small"),
    expect("loss_not_decreasing"),
    step=0,
)
def clipvalue_of_a_millionth(broken: bool) -> Training:
    model = keras.Sequential(
        [layers.Input((28, 1)), layers.GRU(16, name="gru"), layers.Dense(1, name="head")]
    )
    model.compile(optimizers.SGD(0.1, clipvalue=1e-6 if broken else 1.0), "mse")
    return Training(model, **sales(seed=630).parts(), epochs=5)


@fault("recurrent", expect("unshuffled"), step=0, within=60)
def reviews_sorted_by_verdict(broken: bool) -> Training:
    """First all the praise, then all the blame, with `shuffle=False`."""
    data = reviews(seed=631)
    if broken:
        order = np.argsort(-data.y, kind="stable")
        data = Data(data.x[order], data.y[order], data.validation)
    model = keras.Sequential(
        [
            layers.Input((24,), dtype="int32"),
            layers.Embedding(200, 16, mask_zero=True, name="embedding"),
            layers.GRU(16, name="gru", use_cudnn=False),
            layers.Dense(2, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=4, shuffle=False)


@fault("attention", expect("layer_not_learning", "query", "key", "pick"), note=True)
def attention_picks_by_argmax(broken: bool) -> Training:
    """Hard attention: the place is chosen by argmax, which has no slope, so queries and keys never learn."""
    data = heartbeats(seed=632).map_x(lambda x: x.reshape(len(x), 12, 4))

    def pick(given):
        query, key, value = given
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1)))
        chosen = ops.one_hot(ops.argmax(scores, -1), 12) if broken else ops.softmax(scores)
        return ops.matmul(ops.cast(chosen, "float32"), value)

    inputs = layers.Input((12, 4))
    parts = [layers.Dense(16, name=name)(inputs) for name in ("query", "key", "value")]
    x = layers.Flatten(name="flatten")(Call(pick, name="pick")(parts))
    x = layers.Dense(16, "relu", name="h1")(x)
    model = keras.Model(inputs, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(5e-3), SPARSE)
    return Training(model, **data.parts(), epochs=8)


@fault("attention", expect("nonfinite", "embedding"), backends=("jax",))
def word_beyond_the_vocabulary(broken: bool) -> Training:
    """Words are numbered up to 199, and the embedding has 150 rows."""
    words = layers.Input((24,), dtype="int32")
    x = layers.Embedding(150 if broken else 200, 16, name="embedding")(words)
    x = layers.Add(name="add")([x, layers.MultiHeadAttention(2, 8, name="attn")(x, x)])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(words, layers.Dense(2, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, **reviews(seed=633).parts(), epochs=4)
