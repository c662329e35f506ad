"""The diagnosis of real trainings, while they run and afterwards."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import fitscope as fs

layers = keras.layers


def data(n: int = 128) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    x = random.standard_normal((n, 8)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0).astype("int32")


def model(depth: int = 2, activation: str = "relu", **compiled: Any) -> Any:
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(16, activation, name=f"hidden{i}") for i in range(depth)]
    net = keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(3, "softmax", name="out")])
    net.compile(**{"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"} | compiled)
    return net


def trained(tmp_path: Path, net: Any, x: Any = None, y: Any = None, epochs: int = 6, **given: Any) -> fs.Run:
    a, b = data()
    scope = fs.Scope(tmp_path / "runs", every=2, **given)
    net.fit(
        a if x is None else x,
        b if y is None else y,
        batch_size=16,
        epochs=epochs,
        verbose=0,
        callbacks=[scope],
    )
    return fs.open(tmp_path / "runs")


FAULTS = {
    "healthy": lambda: model(),
    "vanishing": lambda: model(16, "sigmoid"),
    "clipped": lambda: model(optimizer=keras.optimizers.SGD(0.1, clipnorm=1e-7)),
    "too fast": lambda: model(optimizer=keras.optimizers.SGD(1e4)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_findings_during_training_equal_those_of_the_stored_run(tmp_path: Path, fault: str) -> None:
    run = trained(tmp_path, FAULTS[fault]())
    online, offline = run.findings(), run.findings(rules=fs.RULES)
    assert online == offline
    assert online.not_judged == offline.not_judged
    assert bool(online) is (fault != "healthy")


def test_vanishing_gradients_are_found_in_a_sigmoid_net_of_16_layers(tmp_path: Path) -> None:
    found = trained(tmp_path, model(16, "sigmoid")).findings()
    assert (found[0].rule, found[0].layer) == ("vanishing_gradient", "hidden0")


def test_nan_in_one_batch_is_found_in_the_data(tmp_path: Path) -> None:
    x, y = data()
    x[40, 3] = np.nan
    run = trained(tmp_path, model(), x, y, epochs=1)
    (found,) = run.findings(rules=["nonfinite"])
    assert found.severity == "error"
    if found.site == "inputs":  # its batch was captured
        assert found.layer is None


class Root(layers.Layer):  # type: ignore[misc]
    """Has no value for a sample that begins with a large negative number."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * keras.ops.sqrt(x[:, :1] + 50.0)


@pytest.mark.parametrize("where", ["inputs", "activations/root"])
def test_the_samples_with_the_first_nan_are_named(tmp_path: Path, where: str) -> None:
    x, y = data()
    net = keras.Sequential([keras.Input((8,)), Root(name="root"), layers.Dense(3, "softmax", name="out")])
    net.compile("sgd", "sparse_categorical_crossentropy")
    x[[40, 43], 0] = np.nan if where == "inputs" else -100.0
    scope = fs.Scope(tmp_path / "runs", every=2)
    net.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[scope])
    run = fs.open(tmp_path / "runs")
    online, offline = run.findings()[0], run.findings(rules=fs.RULES)[0]
    assert (online.rule, online.site, online.first_step, online.evidence["samples"]) == (
        "nonfinite",
        where,
        2,
        [8, 11],
    )
    assert "in samples 8, 11 of the batch (the first is 0)" in online.message
    assert online == offline


def test_a_finding_is_logged_once_and_nothing_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[fs.Finding] = []
    with caplog.at_level(logging.WARNING, "fitscope"):
        trained(tmp_path, model(16, "sigmoid"), on_finding=seen.append)
    told = [r.getMessage() for r in caplog.records if r.name == "fitscope"]
    assert sum("Vanishing gradient" in text for text in told) == 1
    assert [f.rule for f in seen].count("vanishing_gradient") == 1


def test_a_failing_on_finding_is_reported_and_training_continues(tmp_path: Path) -> None:
    def broken(finding: fs.Finding) -> None:
        raise ZeroDivisionError("oops")

    with pytest.warns(fs.FitscopeWarning, match="on_finding: ZeroDivisionError: oops"):
        run = trained(tmp_path, model(16, "sigmoid"), on_finding=broken)
    assert run.status == "complete"


def test_a_finding_can_stop_the_training(tmp_path: Path) -> None:
    from fitscope.pipeline.diagnosis import Diagnosis

    net = model()
    stopped = []
    diagnosis = Diagnosis({}, on_finding="stop", stop=lambda: stopped.append(True))
    diagnosis._tell(fs.Finding("dead_relu", "warning", message="A warning."), last=False)
    assert not stopped
    diagnosis._tell(fs.Finding("nonfinite", "error", message="An error."), last=False)
    assert stopped == [True]

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if self.model.optimizer.iterations == 3:
                scope._recordings.newest.recorder.output.diagnosis.stop()

    x, y = data()
    scope = fs.Scope(tmp_path / "runs", every=1, on_finding="stop")
    net.fit(x, y, batch_size=16, epochs=5, verbose=0, callbacks=[scope, Slow()])
    assert int(net.optimizer.iterations) < 8


def test_a_webhook_is_sent_the_finding(tmp_path: Path) -> None:
    bodies: list[Any] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = 60
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        trained(tmp_path, model(16, "sigmoid"), on_finding=f"http://127.0.0.1:{server.server_port}/")
        thread.join(60)
    assert bodies[0]["rule"] == "vanishing_gradient"


@pytest.mark.parametrize("given", [{"on_finding": "stopp"}, {"on_finding": 3}])
def test_an_invalid_action_is_an_error(tmp_path: Path, given: Any) -> None:
    with pytest.raises(fs.WatchError, match="on_finding"):
        fs.Scope(tmp_path, **given)


def test_thresholds_of_the_scope_hold_for_its_run(tmp_path: Path) -> None:
    run = trained(tmp_path, model(16, "sigmoid"), thresholds={"vanishing_gradient.ratio": 1e-30})
    assert "vanishing_gradient" not in {f.rule for f in run.findings()}
    with pytest.raises(fs.RunError, match="Did you mean"):
        fs.Scope(tmp_path, thresholds={"vanishing_gradients.ratio": 1})
