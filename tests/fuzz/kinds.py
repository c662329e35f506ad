"""What the fuzzer knows of a layer (`Kind`), examples of inputs, and the arguments that many layers share.

Nothing here imports Keras: a drawn model is plain data, and argument values are Python expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fuzz.chance import Args, Chance

Shape = tuple[int, ...]  #: of one sample
UNKNOWN: Shape = (-1,)  #: an output whose shape nobody computes here: it is flattened next

R1: Sequence[Shape] = ((4,), (6,))
R2: Sequence[Shape] = ((6, 4), (4, 2))
R3: Sequence[Shape] = ((6, 6, 3), (4, 6, 2))
R4: Sequence[Shape] = ((4, 4, 4, 2),)
R5: Sequence[Shape] = ((2, 4, 4, 4, 2),)
IMAGES: Sequence[Shape] = ((8, 8, 3),)
ANY = (*R1, *R2, *R3)

Outputs = Shape | list[Shape]
Arguments = Callable[[Chance, Shape], tuple[Args, Outputs]]


@dataclass(frozen=True)
class Kind:
    """How to draw one layer."""

    shapes: Sequence[
        Shape
    ]  #: examples of inputs; other shapes of the same rank fit too, if `accepts` says so
    arguments: Arguments  #: its arguments for an input of this shape, and the shape of its output
    takes: str = "float"  #: the type of its input: float, int or string
    inputs: int = 1  #: how many tensors of one shape it takes
    gives: str = "float"  #: the type of its output
    call: str = "one"  #: how it takes them: "one", "list", "tuple" or "args"
    name: str = ""  #: the class to write, where this kind is an argument of another layer
    accepts: Callable[[Shape], bool] = lambda shape: True
    only: tuple[str, ...] = ("jax", "tensorflow", "torch")
    why_only: str = ""  #: why not on the other backends
    calling: Callable[[Chance], Args] = field(default=lambda chance: {})  #: arguments of the call itself
    prelude: str = ""  #: what the program has to define first
    eager: bool = False  #: only in eager steps
    plain: bool = False  #: its class does not take the options that all other layers have

    def fits(self, shape: Shape, takes: str) -> bool:
        ranks = {len(example) for example in self.shapes}
        return takes == self.takes and shape != UNKNOWN and len(shape) in ranks and self.accepts(shape)


# ---- arguments that many layers share -------------------------------------------------------------------------

ACTIVATIONS = [
    "celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "linear",
    "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus",
    "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "tanh", "tanh_shrink",
]  # fmt: skip
REGULARIZERS = [
    "keras.regularizers.L1(0.01)", "keras.regularizers.L2(0.01)", "keras.regularizers.L1L2(0.01, 0.02)", "'l2'",
]  # fmt: skip
ORTHOGONAL = "keras.regularizers.OrthogonalRegularizer(0.01)"
CONSTRAINTS = [
    "keras.constraints.MaxNorm(1.0)", "keras.constraints.MinMaxNorm(0.1, 1.0)", "keras.constraints.NonNeg()",
    "keras.constraints.UnitNorm()",
]  # fmt: skip
INITIALIZERS = [
    "'glorot_normal'", "'he_normal'", "'he_uniform'", "'lecun_normal'", "'lecun_uniform'", "'orthogonal'", "'random_normal'",
    "'truncated_normal'", "keras.initializers.VarianceScaling(0.5)", "keras.initializers.Constant(0.1)", "'ones'",
]  # fmt: skip


def activation(chance: Chance, probability: float = 0.5) -> Args:
    return chance.options(probability, activation=[f"'{chance.member(ACTIVATIONS)}'"])


def kernel(chance: Chance, *names: str, bias: bool = True) -> Args:
    """Options of a layer with weights."""
    found: Args = {}
    for name in names or ("kernel",):
        found |= chance.options(
            0.08,
            **{
                f"{name}_regularizer": REGULARIZERS,
                f"{name}_constraint": CONSTRAINTS,
                f"{name}_initializer": INITIALIZERS,
            },
        )
    found |= chance.options(0.06, activity_regularizer=REGULARIZERS)
    if bias:
        found |= chance.options(0.06, use_bias=["False"], bias_regularizer=REGULARIZERS)
    return found


def common(chance: Chance) -> Args:
    """Options that every layer has."""
    return chance.options(0.03, trainable=["False"]) | chance.options(0.02, dtype=["'float32'"])
