"""What does not fit the model is an error before the first step, in three clauses; what cannot be watched is said."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings

import keras
import numpy as np
import pytest

import fitscope as fs

FIT = {"batch_size": 8, "verbose": 0}


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        (
            fs.activations("frist"),
            r"Received: 'frist'. Did you mean 'first'\? There are: 'first', 'norm', 'drop', 'last'",
        ),
        (fs.activations(keras.layers.Conv2D), "Received: Conv2D"),
        (fs.gradients(keras.layers.Dense(1, name="elsewhere")), "Received: elsewhere"),
        (fs.weights("first/krenel"), "Did you mean 'first/kernel'"),
        (["activations"], "fs.activations"),
    ],
)
def test_a_watch_on_a_missing_layer_is_an_error(small, xy, tmp_path, watch, message):
    model = small()
    before = model.get_weights()
    with pytest.raises(fs.WatchError, match=message):
        model.fit(*xy, callbacks=[fs.Scope(tmp_path, watch)], **FIT)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), before, strict=True))
    assert fs.runs(tmp_path) == []
    model.fit(
        *xy, callbacks=[fs.Scope(tmp_path, fs.activations("first"))], **FIT
    )  # right after, without any ado


def test_a_watch_on_a_missing_layer_of_an_unbuilt_model_is_an_error(xy, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(3, name="a"), keras.layers.Dense(2, name="b")])
    model.compile("sgd", "mse")
    with pytest.raises(fs.WatchError, match="There are: 'a', 'b'"):
        model.fit(*xy, callbacks=[fs.Scope(tmp_path, fs.activations("c"))], **FIT)
    assert type(model.train_function).__module__ != "fitscope.capture.dispatch"
    model.fit(*xy, **FIT)


def test_a_scope_without_watches_records_no_run(small, xy, tmp_path):
    """An empty list records nothing and says nothing."""
    small().fit(*xy, callbacks=[fs.Scope(tmp_path, [], every=1)], **FIT)
    assert fs.runs(tmp_path) == []


def test_layers_are_selected_by_class_object_and_glob(watch_fit, small, xy):
    model = small()
    seen = watch_fit(
        small,
        *xy,
        watch=[
            fs.activations(keras.layers.Dense),
            fs.gradients("dr*"),
            fs.weights("*/kernel"),
            fs.updates("norm"),
        ],
    )
    assert [s for s in seen.run.sites if s.startswith("activations")] == [
        "activations/first",
        "activations/last",
    ]
    assert [s for s in seen.run.sites if s.startswith("gradients")] == ["gradients/drop"]
    assert [s for s in seen.run.sites if s.startswith("weights")] == [
        "weights/first/kernel",
        "weights/last/kernel",
    ]
    assert [s for s in seen.run.sites if s.startswith("updates")] == [
        f"updates/norm/{name}" for name in ("beta", "gamma", "moving_mean", "moving_variance")
    ]
    scope = fs.Scope(seen.run.path + "-object", fs.activations(model.get_layer("norm")), every=1)
    model.fit(*xy, callbacks=[scope], **FIT)
    assert sorted(scope.batch) == ["activations/norm"]


def test_local_gradients_in_one_process_are_listed_as_unseen(watch_fit, small, xy):
    seen = watch_fit(small, *xy, watch=[fs.weight_gradients("first", local=True)])
    assert "is the only one" in seen.run.unseen["weight_gradients/first/kernel/local"]
    assert "weight_gradients/first/kernel" in seen.run.sites


def test_an_unsupported_strategy_with_several_replicas_is_a_warning(tmp_path, backend):
    """Devices are set up once in a process, so this has its own."""
    if backend != "tensorflow":
        pytest.skip("tf.distribute")
    code = f"""
        import tensorflow as tf, numpy as np, warnings
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        import keras, fitscope as fs
        x, y = np.zeros((8, 3), "float32"), np.zeros((8, 2), "float32")
        class TPUStrategy(tf.distribute.MirroredStrategy):
            "Stands in for a strategy with several replicas that fitscope does not know."
        def train(strategy, scope):
            with strategy.scope():
                model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, name="d")])
                model.compile("sgd", "mse")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model.fit(x, y, batch_size=4, verbose=0, callbacks=[scope])
            return [str(w.message) for w in caught if w.category is fs.FitscopeWarning]
        said = train(TPUStrategy(["CPU:0", "CPU:1"]), fs.Scope({str(tmp_path / "two")!r}, every=1))
        assert len(said) == 1 and "several replicas (TPUStrategy)" in said[0], said
        assert "records only Keras's logs of each epoch" in said[0], said
        run = fs.open({str(tmp_path / "two")!r})
        assert run.status == "complete" and run.sites == ["logs/loss"], run.sites
        assert len(run.series("logs/loss")) == 1
        assert "only MirroredStrategy is" in run.unseen["activations/d"], run.unseen
        one = tf.distribute.MirroredStrategy(["CPU:0"])
        assert train(one, fs.Scope({str(tmp_path / "one")!r}, every=1)) == []
        assert list(fs.open({str(tmp_path / "one")!r}).series("loss").index) == [0, 1]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_strategies_that_are_refused_are_named(backend):
    if backend != "tensorflow":
        pytest.skip("tf.distribute")
    import tensorflow as tf

    from fitscope.capture.backends._tensorflow_replicas import why_not_replicas

    def under(name, replicas, base=object):
        return why_not_replicas(
            type(name, (base,), {"__init__": lambda self: None, "num_replicas_in_sync": replicas})()
        )

    assert "parameter servers (ParameterServerStrategyV2)" in under("ParameterServerStrategyV2", 1)
    workers = under("CollectiveAllReduceStrategy", 2, tf.distribute.MultiWorkerMirroredStrategy)
    assert "keras#20585" in workers
    assert "several workers" in workers
    assert "(TPUStrategy)" in under("TPUStrategy", 8)
    assert under("OneDeviceStrategy", 1) is None


def test_a_distribution_that_the_backend_ignores_is_a_warning(tmp_path, backend):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2, name="d")])
    model.compile("sgd", "mse")
    x, y = np.zeros((8, 3), "float32"), np.zeros((8, 2), "float32")
    scope = fs.Scope(tmp_path, every=1)
    before = keras.distribution.distribution()
    mesh = keras.distribution.DeviceMesh((1,), ("batch",), ["cpu:0"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(mesh))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, verbose=0, callbacks=[scope])
    finally:
        keras.distribution.set_distribution(before)
    said = [str(one.message) for one in caught if one.category is fs.FitscopeWarning]
    assert any("Keras ignores it" in text for text in said) == (backend != "jax"), said
    assert fs.open(tmp_path).series("activations/d", "rms").index.tolist() == [0]
