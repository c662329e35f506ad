"""Watching changes nothing, and the run proves it: also where the program with taps does not agree with the user's own.

The models here are those with which that was found to happen, on one backend or another. What a compiler does is its own affair: a test
asserts that the training is bit-identical and that the run says truly how, not that a certain program differs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import fitscope as fs
from complete import captured
from fitscope.capture import layer_taps
from fitscope.errors import WatchError
from watching import EACH_MODE

from .odd_models import BACKEND, MODELS, cast, train

compiled = pytest.mark.skipif(BACKEND == "torch", reason="eager steps with taps are the user's own")


def answers(mode: dict) -> tuple[str, ...]:
    """What a run may say of itself: an eager step of JAX runs once, with gradients tapped."""
    return ("not provable",) if BACKEND == "jax" and mode.get("run_eagerly") else ("proven", "twin")


@EACH_MODE
@pytest.mark.parametrize("name", MODELS)
def test_models_whose_tapped_program_may_differ_train_identically(name, mode, tmp_path):
    if mode.get("run_eagerly") and name != "layer norm":
        pytest.skip("eager steps share nothing that another model would add")
    if BACKEND == "tensorflow" and mode.get("jit_compile") and name not in ("layer norm", "wide, by SGD"):
        pytest.skip("XLA is tried with these on JAX")
    build, optimizer, watch = MODELS[name]
    without = train(build, None, optimizer=optimizer, **mode)
    both = ("train", "validation")
    scope = fs.Scope(tmp_path, watch, every=1, on="train" if watch else both)
    assert train(build, scope, optimizer=optimizer, **mode) == without
    run = fs.open(tmp_path)
    assert run.identity in answers(mode)
    assert run.errors == []
    assert run.last_step == (15 if watch else 16)  # the weights that the last validation found
    if run.identity == "twin":
        assert "did not agree with your own to the last bit" in run.identity.why
    elif not run.identity.why:
        assert run.identity.steps[:3] == [0, 1, 2]


@EACH_MODE
def test_a_twin_records_the_values_of_the_real_step(mode, tmp_path):
    """The same sites, the same values but for the last bits, and losses of the same training."""
    if mode.get("run_eagerly"):
        pytest.skip("an eager step runs once: there is no twin")
    if BACKEND == "tensorflow" and mode.get("jit_compile"):
        pytest.skip("XLA is tried with this on JAX")
    build = MODELS["layer norm"][0]
    without = train(build, None, **mode)
    runs = {}
    for choice in ("twin", "trust"):
        scope = fs.Scope(tmp_path / choice, every=1, identity=choice, on=("train", "validation"))
        trained = train(build, scope, **mode)
        if choice == "twin":
            assert trained == without
        runs[choice] = fs.open(tmp_path / choice)
    twin, taken = runs["twin"], runs["trust"]
    assert twin.sites == taken.sites
    for site in ("loss", "validation/loss"):
        np.testing.assert_allclose(twin.series(site), taken.series(site), rtol=1e-4)
    for site in [site for site in twin.sites if site.startswith(("activations/", "gradients/", "updates/"))][
        ::3
    ]:
        np.testing.assert_allclose(twin.series(site, "rms"), taken.series(site, "rms"), rtol=2e-3, atol=1e-7)
    assert twin.identity == ("proven" if BACKEND == "torch" else "twin")
    assert taken.identity == "trust"


@compiled
@pytest.mark.parametrize("together", [1, 3])
@EACH_MODE
def test_a_tap_that_is_wrong_cannot_change_the_training(mode, together, tmp_path, monkeypatch):
    """However the tapped program comes to differ: here its layers multiply what they pass on."""
    if mode.get("run_eagerly"):
        pytest.skip("an eager step runs once: there is no second program")
    if BACKEND == "tensorflow" and mode.get("jit_compile") and together > 1:
        pytest.skip("XLA compiles each step by itself there")
    settings = {**mode, "steps_per_execution": together}
    without = train(cast, None, **settings)
    seen = layer_taps.Taps._seen
    monkeypatch.setattr(layer_taps.Taps, "_seen", lambda *given: seen(*given) * 1.001)
    scope = fs.Scope(tmp_path, every=1, on=("train", "validation"))
    assert train(cast, scope, **settings) == without
    run = fs.open(tmp_path)
    assert run.identity == "twin"
    assert (run.identity.passes["train"], run.identity.passes["validation"]) == ("twin", "twin")
    assert "at step 0" in run.identity.why
    assert len(captured(run)) == 16


@compiled
def test_a_proof_that_fails_leaves_the_training_alone(tmp_path, monkeypatch):
    """As where a large model leaves no memory for a copy of its state."""
    module = __import__(f"fitscope.capture.backends._{BACKEND}_second_run", fromlist=["_"])
    held = module.HeldArguments if BACKEND == "jax" else module.HeldVariables
    without = train(cast, None)
    save = held.save

    def no_room(self):
        monkeypatch.setattr(held, "save", save)
        raise MemoryError("no room for a copy of the state")

    monkeypatch.setattr(held, "save", no_room)
    assert train(cast, fs.Scope(tmp_path, every=1)) == without
    run = fs.open(tmp_path)
    assert run.identity == "twin"
    assert "no room for a copy of the state" in run.identity.why
    assert captured(run) == list(range(1, 16))  # at the first step there was nothing to see


@pytest.mark.parametrize("choice", ["proven", "twin", "trust"])
def test_the_identity_argument_sets_how_a_step_runs(choice, tmp_path):
    train(cast, fs.Scope(tmp_path, every=4, identity=choice), epochs=1)
    words = {"proven": ("proven", "twin"), "twin": ("twin", "proven"), "trust": ("trust",)}
    assert fs.open(tmp_path).identity in words[choice]


def test_an_unknown_identity_setting_is_an_error_at_once():
    with pytest.raises(WatchError, match="identity"):
        fs.Scope("runs", identity="hope")


def test_two_scopes_on_one_step_use_the_stricter_identity_setting(tmp_path):
    build = MODELS["layer norm"][0]
    without = train(build, None)
    careful = fs.Scope(tmp_path / "careful", every=2)
    both = [fs.Scope(tmp_path / "trusting", every=1, identity="trust"), careful]
    keras.utils.set_random_seed(0)
    model = build()
    model.compile("adam", "mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y = rng.random((64, 20, 16), "float32"), rng.random((64, 2), "float32")
    model.fit(x, y, batch_size=16, epochs=4, verbose=0, callbacks=both, validation_data=(x[:24], y[:24]))
    assert fs.open(tmp_path / "careful").identity in ("proven", "twin")
    assert len(captured(fs.open(tmp_path / "trusting"))) == 16
    assert without  # the trusting one may have changed the steps that it captured alone


def test_a_second_fit_reuses_the_proofs(tmp_path):
    keras.utils.set_random_seed(0)
    model = cast()
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    x, y = rng.random((512, 20, 16), "float32"), rng.random((512, 2), "float32")
    scope = fs.Scope(tmp_path, every=1)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[scope])
    first = fs.open(tmp_path).identity
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[scope])
    second = fs.open(tmp_path).identity
    assert second == first
    assert second.steps[: len(first.steps)] == first.steps
    assert max(second.steps, default=0) < 100  # nothing was proven from the start again
