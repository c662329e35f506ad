"""Faults in tables: units, labels, heads and losses that do not belong together, and too few rows."""

from __future__ import annotations

import keras
import numpy as np
from keras import initializers, layers, optimizers

from diagnosis.case import Training, expect, fault
from diagnosis.data import parted, scaled
from diagnosis.models import SPARSE, mlp
from diagnosis.unseen.data import MORE, grouped, people, split, tamed


@fault("dense", expect("input_not_normalised"), expect("bad_initial_loss"), expect("exploding_gradient"))
def timestamp_beside_ratios(broken: bool) -> Training:
    """The branch of the visit gets the seconds since 1970 and the hour of the day; only the hour was scaled."""
    raw, score = people(seed=9001)
    rng = np.random.default_rng(9001)
    seconds = rng.uniform(1.55e9, 1.65e9, len(raw))
    hour = rng.uniform(-1, 1, len(raw))
    y = (score + 1.5 * hour > 0).astype("float32")[:, None]
    when = np.stack([seconds, hour], 1).astype("float32")
    when = when if broken else scaled(when)
    person, visit = layers.Input((6,), name="person"), layers.Input((2,), name="visit")
    a = layers.Dense(24, "relu", name="person_dense")(person)
    b = layers.Dense(8, "relu", name="visit_dense")(visit)
    x = layers.Dense(16, "relu", name="joined")(layers.Concatenate(name="join")([a, b]))
    model = keras.Model([person, visit], layers.Dense(1, "sigmoid", name="head")(x))
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **split([tamed(raw), when], y, 640), epochs=6, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "head"), expect("label_problem"))
def crossentropy_for_a_temperature(broken: bool) -> Training:
    """A standardised temperature is learned by a sigmoid and the cross-entropy of a yes or no, so the loss goes below zero."""
    raw, score = people(seed=9002)
    y = scaled(score[:, None])
    model = mlp(6, 1, widths=(32, 16), head="sigmoid" if broken else None)
    model.compile(optimizers.Adam(3e-3), "binary_crossentropy" if broken else "mse")
    return Training(model, **parted(tamed(raw), y, 640).parts(), epochs=8, batch_size=32)


@fault("dense", expect("output_loss_mismatch", "head"), expect("label_problem"), expect("wrong_axis", "head"))
def squared_error_on_class_numbers(broken: bool) -> Training:
    """Five probabilities are compared with the number of the class, a column that broadcasts."""
    raw, score = people(seed=9003)
    y = grouped(score, 5)[:, None]
    model = mlp(6, 5, widths=(48, 24))
    model.compile(optimizers.RMSprop(3e-3), "mse" if broken else SPARSE)
    return Training(model, **parted(tamed(raw), y, 640).parts(), epochs=10, batch_size=32)


@fault("dense", expect("nonfinite", "head"), expect("nonfinite"), expect("output_loss_mismatch", "head"))
def poisson_loss_with_a_linear_head(broken: bool) -> Training:
    """The Poisson loss takes the logarithm of the prediction, and the head may predict less than zero."""
    raw, score = people(seed=9004)
    rng = np.random.default_rng(9004)
    y = rng.poisson(np.exp(0.4 + 0.5 * score)).astype("float32")[:, None]
    model = mlp(6, 1, widths=(32, 16), head=None if broken else "softplus")
    model.compile(optimizers.Adam(3e-3), "poisson")
    return Training(model, **parted(tamed(raw), y, 640).parts(), epochs=6, batch_size=32)


@fault("dense", expect("label_problem"), expect("output_loss_mismatch", "head"))
def category_codes_of_minus_one(broken: bool) -> Training:
    """Rows without a category got the code -1, as a data frame gives it. The twin drops these rows."""
    raw, score = people(seed=9005)
    x, y = tamed(raw), grouped(score, 4)
    absent = np.random.default_rng(9005).random(len(y)) < 0.12
    if broken:
        y = np.where(absent, -1, y).astype("int32")
    else:
        x, y = x[~absent], y[~absent]
    model = mlp(6, 4, widths=(40, 20))
    model.compile(optimizers.Adam(5e-3), SPARSE, metrics=["accuracy"])
    return Training(model, **parted(x, y, len(y) - 80).parts(), epochs=10, batch_size=32)


@fault("dense", expect("class_collapse", "head"), expect("class_collapse"))
def class_weights_upside_down(broken: bool) -> Training:
    """Rows weigh by the share of their class where they should weigh by its inverse: 85, 10 and 5 rows of 100."""
    raw, score = people(n=960, seed=9006)
    noisy = score + np.random.default_rng(9006).normal(size=len(score)) * 0.5
    y = np.searchsorted(np.quantile(noisy, [0.85, 0.95]), noisy).astype("int32")
    share = np.bincount(y) / len(y)
    weight = share if broken else 1 / share
    weight = (weight / (weight * share).sum())[y].astype("float32")
    model = mlp(6, 3, widths=(32, 16))
    model.compile(optimizers.Adam(3e-3), SPARSE, weighted_metrics=["accuracy"])
    data = parted(tamed(raw), y, 960)
    return Training(model, **data.parts(), epochs=8, batch_size=32, sample_weight=weight[:960])


@fault("dense", expect("bad_initial_loss", "head"), expect("bad_initial_loss"), step=0)
def prior_with_the_sign_flipped(broken: bool) -> Training:
    """The bias of the head starts at the logarithm of the odds of a rare class, with the sign of the common one."""
    raw, score = people(n=960, seed=9007)
    y = (score > np.quantile(score, 0.95)).astype("float32")[:, None]
    prior = np.log(0.05 / 0.95)
    start = initializers.Constant(-prior if broken else prior)
    model = mlp(6, 1, widths=(32, 16), head="sigmoid", change={"head": {"bias_initializer": start}})
    model.compile(optimizers.SGD(0.05, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return Training(model, **parted(tamed(raw), y, 960).parts(), epochs=10, batch_size=32)


@fault("dense", expect("overfitting"))
def more_genes_than_patients(broken: bool) -> Training:
    """Sixty patients with four hundred genes each, of which eight matter. The twin has measured these eight in 900 patients."""
    rng = np.random.default_rng(9008)
    n, genes = (60, 400) if broken else (900, 8)
    x = rng.normal(size=(n + MORE, genes)).astype("float32")
    odds = x[:, :8].sum(1) * 0.8 + rng.normal(size=n + MORE) * 1.5
    y = (odds > 0).astype("float32")[:, None]
    model = mlp(genes, 1, widths=(64, 32), head="sigmoid")
    model.compile(optimizers.Adam(2e-3), "binary_crossentropy", metrics=["accuracy"])
    epochs = 60 if broken else 5
    return Training(model, **parted(x, y, n).parts(), epochs=epochs, batch_size=16, validates=True)
