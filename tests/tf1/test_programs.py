"""Programs as people write them, with a scope and without: the same weights to the last bit, and nothing missing without a word."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fitscope as fs
from programs_tf1 import PROGRAMS, Program, Watch, classic, generative, pipelines, reinforcement, sequences

pytestmark = pytest.mark.tf1
ON = ("train", "validation")
assert all(module.__doc__ for module in (classic, generative, pipelines, reinforcement, sequences))


def everything() -> list[Any]:
    return [
        fs.activations(), fs.gradients(), fs.weights(), fs.weight_gradients(), fs.updates(), fs.loss(), fs.inputs(),
        fs.targets(), fs.predictions(),
    ]  # fmt: skip


def carried_out(name: str, scope: fs.Scope | None = None) -> Any:
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated.*")
        return PROGRAMS[name].main(Watch(scope))


@functools.cache
def unwatched(name: str) -> Any:
    """The variables that a program ends with when nobody watches."""
    return carried_out(name)


def alike(plain: Any, watched: Any) -> None:
    assert len(plain) == len(watched) > 0
    for a, b in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(a, b)


def places(plan: Any, phase: str) -> set[str]:
    """The sites that are watched in a phase, as far as the plan knows their names."""
    prefix = "" if phase == "train" else f"{phase}/"
    wants = plan.wants(frozenset(range(len(plan.watches))), phase)
    return {prefix + (f"{kind}/{path}" if path else kind) for kind, path in wants}


#: Beside programs that cannot be proven, which have our fetches in every captured step anyway. The others have them with "trust".
PROVEN = ("softmax_regression", "several_tasks", "lstm_in_a_loop", "deep_q_network")
CASES = [(name, "trust" if one.identity == "proven" else "proven") for name, one in PROGRAMS.items()]
CASES += [(name, "proven") for name in PROVEN]


@pytest.mark.parametrize(("name", "identity"), CASES)
def test_a_program_trains_identically_and_records_its_sites(name, identity, tmp_path):
    program = PROGRAMS[name]
    scope = fs.Scope(tmp_path, everything(), every=1, on=ON, identity=identity)
    alike(unwatched(name), carried_out(name, scope))
    run = fs.open(tmp_path)
    assert run.errors == []
    assert run.status == "complete"
    assert run.identity == (program.identity if identity == "proven" else identity), run.identity.why
    complete(program, run, scope._recordings.newest.plan)


def complete(program: Program, run: Any, plan: Any) -> None:
    """Everything that is watched is recorded or explained, and what a person expects is recorded."""
    sites, unseen = set(run.sites), dict(run.unseen)
    assert program.sites <= sites, (sorted(program.sites - sites), unseen)
    assert program.unseen <= set(unseen), sorted(program.unseen - set(unseen))
    assert not sites & set(unseen)
    phases = ["train", *(["validation"] if any(s.startswith("validation/") for s in sites) else [])]
    for site in set().union(*(places(plan, phase) for phase in phases)):
        alike = any(s == site or s.startswith(f"{site}/") for s in (*sites, *unseen))
        assert alike, f"{site} is neither recorded nor explained"
    if program.epochs is not None:
        losses = next(site for site in run.sites if site.startswith("loss"))
        assert tuple(run.frame(losses)["epoch"]) == program.epochs


@pytest.mark.parametrize("name", ["batch_norm", "dcgan", "monitored_session"])
def test_a_program_with_identity_twin_trains_identically(name, tmp_path):
    """A twin looks on. Where its fetches wait for updates, it takes them back."""
    scope = fs.Scope(tmp_path, everything(), every=1, on=ON, identity="twin")
    alike(unwatched(name), carried_out(name, scope))
    run = fs.open(tmp_path)
    assert run.identity == "twin", run.identity.why
    assert run.errors == []
    complete(PROGRAMS[name], run, scope._recordings.newest.plan)
