"""Row 12: predictions, targets and the loss of each sample. Compared with the training written by hand, to float32's precision; identities
and the order of rows exactly."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import by_hand
import fitscope as fs

CLASS_WEIGHT = {0: 0.5, 1: 3.0, 2: 1.0}
REDUCTIONS = ["sum_over_batch_size", "sum", "mean_with_sample_weight"]


def weighting(kind: str, y: np.ndarray) -> tuple[dict, np.ndarray]:
    """How fit is told of the weights, and what they are for each sample."""
    if kind == "class_weight":
        return {"class_weight": CLASS_WEIGHT}, np.array([CLASS_WEIGHT[c] for c in y])
    if kind == "sample_weight":
        weight = np.linspace(0.1, 2, len(y)).astype("float32")
        return {"sample_weight": weight}, weight.astype(float)
    return {}, np.ones(len(y))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ["none", "class_weight", "sample_weight"])
def test_sample_losses_average_to_the_loss_of_the_batch(watch_fit, tools, kind, reduction):
    x, y = by_hand.data()
    told, weight = weighting(kind, y)
    loss = {"from_logits": True, "reduction": reduction}
    seen = watch_fit(
        lambda: tools.make(keras.losses.SparseCategoricalCrossentropy(**loss)), x, y, epochs=2, **told,
        watch=[fs.loss(per_sample=True), fs.predictions(), fs.targets()],
    )  # fmt: skip
    by = by_hand.train(by_hand.weights(), x, y, epochs=2, weight=weight, reduction=reduction)
    samples, losses = seen.run.samples, seen.run.series("loss")
    assert len(samples) == 44
    for step, true in enumerate(by):
        rows = samples[samples["step"] == step]
        n = len(rows)
        assert list(rows["sample"]) == list(range(n))
        _, share = by_hand.total(true["losses"], true["weight"], reduction)
        tools.close(rows["loss"], true["losses"] * share * (1 if reduction == "sum" else n))
        whole = rows["loss"].sum() if reduction == "sum" else rows["loss"].mean()
        np.testing.assert_allclose(whole, losses[step], rtol=1e-6)
        tools.close(losses[step], true["loss"])
        np.testing.assert_array_equal(rows["target"], true["targets"])
        tools.close(np.stack(rows["prediction"]), true["predictions"])
        if kind == "none":
            assert rows["weight"].isna().all()
        else:
            np.testing.assert_allclose(rows["weight"], true["weight"], rtol=1e-6)
        tools.close(seen.run.array("predictions", step), true["predictions"])
        np.testing.assert_array_equal(np.ravel(seen.run.array("targets", step)), true["targets"])


def with_ids() -> keras.Model:
    """The usual network, and an input that names the samples and is used for nothing else."""
    model = keras.Sequential(
        [keras.layers.Input((6,)), keras.layers.Dense(5, name="hidden"), keras.layers.ReLU(name="relu"), keras.layers.Dense(3, name="head")]
    )  # fmt: skip
    inputs = {
        "x": keras.layers.Input((6,), name="x"),
        "id": keras.layers.Input((1,), name="id", dtype="int32"),
    }
    whole = keras.Model(inputs, model(inputs["x"]))
    whole.set_weights(list(by_hand.weights().values()))
    whole.compile(
        keras.optimizers.SGD(by_hand.LR), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return whole


def test_a_sample_is_followed_by_a_named_input(watch_fit, tools):
    """Through epochs that are shuffled: every id has the target it came with, and the loss of its own row."""
    x, y = by_hand.data()
    ids = np.arange(100, 122, dtype="int32")

    class Named(tools.Shuffled):
        def __getitem__(self, i):
            x, ids, y = super().__getitem__(i)
            return {"x": x, "id": ids}, y

    seen = watch_fit(
        with_ids, lambda: Named(x, ids[:, None], y), shuffle=False, epochs=3,
        watch=[fs.loss(per_sample=True, ids="id"), fs.weights(keep="tensor")],
    )  # fmt: skip
    samples = seen.run.samples
    orders = [list(of["id"]) for _, of in samples.groupby("epoch")]
    assert all(sorted(order) == sorted(map(str, ids)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3  # it was shuffled
    follow(seen.run, samples, {str(i): row for row, i in enumerate(ids)}, x, y, tools.close)


def test_a_sample_is_followed_by_its_content(watch_fit, tools):
    x, y = by_hand.data()
    watch = [fs.loss(per_sample=True), fs.weights(keep="tensor"), fs.inputs(keep="tensor")]
    seen = watch_fit(tools.make, lambda: tools.Shuffled(x, y), shuffle=False, epochs=3, watch=watch)
    samples = seen.run.samples
    assert samples["id"].nunique() == 22
    assert (samples.groupby("id")["epoch"].apply(list).map(lambda epochs: epochs == [0, 1, 2])).all()
    first = {}  # which row of the data each one is, from the tensors of the first epoch
    for step in range(3):
        for one, given in zip(
            samples[samples["step"] == step]["id"], seen.run.array("inputs", step), strict=True
        ):
            (first[one],) = np.flatnonzero((x == given).all(1))
    follow(seen.run, samples, first, x, y, tools.close)


def follow(run, samples, row_of, x, y, close) -> None:
    """Each sample's loss, in every epoch, is that of its own row of the data under the weights of that step."""
    sites = [site for site in run.sites if site.startswith("weights/")]
    for step, rows in samples.groupby("step"):
        w = {"/".join(site.split("/")[-2:]): run.array(site, step).astype(float) for site in sites}
        order = [row_of[one] for one in rows["id"]]
        np.testing.assert_array_equal(rows["target"], y[order])
        head = by_hand.forward(w, x[order])["head"]
        close(rows["loss"], by_hand.crossentropy(head, y[order])[0])


def test_rows_taken_by_the_number_of_the_batch_are_not_those_of_the_batch(watch_fit, tools, page_says):
    """The usual way, with the shuffling that fit does unless it is told not to."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(400, 6)).astype("float32"), np.arange(400) % 3

    def make() -> keras.Model:
        keras.utils.set_random_seed(3)
        return tools.make()

    seen = watch_fit(make, x, y, shuffle=True, watch=fs.inputs(keep="tensor"))
    right = [
        (seen.run.array("inputs", step) == x[8 * step : 8 * step + 8]).all(1).sum() for step in range(50)
    ]
    assert sum(right) < 8
    page_says("Fewer than 2 in 100 of the rows selected by batch number were in that batch")


def test_a_loss_without_the_weights_differs(watch_fit, tools, page_says):
    x, y = by_hand.data()
    told, weight = weighting("class_weight", y)
    seen = watch_fit(
        tools.make, x, y, watch=[fs.loss(per_sample=True), fs.predictions(), fs.targets()], **told
    )
    first = seen.run.samples.query("step == 0")["loss"].mean()
    usual = by_hand.crossentropy(seen.run.array("predictions", 0).astype(float), y[:8])[0].mean()
    tools.close(first, by_hand.train(by_hand.weights(), x, y, weight=weight)[0]["loss"])
    page_says(f"With class weights it is {usual:.2f}; the step minimised {first:.2f}")
