"""Every public optimizer, loss and metric of Keras, with what to write for it, or why it cannot be drawn. A test compares them with Keras.

A loss says what targets it wants and what the last layer has to give; metrics are grouped by the targets they can be asked about.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.chance import Args, Chance

# ---- optimizers --------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, dict[str, list[str]]] = {
    "Adadelta": {"rho": ["0.9"]},
    "Adafactor": {"relative_step": ["False"]},
    "Adagrad": {},
    "Adam": {"amsgrad": ["True"]},
    "AdamW": {"amsgrad": ["True"]},
    "Adamax": {},
    "Ftrl": {"l1_regularization_strength": ["0.01"]},
    "Lamb": {},
    "Lion": {},
    "MultiOptimizer": {},
    "Muon": {},
    "Nadam": {},
    "RMSprop": {"momentum": ["0.9"], "centered": ["True"]},
    "SGD": {"momentum": ["0.9"], "nesterov": ["True"]},
    "ScheduleFreeAdamW": {"warmup_steps": ["1"]},
}
NO_OPTIMIZERS = {
    "LossScaleOptimizer": "wraps another optimizer: drawn around any of them",
    "Optimizer": "the base class",
    "OptimizerMap": "an argument of MultiOptimizer, drawn with it",
}
SCHEDULES = [
    "keras.optimizers.schedules.CosineDecay(0.01, 3)", "keras.optimizers.schedules.CosineDecayRestarts(0.01, 2)",
    "keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)", "keras.optimizers.schedules.InverseTimeDecay(0.01, 2, 0.5)",
    "keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.01, 0.005, 0.001])",
    "keras.optimizers.schedules.PolynomialDecay(0.01, 3)",
]  # fmt: skip


def optimizer(chance: Chance, policy: str) -> dict[str, object]:
    """An optimizer: its name, its arguments, and whether a LossScaleOptimizer is around it."""
    name = chance.member(list(OPTIMIZERS))
    if name == "MultiOptimizer":
        return {"name": name, "args": {}, "scaled": False}
    args: Args = {"learning_rate": chance.member(SCHEDULES) if chance.maybe(0.2) else "0.01"}
    args |= chance.options(0.3, **OPTIMIZERS[name])
    if "nesterov" in args:
        args["momentum"] = "0.9"
    if chance.maybe(0.2):
        args |= chance.one_of({"clipnorm": "0.5"}, {"clipvalue": "0.1"}, {"global_clipnorm": "0.5"})
    if chance.maybe(0.15):
        args |= {"use_ema": "True", **chance.options(0.5, ema_overwrite_frequency=["2"])}
    args |= chance.options(0.15, gradient_accumulation_steps=["2"], weight_decay=["0.01"])
    args |= chance.options(0.05, loss_scale_factor=["8.0"])
    scaled = policy == "mixed_float16" or chance.maybe(0.05)
    return {"name": name, "args": args, "scaled": scaled}


# ---- losses and metrics ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """A loss: the targets it wants, and what the last layer gives."""

    targets: str  #: a key of TARGETS
    activations: tuple[str, ...] = ("linear",)
    args: tuple[tuple[str, str], ...] = ()  #: always
    options: tuple[tuple[str, str], ...] = ()  #: sometimes
    sequences: bool = True  #: it takes a prediction for each time step


#: What targets look like: n samples, `lead` further dimensions, k numbers or classes.
TARGETS = {
    "real": "rng.normal(size=(N, *LEAD, K)).astype('float32')",
    "positive": "rng.uniform(0.1, 2.0, (N, *LEAD, K)).astype('float32')",
    "binary": "rng.integers(0, 2, (N, *LEAD, K)).astype('float32')",
    "sign": "(2 * rng.integers(0, 2, (N, *LEAD, K)) - 1).astype('float32')",
    "class": "rng.integers(0, K, (N, *LEAD)).astype('int32')",
    "one_hot": "np.eye(K, dtype='float32')[rng.integers(0, K, (N, *LEAD))]",
    "share": "rng.dirichlet(np.ones(K), (N, *LEAD)).astype('float32')",
    "labels": "rng.integers(1, K, (N, 2)).astype('int32')",
}

_SOFT, _LOGITS = ("softmax",), (("from_logits", "True"),)
LOSSES: dict[str, list[Loss]] = {
    "BinaryCrossentropy": [Loss("binary", ("sigmoid",), options=(("label_smoothing", "0.1"),)), Loss("binary", args=_LOGITS)],
    "BinaryFocalCrossentropy": [Loss("binary", ("sigmoid",)), Loss("binary", args=_LOGITS)],
    "CTC": [Loss("labels", ("linear",))],
    "CategoricalCrossentropy": [Loss("one_hot", _SOFT, options=(("label_smoothing", "0.1"),)), Loss("one_hot", args=_LOGITS)],
    "CategoricalFocalCrossentropy": [Loss("one_hot", _SOFT), Loss("one_hot", args=_LOGITS)],
    "CategoricalGeneralizedCrossEntropy": [Loss("class", _SOFT, sequences=False)],
    "CategoricalHinge": [Loss("one_hot", ("linear", "tanh"))],
    "Circle": [Loss("class", args=(("gamma", "4.0"),), sequences=False)],
    "CosineSimilarity": [Loss("real")],
    "Dice": [Loss("binary", ("sigmoid",))],
    "Hinge": [Loss("sign", ("tanh", "linear"))],
    "Huber": [Loss("real", options=(("delta", "0.5"),))],
    "KLDivergence": [Loss("share", _SOFT)],
    "LogCosh": [Loss("real")],
    "MeanAbsoluteError": [Loss("real")],
    "MeanAbsolutePercentageError": [Loss("positive")],
    "MeanSquaredError": [Loss("real", ("linear", "tanh", "relu"))],
    "MeanSquaredLogarithmicError": [Loss("positive", ("softplus",))],
    "Poisson": [Loss("positive", ("softplus",))],
    "SparseCategoricalCrossentropy": [Loss("class", _SOFT, options=(("ignore_class", "0"),)), Loss("class", args=_LOGITS)],
    "SquaredHinge": [Loss("sign", ("tanh",))],
    "Tversky": [Loss("binary", ("sigmoid",))],
}  # fmt: skip
NO_LOSSES = {"Loss": "the base class"}

#: Metrics by the targets they understand. K is the number of outputs.
METRICS: dict[str, dict[str, str]] = {
    "real": {
        "ConcordanceCorrelation": "", "CosineSimilarity": "", "LogCoshError": "", "MeanAbsoluteError": "", "MeanSquaredError": "",
        "PearsonCorrelation": "", "R2Score": "", "RootMeanSquaredError": "", "MeanMetricWrapper": "keras.losses.mean_squared_error",
        "Accuracy": "",
    },
    "positive": {"MeanAbsolutePercentageError": "", "MeanSquaredLogarithmicError": "", "Poisson": ""},
    "binary": {
        "AUC": "num_thresholds=5", "BinaryAccuracy": "", "BinaryCrossentropy": "", "BinaryIoU": "", "FBetaScore": "threshold=0.5",
        "FalseNegatives": "", "FalsePositives": "", "Precision": "", "PrecisionAtRecall": "0.5, num_thresholds=5", "Recall": "",
        "RecallAtPrecision": "0.5, num_thresholds=5", "SensitivityAtSpecificity": "0.5, num_thresholds=5",
        "SpecificityAtSensitivity": "0.5, num_thresholds=5", "TrueNegatives": "", "TruePositives": "",
    },
    "sign": {"Hinge": "", "SquaredHinge": ""},
    "class": {
        "SparseCategoricalAccuracy": "", "SparseCategoricalCrossentropy": "", "SparseTopKCategoricalAccuracy": "k=2",
        "MeanIoU": "K, sparse_y_pred=False", "IoU": "K, [0], sparse_y_pred=False",
    },
    "one_hot": {
        "CategoricalAccuracy": "", "CategoricalCrossentropy": "", "CategoricalHinge": "", "F1Score": "", "OneHotIoU": "K, [0]",
        "OneHotMeanIoU": "K", "TopKCategoricalAccuracy": "k=2",
    },
    "share": {"KLDivergence": ""},
    "labels": {},
}  # fmt: skip
NO_METRICS = {
    "Mean": "takes one value and no targets: the custom training steps keep one",
    "Sum": "takes one value and no targets, as Mean does",
    "Metric": "the base class",
}
#: Metrics that want a table of samples by numbers, not sequences.
FLAT_METRICS = ("F1Score", "FBetaScore", "R2Score", "ConcordanceCorrelation", "PearsonCorrelation")


def loss(chance: Chance, sequence: bool, policy: str) -> dict[str, object]:
    """A loss for one output: its code, the targets it wants, and the activation of the last layer."""
    while True:
        name = chance.member(list(LOSSES))
        kind = chance.member(LOSSES[name])
        if (sequence and not kind.sequences) or (not sequence and name == "CTC"):
            continue
        break
    args = dict(kind.args) | {key: value for key, value in kind.options if chance.maybe(0.2)}
    if name not in ("CTC",) and chance.maybe(0.1):
        args["reduction"] = chance.one_of("'sum'", "'mean_with_sample_weight'")
    units = chance.one_of(2, 3) if kind.targets != "labels" else 4
    if kind.targets in ("real", "binary", "positive", "sign") and chance.maybe(0.3):
        units = 1
    known = METRICS[kind.targets]
    if sequence:
        known = {metric: code for metric, code in known.items() if metric not in FLAT_METRICS}
    metrics = [
        f"keras.metrics.{metric}({code.replace('K', str(units))})"
        for metric, code in chance.some(list(known.items()), 2)
    ]
    return {
        "name": name, "args": args, "targets": kind.targets, "units": units, "activation": chance.member(kind.activations),
        "metrics": metrics,
    }  # fmt: skip
