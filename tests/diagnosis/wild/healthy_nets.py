"""Healthy trainings of convolutional, recurrent and attention models on pictures, signals and text."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, losses, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.models import LOGITS, SPARSE, Call
from diagnosis.wild.data import digits, heartbeats, reviews, sales, unit


@healthy("conv")
def digits_of_a_tutorial() -> Training:
    """Bytes, rescaled in the model; convolutions with batch normalisation, pooling and dropout; RMSprop."""
    model = keras.Sequential(
        [
            layers.Input((12, 12, 1)),
            layers.Rescaling(1 / 255, name="rescale"),
            layers.Conv2D(16, 3, use_bias=False, name="conv1"),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu1"),
            layers.MaxPooling2D(name="pool1"),
            layers.Conv2D(24, 3, activation="relu", name="conv2"),
            layers.Flatten(name="flatten"),
            layers.Dropout(0.4, seed=1, name="drop"),
            layers.Dense(10, "softmax", name="head"),
        ]
    )
    model.compile(optimizers.RMSprop(1e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **digits(n=960, seed=721).parts(), epochs=6, batch_size=32)


@healthy("conv")
def squeeze_and_excite() -> Training:
    """Depthwise blocks with swish, and sigmoid gates over channels."""
    data = unit(digits(seed=722)).map_x(lambda x: x * 2 - 1)
    inputs = layers.Input((12, 12, 1))
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="silu", name="stem")(inputs)
    for i in (1, 2):
        inner = layers.DepthwiseConv2D(3, padding="same", activation="silu", name=f"depth{i}")(x)
        gate = layers.Dense(4, "silu", name=f"squeeze{i}")(
            layers.GlobalAveragePooling2D(name=f"mean{i}")(inner)
        )
        gate = layers.Reshape((1, 1, 16), name=f"gate{i}")(
            layers.Dense(16, "sigmoid", name=f"excite{i}")(gate)
        )
        inner = layers.Multiply(name=f"scaled{i}")([inner, gate])
        x = layers.Add(name=f"add{i}")([x, layers.Conv2D(16, 1, name=f"project{i}")(inner)])
    x = layers.Flatten(name="flatten")(x)
    model = keras.Model(inputs, layers.Dense(10, name="head")(x))
    model.compile(optimizers.AdamW(3e-3, weight_decay=1e-3), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=6, batch_size=32)


@healthy("conv")
def noise_predicted_by_a_denoiser() -> Training:
    """Diffusion: the target is the noise itself, at a random strength. The loss starts at 1 and falls slowly."""
    rng = np.random.default_rng(723)
    clean = unit(digits(seed=723)).x * 2 - 1
    noise = rng.normal(size=clean.shape).astype("float32")
    level = rng.uniform(0.1, 0.95, (len(clean), 1)).astype("float32")
    share = level[:, :, None, None]
    noisy = (np.sqrt(1 - share**2) * clean + share * noise).astype("float32")
    picture, strength = layers.Input((12, 12, 1), name="picture"), layers.Input((1,), name="strength")
    told = layers.Reshape((1, 1, 16))(layers.Dense(16, "silu", name="told")(strength))
    x = layers.Conv2D(16, 3, padding="same", name="conv1")(picture)
    x = layers.Activation("silu", name="act1")(layers.Add(name="add")([x, told]))
    x = layers.Conv2D(16, 3, padding="same", activation="silu", name="conv2")(x)
    model = keras.Model([picture, strength], layers.Conv2D(1, 3, padding="same", name="head")(x))
    model.compile(optimizers.Adam(2e-3), "mse")
    return Training(model, [noisy, level], noise, ([noisy[:64], level[:64]], noise[:64]), epochs=6)


@healthy("conv")
def early_beats() -> Training:
    """Convolutions over an electrocardiogram in millivolts, whose values are small and mostly flat."""
    stack = [
        layers.Conv1D(16, 5, activation="relu", name="conv1"),
        layers.MaxPooling1D(2, name="pool1"),
        layers.Conv1D(24, 5, activation="relu", name="conv2"),
        layers.GlobalMaxPooling1D(name="pool2"),
    ]
    model = keras.Sequential([layers.Input((48, 1)), *stack, layers.Dense(2, "softmax", name="head")])
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **heartbeats(seed=724).parts(), epochs=6)


@healthy("conv")
def causal_wave() -> Training:
    """Dilated causal convolutions predict the next of sixteen levels at each moment."""
    wave = heartbeats(seed=725).x[..., 0]
    level = np.clip(((wave + 0.4) / 1.5 * 16).astype("int32"), 0, 15)
    inputs = layers.Input((47,), dtype="int32")
    x = layers.Embedding(16, 16, name="embedding")(inputs)
    for i in (1, 2, 4):
        inner = layers.Conv1D(
            16, 2, dilation_rate=i, padding="causal", activation="relu", name=f"dilated{i}"
        )(x)
        x = layers.Add(name=f"add{i}")([x, inner])
    model = keras.Model(inputs, layers.Dense(16, "softmax", name="head")(x))
    model.compile(optimizers.Adam(3e-3), SPARSE)
    return Training(model, level[:, :-1], level[:, 1:], (level[:64, :-1], level[:64, 1:]), epochs=5)


@healthy("recurrent")
def mood_of_reviews() -> Training:
    """Masked words of Zipf's law into a bidirectional LSTM, with clipping and dropout."""
    inner = layers.LSTM(12, dropout=0.2, seed=1, name="lstm", use_cudnn=False)
    model = keras.Sequential(
        [
            layers.Input((24,), dtype="int32"),
            layers.Embedding(200, 16, mask_zero=True, name="embedding"),
            layers.Bidirectional(inner, name="both"),
            layers.Dense(1, "sigmoid", name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3, clipnorm=1.0), "binary_crossentropy", metrics=["accuracy"])
    data = reviews(seed=726).map_y(lambda y: y.astype("float32")[:, None])
    return Training(model, **data.parts(), epochs=6)


@healthy("recurrent")
def sales_of_tomorrow() -> Training:
    """A stacked GRU with layer normalisation and a mean absolute error; the rate falls when the loss stays."""
    model = keras.Sequential(
        [
            layers.Input((28, 1)),
            layers.GRU(24, return_sequences=True, name="gru1"),
            layers.LayerNormalization(name="norm"),
            layers.GRU(16, name="gru2"),
            layers.Dense(1, name="head"),
        ]
    )
    model.compile(optimizers.Adam(5e-3), "mae")
    calm = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.3, patience=1, min_delta=0.02)
    return Training(model, **sales(seed=727).parts(), epochs=8, callbacks=[calm])


@healthy("attention")
def hidden_words() -> Training:
    """Masked words are to be told; all other places have the label -1, which the loss leaves out."""
    rng = np.random.default_rng(728)
    start = rng.integers(1, 6, (512, 1))
    words = (start + np.arange(16) * rng.integers(1, 3, (512, 1))) % 12 + 1
    hidden = rng.random(words.shape) < 0.2
    x = np.where(hidden, 13, words).astype("int32")
    y = np.where(hidden, words, -1).astype("int32")
    inputs = layers.Input((16,), dtype="int32")
    place = Call(lambda x: ops.broadcast_to(ops.arange(16), ops.shape(x)), name="places")(inputs)
    h = layers.Add(name="sum")(
        [layers.Embedding(14, 32, name="words")(inputs), layers.Embedding(16, 32, name="place")(place)]
    )
    for i in (1, 2):
        inner = layers.LayerNormalization(name=f"norm{i}")(h)
        h = layers.Add(name=f"add{i}a")([h, layers.MultiHeadAttention(4, 8, name=f"attn{i}")(inner, inner)])
        wide = layers.Dense(64, "gelu", name=f"up{i}")(layers.LayerNormalization(name=f"norm{i}b")(h))
        h = layers.Add(name=f"add{i}b")([h, layers.Dense(32, name=f"down{i}")(wide)])
    model = keras.Model(inputs, layers.Dense(14, name="head")(h))
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(optimizers.Adam(3e-3), loss)
    return Training(model, x[:448], y[:448], (x[448:], y[448:]), epochs=8)


@healthy("attention")
def vision_transformer() -> Training:
    """Patches with places, two blocks, mean pooling; warm-up and cosine."""
    data = unit(digits(n=960, seed=729))
    inputs = layers.Input((12, 12, 1))
    x = layers.Conv2D(32, 3, strides=3, name="patches")(inputs)
    x = layers.Reshape((16, 32), name="rows")(x)
    place = Call(lambda x: ops.broadcast_to(ops.arange(16), ops.shape(x)[:2]), name="places")(x)
    x = layers.Add(name="sum")([x, layers.Embedding(16, 32, name="place")(place)])
    for i in (1, 2):
        inner = layers.LayerNormalization(name=f"norm{i}a")(x)
        x = layers.Add(name=f"add{i}a")(
            [x, layers.MultiHeadAttention(4, 8, dropout=0.1, name=f"attn{i}")(inner, inner)]
        )
        wide = layers.Dense(64, "gelu", name=f"up{i}")(layers.LayerNormalization(name=f"norm{i}b")(x))
        x = layers.Add(name=f"add{i}b")([x, layers.Dense(32, name=f"down{i}")(wide)])
    x = layers.GlobalAveragePooling1D(name="pool")(layers.LayerNormalization(name="last")(x))
    model = keras.Model(inputs, layers.Dense(10, name="head")(x))
    rate = schedules.CosineDecay(0.0, 240, warmup_target=3e-3, warmup_steps=30)
    model.compile(optimizers.AdamW(rate, weight_decay=0.01), LOGITS, metrics=["accuracy"])
    return Training(model, **data.parts(), epochs=8, batch_size=32)


@healthy("custom")
def molecules_as_graphs() -> Training:
    """Adjacency matrices, mostly zeros, and a custom layer that sums over neighbours."""
    rng = np.random.default_rng(730)
    links = (rng.random((560, 9, 9)) < 0.18).astype("float32")
    links = np.maximum(links, links.transpose(0, 2, 1))
    kinds = np.eye(4, dtype="float32")[rng.integers(0, 4, (560, 9))]
    y = (links.sum((1, 2)) / 9 + kinds[:, :, 0].sum(1) * 0.4)[:, None]
    y = ((y - y.mean()) / y.std()).astype("float32")
    a, b = layers.Input((9, 9), name="links"), layers.Input((9, 4), name="kinds")
    x = layers.Dense(24, "relu", name="atoms")(b)
    for i in (1, 2):
        near = Call(lambda given: ops.matmul(given[0], given[1]), name=f"neighbours{i}")([a, x])
        x = layers.Dense(24, "relu", name=f"mix{i}")(layers.Concatenate(name=f"join{i}")([x, near]))
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model([a, b], layers.Dense(1, name="head")(x))
    model.compile(optimizers.Adam(3e-3), "mse")
    return Training(
        model, [links[:480], kinds[:480]], y[:480], ([links[480:], kinds[480:]], y[480:]), epochs=6
    )
