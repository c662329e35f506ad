"""How Keras runs a step: several in one execution, eagerly, compiled by XLA or torch; and where its data comes from."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs
from complete import captured

BACKEND = keras.backend.backend()
WATCH = [
    fs.activations(keep="both"),
    fs.weights(keep="both"),
    fs.weight_gradients(),
    fs.loss(),
    fs.inputs(keep="both"),
]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras runs one step per execution on torch")
@pytest.mark.parametrize("every", [1, 3])
def test_every_step_of_several_in_one_execution_is_recorded(watch_fit, tools, small, xy, every):
    x, y = xy  # batches of 4: six in an epoch, the last one of two samples; executions of four and of two

    def make():
        return small("adam", steps_per_execution=4)

    seen = watch_fit(make, x, y, watch=WATCH, every=every, batch_size=4, epochs=2)
    steps = list(range(0, 12, every))
    assert captured(seen.run) == steps
    assert list(seen.run.frame("loss").batch) == [step % 6 for step in range(12)]
    assert list(seen.run.frame("inputs").batch) == [step % 6 for step in steps]
    for step in steps:
        rows = x[4 * (step % 6) : 4 * (step % 6) + 4]
        assert np.array_equal(seen.at("inputs", step), rows)
        tools.close(seen.at("activations/first", step), tools.dense(seen.at, "first", rows, step))


MODES = {
    "jax": [{"run_eagerly": True}, {"jit_compile": False}],
    "tensorflow": [{"run_eagerly": True}, {"jit_compile": True}, {"jit_compile": False}],
    "torch": [{"run_eagerly": True}],
}


@pytest.mark.parametrize("mode", MODES[BACKEND], ids=str)
def test_a_step_is_recorded_in_every_mode_of_compile(watch_fit, tools, small, xy, mode):
    x, y = xy
    seen = watch_fit(lambda: small("adam", **mode), x, y, every=2)
    assert captured(seen.run) == [0, 2]
    tools.close(seen.at("activations/first", 2), tools.dense(seen.at, "first", x[16:], 2))
    assert seen.run.model["run_eagerly"] == mode.get("run_eagerly", False)


@pytest.mark.slow_compile
@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile")
def test_a_step_that_torch_compiles_is_recorded(tmp_path):
    """In a process of its own: dynamo recompiles one piece of code eight times at most."""
    code = f"""
        import keras, numpy as np, fitscope as fs
        x = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
        def train(*callbacks):
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(5, name="b")])
            model.compile("sgd", "mse", jit_compile=True)
            model.fit(x, x, batch_size=8, verbose=0, shuffle=False, callbacks=list(callbacks))
            return model.get_weights()
        plain = train()
        watch = [fs.activations(keep="both"), fs.gradients(), fs.weights(keep="both"), fs.weight_gradients(), fs.loss()]
        seen = train(fs.Scope({str(tmp_path)!r}, watch, every=1))
        assert all(np.array_equal(a, b) for a, b in zip(plain, seen))
        run = fs.open({str(tmp_path)!r})
        assert not run.errors, run.errors
        assert list(run.frame("activations/a").index) == [0, 1]
        h = x[:8] @ run.array("weights/a/kernel", 0) + run.array("weights/a/bias", 0)
        np.testing.assert_allclose(run.array("activations/a", 0), h, rtol=1e-4, atol=1e-6)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow_compile
@pytest.mark.skipif(BACKEND != "torch", reason="torch.compile")
def test_a_model_without_compile_predicts_under_torch_compile(tmp_path):
    code = f"""
        import keras, numpy as np, fitscope as fs
        x = np.random.default_rng(0).normal(size=(16, 5)).astype("float32")
        model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3, name="a")])
        model.jit_compile = True
        plain = model.predict(x, batch_size=8, verbose=0)
        scope = fs.Scope({str(tmp_path)!r}, fs.activations(keep="both"), every=1)
        assert np.array_equal(model.predict(x, batch_size=8, verbose=0, callbacks=[scope]), plain)
        run = fs.open({str(tmp_path)!r})
        assert not run.errors and not run.unseen, (run.errors, run.unseen)
        assert run.sites == ["predict/activations/a"]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr[-3000:]


class Pieces(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.x[8 * i : 8 * i + 8], self.y[8 * i : 8 * i + 8]


def tf_data(x, y):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


def tf_data_of_unknown_length(x, y):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *_: True)


def generator(x, y):
    for i in range(0, 22, 8):
        yield x[i : i + 8], y[i : i + 8]


def data_loader(x, y):
    torch = pytest.importorskip("torch")
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=8
    )


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("source", "epochs"),
    [(tf_data, 2), (tf_data_of_unknown_length, 3), (generator, 1), (Pieces, 2), (data_loader, 2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_source_of_data_is_recorded(watch_fit, small, xy, source, epochs):
    x, y = xy
    watch = [fs.inputs(keep="both"), fs.targets(), fs.loss()]
    shuffled = {"shuffle": False} if source is Pieces else {}
    seen = watch_fit(small, lambda: source(x, y), watch=watch, epochs=epochs, **shuffled)
    # An epoch that ends unannounced costs no step number, but where Keras's own count goes wrong: a TensorFlow graph
    # counts the step that found no batch.
    in_epoch = 4 if source is tf_data_of_unknown_length and BACKEND == "tensorflow" else 3
    steps = [in_epoch * epoch + batch for epoch in range(epochs) for batch in range(3)]
    assert captured(seen.run) == steps
    assert list(seen.run.frame("loss").epoch) == [step // in_epoch for step in steps]
    for step in steps:
        rows = slice(8 * (step % in_epoch), 8 * (step % in_epoch) + 8)
        assert np.array_equal(seen.at("inputs", step), x[rows])
        assert np.array_equal(seen.at("targets", step), y[rows])


def test_a_generator_that_never_ends_is_recorded(watch_fit, small, xy):
    x, y = xy

    def forever():
        while True:
            yield from generator(x, y)

    seen = watch_fit(small, forever, watch=[fs.inputs(keep="both")], epochs=2, steps_per_epoch=2)
    assert list(seen.run.series("inputs", "mean").index) == [0, 1, 2, 3]
    assert np.array_equal(seen.at("inputs", 2), x[16:])


def test_data_frames_and_dicts_are_recorded(watch_fit, xy):
    pd = pytest.importorskip("pandas")
    x, y = xy

    def make():
        keras.utils.set_random_seed(0)
        i = layers.Input((5,), name="table")
        model = keras.Model({"table": i}, layers.Dense(2, name="out")(i))
        model.compile("sgd", "mse")
        return model

    watch = [fs.inputs(keep="both"), fs.targets()]
    seen = watch_fit(make, {"table": pd.DataFrame(x)}, pd.DataFrame(y), watch=watch)
    assert np.array_equal(seen.at("inputs/table", 2), x[16:])
    assert np.array_equal(seen.at("targets", 2), y[16:])


def test_averages_computed_in_the_step_equal_those_on_the_host(watch_fit, small, xy, tmp_path):
    x, y = xy
    watch = [fs.activations(keep=("stats", "average")), fs.weights(keep="average"), fs.loss()]
    on_host = watch_fit(small, x, y, watch=watch, scope={"reduce": "host"}).run
    scope = fs.Scope(tmp_path / "in_step", watch, 1, reduce="step")
    small().fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[scope])
    run = fs.open(tmp_path / "in_step")
    assert run.errors == []
    assert run.sites == on_host.sites
    assert run.averages == on_host.averages != []
    for site in run.averages:
        one, other = run.average(site), on_host.average(site)
        assert one.count == other.count
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-4, atol=1e-6, err_msg=site)
        np.testing.assert_allclose(one.std, other.std, rtol=1e-3, atol=1e-5, err_msg=site)


def test_stats_computed_in_the_step_equal_those_on_the_host(watch_fit, small, xy, tmp_path):
    x, y = xy
    watch = [
        fs.activations(keep="both", samples=2), fs.gradients(), fs.weights(), fs.weight_gradients(), fs.updates(), fs.loss(),
        fs.metrics(), fs.targets(), fs.activations("last", keep="tensor"),
    ]  # fmt: skip
    on_host = watch_fit(small, x, y, watch=watch, scope={"reduce": "host"}).run.stats
    tensors = fs.open(tmp_path / "runs").tensor("activations/first").values
    model = small()
    scope = fs.Scope(tmp_path / "in_step", watch, 1, reduce="step")
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[scope])
    run = fs.open(tmp_path / "in_step")
    assert run.errors == []
    assert len(run.stats) == len(on_host)
    for column in on_host.columns:
        if column in ("time", "buckets", "counts"):
            continue
        one, other = on_host[column].to_numpy(), run.stats[column].to_numpy()
        if column in ("value", "mean", "std", "min", "max", "rms"):
            np.testing.assert_allclose(
                one.astype(float), other.astype(float), rtol=1e-4, atol=1e-6, err_msg=column
            )
        else:
            assert [str(v) for v in one] == [str(v) for v in other], column
    np.testing.assert_allclose(tensors, run.tensor("activations/first").values, rtol=1e-4, atol=1e-6)
    assert scope.batch["activations/first"].shape == (2, 4)
    with pytest.raises(fs.WatchError, match="keep='tensor'"):
        scope.batch["gradients/first"]
