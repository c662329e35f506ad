"""Healthy trainings on glyphs: norms, augmentation, half precision, patches, codes, pairs, noise, and tuning of trained nets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, losses, ops, optimizers
from keras.optimizers import schedules

from diagnosis.case import Training, healthy
from diagnosis.models import LOGITS, SPARSE, OwnStep
from diagnosis.unseen.toys import glyphs, species


@healthy("conv")
def glyphs_moved_and_dropped() -> Training:
    """Augmentation in the model, batch norm at its defaults, dropout before the head; the loss is noisy for it."""
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.RandomTranslation(0.1, 0.1, fill_mode="constant", name="move"),
            layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False, name="conv1"),
            layers.BatchNormalization(name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Conv2D(24, 3, strides=2, padding="same", use_bias=False, name="conv2"),
            layers.BatchNormalization(name="norm2"),
            layers.ReLU(name="relu2"),
            layers.Flatten(name="flat"),
            layers.Dropout(0.4, name="drop"),
            layers.Dense(5, "softmax", name="sign"),
        ]
    )
    model.compile(optimizers.SGD(0.05, momentum=0.9), SPARSE, metrics=["accuracy"])
    return Training(model, **glyphs(seed=1301).parts(), epochs=16, batch_size=16, validates=True)


@healthy("conv")
def glyphs_in_dense_blocks_of_float16() -> Training:
    """Each convolution sees the outputs of all before it; mixed_float16 with the loss scale that Keras adds."""
    half = {"dtype": "mixed_float16"}
    x = inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(12, 3, strides=2, padding="same", name="stem", **half)(x)
    for i in range(4):
        y = layers.BatchNormalization(momentum=0.9, name=f"norm{i}", **half)(x)
        y = layers.Conv2D(8, 3, padding="same", name=f"grow{i}", **half)(layers.ReLU(**half)(y))
        x = layers.Concatenate(name=f"join{i}", **half)([x, y])
    x = layers.GlobalAveragePooling2D(name="pool", **half)(layers.ReLU(**half)(x))
    model = keras.Model(inputs, layers.Dense(5, name="sign", dtype="float32")(x))
    model.compile(optimizers.LossScaleOptimizer(optimizers.Adam(4e-3)), LOGITS, metrics=["accuracy"])
    return Training(model, **glyphs(400, seed=1302).parts(), epochs=12, batch_size=20)


@healthy("attention")
def glyphs_by_patches_and_a_class_token() -> Training:
    inputs = keras.Input((12, 12, 1))
    x = layers.Conv2D(32, 3, strides=3, name="patches")(inputs)
    x = layers.Reshape((16, 32), name="row")(x)
    x = layers.ZeroPadding1D((1, 0), name="class_token")(x)
    x = x + layers.Embedding(17, 32, name="places")(ops.arange(17)[None])
    for i in range(2):
        y = layers.LayerNormalization(name=f"norm{i}a")(x)
        y = layers.MultiHeadAttention(4, 8, dropout=0.05, name=f"attn{i}")(y, y)
        x = layers.Add(name=f"add{i}a")([x, y])
        y = layers.LayerNormalization(name=f"norm{i}b")(x)
        y = layers.Dense(32, name=f"down{i}")(layers.Dense(64, "gelu", name=f"up{i}")(y))
        x = layers.Add(name=f"add{i}b")([x, y])
    x = layers.LayerNormalization(name="norm")(x[:, 0])
    model = keras.Model(inputs, layers.Dense(5, name="sign")(x))
    rate = schedules.CosineDecay(0.0, 300, warmup_target=2e-3, warmup_steps=40)
    loss = losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(optimizers.AdamW(rate, weight_decay=0.05), loss, metrics=["accuracy"])
    data = glyphs(seed=1303).map_y(lambda y: np.eye(5, dtype="float32")[y])
    return Training(model, **data.parts(), epochs=12, batch_size=16)


@healthy("custom")
def code_of_a_glyph() -> Training:
    """A variational autoencoder of convolutions; the weight of the divergence grows over the first 100 steps."""

    class Sampled(layers.Layer):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.seed = keras.random.SeedGenerator(7)
            self.step = self.add_weight((), "zeros", trainable=False, name="step")

        def call(self, x: Any, training: bool = False) -> Any:
            mean, spread = ops.split(x, 2, axis=-1)
            if not training:
                return mean
            self.step.assign(self.step + 1)
            weight = ops.minimum(self.step / 100, 1.0)
            apart = -0.5 * ops.mean(ops.sum(1 + spread - mean**2 - ops.exp(spread), axis=-1))
            self.add_loss(weight * apart)
            return mean + ops.exp(spread / 2) * keras.random.normal(ops.shape(mean), seed=self.seed)

        def compute_output_shape(self, shape: Any) -> Any:
            return (*shape[:-1], shape[-1] // 2)

    def pixels(y: Any, p: Any) -> Any:
        return ops.sum(losses.binary_crossentropy(y, p), axis=(1, 2))

    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(12, 3, strides=2, padding="same", activation="silu", name="down1"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="silu", name="down2"),
            layers.Flatten(name="flat"),
            layers.Dense(8, name="both"),
            Sampled(name="code"),
            layers.Dense(144, "silu", name="wide"),
            layers.Reshape((3, 3, 16), name="square"),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="silu", name="up1"),
            layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid", name="up2"),
        ]
    )
    model.compile(optimizers.Adam(3e-3), pixels)
    x = glyphs(seed=1304)
    return Training(model, x.x, x.x, (x.validation[0], x.validation[0]), epochs=10, batch_size=20)


@healthy("custom")
def two_views_of_a_glyph() -> Training:
    """SimCLR: of 64 pictures in a batch, find the other view of the same one; the views are noise and erased rows."""
    data = glyphs(640, seed=1305)
    rng = np.random.default_rng(3)

    def view(x: Any) -> Any:
        x = x + 0.1 * rng.normal(size=x.shape)
        for i, row in enumerate(rng.integers(0, 10, len(x))):
            x[i, row : row + 2] = 0
        return x.astype("float32")

    class Views(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            both = ops.concatenate(self(x, training=True), axis=0)
            n = ops.shape(both)[0]
            alike = ops.matmul(both, ops.transpose(both)) / 0.2 - 1e9 * ops.eye(n)
            other = ops.roll(ops.arange(n), n // 2)
            return ops.mean(losses.sparse_categorical_crossentropy(other, alike, from_logits=True))

    encoder = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(24, 3, strides=2, activation="relu", name="conv2"),
            layers.Flatten(name="flat"),
            layers.Dense(32, "relu", name="project1"),
            layers.Dense(16, name="project2"),
            layers.UnitNormalization(name="unit"),
        ],
        name="encoder",
    )
    one, other = keras.Input((12, 12, 1)), keras.Input((12, 12, 1))
    model = Views([one, other], [encoder(one), encoder(other)])
    model.compile(optimizers.Adam(2e-3))
    return Training(
        model, [view(data.x), view(data.x)], np.zeros((640, 1), "float32"), epochs=15, batch_size=32
    )


@healthy("custom")
def same_sign_or_another() -> Training:
    """Two pictures through one encoder; a logistic unit over the difference of the codes. Half of the pairs are alike."""
    data = glyphs(900, seed=1306)
    rng = np.random.default_rng(4)
    first, second = rng.integers(0, 700, 960), np.zeros(960, int)
    for i, one in enumerate(first):
        same = data.y[:700] == data.y[one]
        second[i] = rng.choice(np.flatnonzero(same if i % 2 else ~same))
    y = (data.y[first] == data.y[second]).astype("float32")[:, None]
    encoder = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(12, 3, strides=2, activation="relu", name="conv"),
            layers.Flatten(name="flat"),
            layers.Dense(24, "tanh", name="code"),
        ],
        name="encoder",
    )
    one, other = keras.Input((12, 12, 1)), keras.Input((12, 12, 1))
    apart = ops.abs(encoder(one) - encoder(other))
    model = keras.Model([one, other], layers.Dense(1, "sigmoid", name="alike")(apart))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    x = [data.x[first], data.x[second]]
    held = ([one[800:] for one in x], y[800:])
    return Training(model, [one[:800] for one in x], y[:800], held, epochs=12, batch_size=32)


@healthy("custom")
def points_of_a_ring_from_noise() -> Training:
    """A denoiser of points in the plane, told how much noise there is; the noise is new in each step, the weights averaged."""
    rng = np.random.default_rng(1307)
    angle = rng.uniform(0, 2 * np.pi, 1280)
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) * (1 + 0.05 * rng.normal(size=(1280, 1)))
    ring = (ring / ring.std()).astype("float32")

    class Denoiser(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            n = ops.shape(x)[0]
            seed = self.get_layer("noise").seed_generator
            time = keras.random.uniform((n, 1), seed=seed) * (np.pi / 2)
            noise = keras.random.normal((n, 2), seed=seed)
            mixed = ops.cos(time) * x + ops.sin(time) * noise
            told = self.net(
                ops.concatenate([mixed, ops.cos(time), ops.sin(time), ops.cos(2 * time)], axis=-1)
            )
            return ops.mean((told - noise) ** 2)

    net = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(64, "silu", name="h1"),
            layers.Dense(64, "silu", name="h2"),
            layers.Dense(64, "silu", name="h3"),
            layers.Dense(2, name="told"),
        ],
        name="net",
    )
    inputs = keras.Input((2,))
    noisy = layers.GaussianNoise(0.1, name="noise")(inputs)
    steps = layers.ZeroPadding1D((0, 3))(layers.Reshape((2, 1))(noisy))
    model = Denoiser(inputs, net(layers.Flatten()(steps)))
    model.net = net
    model.compile(optimizers.Adam(2e-3, use_ema=True, ema_momentum=0.98))
    return Training(model, ring, np.zeros((1280, 1), "float32"), epochs=25, batch_size=64)


@healthy("custom")
def ring_by_two_players() -> Training:
    """A least-squares GAN: the gradient is turned around between the judge and the maker, as both learn at once."""
    rng = np.random.default_rng(1308)
    angle = rng.uniform(0, 2 * np.pi, 1280)
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) + 0.05 * rng.normal(size=(1280, 2))

    class Players(OwnStep):
        def objective(self, x: Any, y: Any) -> Any:
            real, noise = x
            maker, judge = self.get_layer("maker"), self.get_layer("judge")
            made = maker(noise, training=True)
            turned = 2 * ops.stop_gradient(made) - made
            return ops.mean((judge(real) - 1) ** 2) + ops.mean((judge(turned) + 1) ** 2)

    maker = keras.Sequential(
        [
            keras.Input((4,)), layers.Dense(32, "relu", name="m1"), layers.Dense(32, "relu", name="m2"),
            layers.Dense(2, name="m3"),
        ],
        name="maker",
    )  # fmt: skip
    judge = keras.Sequential(
        [
            keras.Input((2,)), layers.Dense(32, "leaky_relu", name="j1"), layers.Dense(32, "leaky_relu", name="j2"),
            layers.Dense(1, name="j3"),
        ],
        name="judge",
    )  # fmt: skip
    real, noise = keras.Input((2,)), keras.Input((4,))
    model = Players([real, noise], [judge(real), maker(noise)])
    model.compile(optimizers.Adam(1e-3, beta_1=0.5))
    given = [ring.astype("float32"), rng.normal(size=(1280, 4)).astype("float32")]
    return Training(model, given, np.zeros((1280, 1), "float32"), epochs=30, batch_size=64)


def trained(seed: int) -> tuple[Any, Any]:
    """A net that tells the first three signs of six, and the data of all."""
    data = glyphs(800, classes=6, seed=seed)
    base = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1"),
            layers.Conv2D(24, 3, activation="relu", name="conv2"),
            layers.Flatten(name="flat"),
            layers.Dense(48, "relu", name="fc"),
        ],
        name="base",
    )
    low = data.y < 3
    first = keras.Sequential([base, layers.Dense(3, "softmax")])
    first.compile(optimizers.Adam(2e-3), SPARSE)
    first.fit(data.x[low], data.y[low], epochs=4, batch_size=32, verbose=0)
    return base, data


@healthy("conv")
def thawed_base_at_a_tiny_rate() -> Training:
    """The new head was trained on the frozen base before; now all of it is tuned at 2e-5."""
    base, data = trained(1309)
    high = data.y >= 3
    base.trainable = False
    model = keras.Sequential([base, layers.Dense(3, "softmax", name="head")])
    model.compile(optimizers.Adam(3e-3), SPARSE)
    model.fit(data.x[high], data.y[high] - 3, epochs=20, batch_size=32, verbose=0)
    base.trainable = True
    model.compile(optimizers.Adam(2e-5), SPARSE, metrics=["accuracy"])
    held = data.validation[1] >= 3
    validation = (data.validation[0][held], data.validation[1][held] - 3)
    return Training(
        model, data.x[high], data.y[high] - 3, validation, epochs=12, batch_size=32, validates=True
    )


@healthy("conv")
def new_head_and_low_rank_changes() -> Training:
    """LoRA: the dense layer of a trained base gets a change of rank four; the base is frozen, the head is new."""
    base, data = trained(1310)
    for layer in base.layers:
        layer.trainable = False
    base.get_layer("fc").enable_lora(4)
    base.get_layer("fc").trainable = True
    high = data.y >= 3
    model = keras.Sequential([base, layers.Dense(3, name="head")])
    model.compile(optimizers.AdamW(3e-3), LOGITS, metrics=["accuracy"])
    held = data.validation[1] >= 3
    validation = (data.validation[0][held], data.validation[1][held] - 3)
    return Training(model, data.x[high], data.y[high] - 3, validation, epochs=10, batch_size=20)


class Kept(keras.constraints.Constraint):
    """Holds the weights at zero that were pruned."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __call__(self, w: Any) -> Any:
        return w * ops.convert_to_tensor(self.kept)


@healthy("dense")
def seven_weights_of_ten_are_pruned() -> Training:
    """Start and training of a sparse net: 70 % of the weights are zero and stay so; the others start larger for it."""
    rng = np.random.default_rng(1311)
    stack: list[Any] = [keras.Input((10,))]
    for name, rows in (("h1", 10), ("h2", 80)):
        kept = (rng.random((rows, 80)) < 0.3).astype("float32")
        start = kept * rng.normal(size=kept.shape) * np.sqrt(2 / (0.3 * rows))
        layer = layers.Dense(80, "relu", name=name, kernel_constraint=Kept(kept))
        layer.build((None, rows))
        layer.set_weights([start, np.zeros(80)])
        stack.append(layer)
    model = keras.Sequential([*stack, layers.Dense(4, "softmax", name="head")])
    model.compile(optimizers.Adam(2e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **species(seed=1311).parts(), epochs=12, batch_size=20)
