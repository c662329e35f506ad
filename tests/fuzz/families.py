"""How to draw the arguments of a layer, and the shape of its output: what the rows of the table in `layers.py` are made of."""

from __future__ import annotations

from collections.abc import Sequence

from fuzz.chance import Args, Chance
from fuzz.kinds import (
    ANY,
    CONSTRAINTS,
    IMAGES,
    ORTHOGONAL,
    R2,
    R3,
    R4,
    R5,
    REGULARIZERS,
    Kind,
    Outputs,
    Shape,
    activation,
    kernel,
)


def same(*shapes: Shape, **possible: Sequence[str]) -> Kind:
    """A layer that keeps the shape. Arguments given as a list of one are always there."""
    must = {name: values[0] for name, values in possible.items() if len(values) == 1}
    rest = {name: values for name, values in possible.items() if len(values) > 1}
    return Kind(shapes or ANY, lambda chance, shape: ({**must, **chance.options(0.5, **rest)}, shape))


def augmentation(eager: bool = False, plain: bool = False, **possible: Sequence[str]) -> Kind:
    kind = same(*IMAGES, **possible)
    return Kind(IMAGES, kind.arguments, accepts=lambda shape: shape[-1] == 3, eager=eager, plain=plain)


def whole(n: int, size: int, stride: int, padding: str) -> int:
    return -(-n // stride) if padding == "same" else (n - size) // stride + 1


def conv(rank: int, *, transpose: bool = False, kernels: tuple[str, ...] = ("kernel",)) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        size, filters = chance.one_of(1, 2, 3), chance.one_of(2, 4)
        stride = chance.one_of(1, 1, 2)
        padding = chance.one_of("same", "valid") if min(shape[:-1]) > 3 else "same"
        args = {
            "filters": str(filters), "kernel_size": str(size), "padding": f"'{padding}'",
            **({"strides": "2"} if stride == 2 else {}), **activation(chance), **kernel(chance, *kernels),
        }  # fmt: skip
        if stride == 1 and not transpose and padding == "same" and kernels == ("kernel",):
            if chance.maybe(0.1):
                args["dilation_rate"] = "2"
            elif chance.backend != "tensorflow" and shape[-1] % 2 == 0 and chance.maybe(0.1):
                args["groups"] = "2"  # TensorFlow has no gradient of it on a CPU
        if transpose:
            out = [n * stride + (max(size - stride, 0) if padding == "valid" else 0) for n in shape[:-1]]
        else:
            out = [whole(n, size, stride, padding) for n in shape[:-1]]
        return args, (*out, filters)

    return Kind({1: R2, 2: R3, 3: R4}[rank], arguments)


def depthwise(rank: int) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        times = chance.one_of(1, 2)
        args = {"kernel_size": "2", "padding": "'same'", "depth_multiplier": str(times)}
        return {**args, **activation(chance), **kernel(chance, "depthwise")}, (*shape[:-1], shape[-1] * times)

    return Kind({1: R2, 2: R3}[rank], arguments)


def pool(rank: int) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        padding = chance.one_of("valid", "same")
        out = [whole(n, 2, 2, padding) for n in shape[:-1]]
        return {"pool_size": "2", "padding": f"'{padding}'"}, (*out, shape[-1])

    return Kind({1: R2, 2: R3, 3: R4}[rank], arguments, accepts=lambda shape: min(shape[:-1]) >= 2)


def global_pool(rank: int) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        if chance.maybe(0.2):
            return {"keepdims": "True"}, (*(1,) * rank, shape[-1])
        return {}, shape[-1:]

    return Kind({1: R2, 2: R3, 3: R4}[rank], arguments)


def adaptive_pool(rank: int) -> Kind:
    return Kind(
        {1: R2, 2: R3, 3: R4}[rank],
        lambda chance, shape: ({"output_size": "2"}, (*(2,) * rank, shape[-1])),
        accepts=lambda shape: min(shape[:-1]) >= 2,
    )


def padded(rank: int, by: int, argument: str) -> Kind:
    return Kind(
        {1: R2, 2: R3, 3: R4}[rank],
        lambda chance, shape: ({argument: "1"}, (*(n + by for n in shape[:-1]), shape[-1])),
        accepts=lambda shape: min(shape[:-1]) > 3,
    )


def upsampling(rank: int) -> Kind:
    return Kind(
        {1: R2, 2: R3, 3: R4}[rank],
        lambda chance, shape: ({"size": "2"}, (*(2 * n for n in shape[:-1]), shape[-1])),
        accepts=lambda shape: max(shape[:-1]) <= 4,
    )


def recurrent_arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    units = chance.one_of(2, 3, 4)
    args = {"units": str(units), **kernel(chance, "kernel", "recurrent")}
    args |= chance.options(
        0.08, dropout=["0.2"], recurrent_dropout=["0.2"], go_backwards=["True"], unroll=["True"]
    )
    sequences = chance.maybe(0.5)
    if sequences:
        args["return_sequences"] = "True"
    return args, (shape[0], units) if sequences else (units,)


def gated(states: int) -> Kind:
    """A recurrent layer, sometimes with its states as further outputs."""

    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        args, out = recurrent_arguments(chance, shape)
        if chance.maybe(0.15):
            state = (int(args["units"]),)
            return {**args, "return_state": "True"}, [out, *[state] * states]  # type: ignore[list-item]
        return args, out

    return Kind(R2, arguments)


def cell(code: str) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        units = chance.one_of(2, 3)
        cells = code.replace("UNITS", str(units))
        sequences = chance.maybe(0.5)
        args = {"cell": cells, **({"return_sequences": "True"} if sequences else {})}
        return args, (shape[0], units) if sequences else (units,)

    return Kind(R2, arguments, name="RNN")


def conv_lstm(rank: int) -> Kind:
    def arguments(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
        filters = chance.one_of(1, 2)
        args = {"filters": str(filters), "kernel_size": "2", "padding": "'same'"}
        if chance.maybe(0.5):
            return {**args, "return_sequences": "True"}, (*shape[:-1], filters)
        return args, (*shape[1:-1], filters)

    return Kind({1: ((3, 4, 2),), 2: ((2, 4, 4, 2),), 3: R5}[rank], arguments)


def merging(*, number: int = 2) -> Kind:
    return Kind(ANY, lambda chance, shape: ({}, shape), inputs=number, call="list")


def normalization(*shapes: Shape, **possible: Sequence[str]) -> Kind:
    return same(*shapes, epsilon=["0.01", "0.001"], **possible)


def dense(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    units = chance.one_of(2, 4, 6, 8)
    args = {"units": str(units), **activation(chance), **kernel(chance)}
    if "kernel_regularizer" not in args and chance.maybe(0.02):
        args["kernel_regularizer"] = ORTHOGONAL
    elif chance.maybe(0.04) and chance.backend != "distributed":
        args["lora_rank"] = "2"
    return args, (*shape[:-1], units)


def einsum(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    last = shape[-1] if len(shape) == 1 else None
    out = f"({shape[0]}, 3)" if last is None else "3"
    equation = "'abc,cd->abd'" if last is None else "'ab,bc->ac'"
    args = {"equation": equation, "output_shape": out, **activation(chance), **kernel(chance, bias=False)}
    return {**args, **chance.options(0.5, bias_axes=["'d'" if last is None else "'c'"])}, (*shape[:-1], 3)


def embedding(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    width = chance.one_of(2, 3, 4)
    args = {"input_dim": "8", "output_dim": str(width)}
    args |= chance.options(0.4, mask_zero=["True"]) | chance.options(0.1, embeddings_regularizer=REGULARIZERS)
    return args | chance.options(0.1, embeddings_constraint=CONSTRAINTS), (*shape, width)


def concatenate(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    return {"axis": "-1"}, (*shape[:-1], 2 * shape[-1])


def dot(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    normalized = chance.options(0.3, normalize=["True"])
    return {"axes": "-1", **normalized}, (1,) if len(shape) == 1 else (shape[0], shape[0])


def attention(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    args = {"num_heads": chance.one_of("1", "2"), "key_dim": "2", **chance.options(0.2, dropout=["0.2"])}
    return {**args, **kernel(chance)}, shape


def grouped_attention(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    args = {"head_dim": "2", "num_query_heads": "2", "num_key_value_heads": chance.one_of("1", "2")}
    return {**args, **chance.options(0.2, dropout=["0.2"])}, shape


def reshape(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    if len(shape) == 1:
        new: Shape = (2, shape[0] // 2) if shape[0] % 2 == 0 else (shape[0], 1)
    else:
        new = (shape[0] * shape[1], *shape[2:]) if len(shape) > 2 else (shape[0] * shape[1],)
    return {"target_shape": repr(new)}, new


def permute(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    order = [*range(2, len(shape) + 1), 1]
    return {"dims": repr(tuple(order))}, tuple(shape[i - 1] for i in order)


def bidirectional(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    which, units = chance.one_of("LSTM", "GRU", "SimpleRNN"), chance.one_of(2, 3)
    sequences, merge = chance.maybe(0.5), chance.one_of("concat", "sum", "mul", "ave")
    args = {"layer": f"layers.{which}({units}, return_sequences={sequences})", "merge_mode": f"'{merge}'"}
    width = 2 * units if merge == "concat" else units
    return args, (shape[0], width) if sequences else (width,)


def time_distributed(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    if len(shape) == 3:
        return {"layer": "layers.Conv1D(2, 2, padding='same')"}, (*shape[:-1], 2)
    return chance.one_of(
        ({"layer": "layers.Dense(3, activation='relu')"}, (shape[0], 3)),
        ({"layer": "keras.Sequential([layers.Dense(3), layers.Dropout(0.2)])"}, (shape[0], 3)),
    )


def spectral(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    if len(shape) == 3:
        return {"layer": "layers.Conv2D(2, 2, padding='same')"}, (*shape[:-1], 2)
    return {"layer": "layers.Dense(4)", "power_iterations": chance.one_of("1", "2")}, (*shape[:-1], 4)


def upright(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    return {"height": "4", "width": "3"}, (4, 3, shape[-1])


def category(chance: Chance, shape: Shape) -> tuple[Args, Outputs]:
    mode = chance.one_of("multi_hot", "count")
    return {"num_tokens": "8", "output_mode": f"'{mode}'"}, (8,)


def separable(rank: int) -> Kind:
    return conv(rank, kernels=("depthwise", "pointwise"))


OWN = '''
class Scaled(layers.Layer):
    """A layer of one's own: a weight, a layer inside, a loss, randomness and a tap."""

    def __init__(self, units=3, loss=0.0, noise=0.0, tap=False, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.loss, self.noise, self.tap = layers.Dense(units, name="inner"), loss, noise, tap
        self.seeds = keras.random.SeedGenerator(7)

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.inner.build(shape)

    def call(self, x, training=False):
        if self.noise and training:
            x = x + self.noise * keras.random.normal(keras.ops.shape(x), dtype=x.dtype, seed=self.seeds)
        if training:
            self.count.assign_add(1)
        x = x * keras.ops.cast(self.scale, x.dtype)
        if self.tap:
            fs.tap("scaled", x)
        if self.loss:
            self.add_loss(self.loss * keras.ops.mean(keras.ops.square(x)))
        return self.inner(x)

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.inner.units)
'''

JAX_LAYER = """
def jax_init(rng, inputs, training):
    return {"w": jax.random.normal(rng, (inputs.shape[-1], 3)) * 0.1}, {}


def jax_call(params, state, rng, inputs, training):
    return inputs @ params["w"], state
"""

IN_TF = (
    "a layer of strings or hashes runs TensorFlow operations, which a step of another backend cannot trace"
)
SMALL = ["0.2", "0.5"]
RANGE = ["(0.0, 1.0)"]
