"""Samples with NaN or Inf are looked for once for each site, where the whole tensor is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from fitscope.pipeline.bad_samples import MOST_NAMED, MOST_SITES, BadSamples
from fitscope.record import Block, Head, Moment
from fitscope.reduce import host
from fitscope.sites import Site


def looked(found: BadSamples, step: int, *tensors: tuple[Head, np.ndarray[Any, Any]]) -> dict[str, Any]:
    tally = host.Tally(len(tensors))
    for _, array in tensors:
        tally.add(array)
    at = Moment(step, 0, 0, 0.0)
    block = Block((at,), tuple(head for head, _ in tensors), tally.columns(), np.full(len(tensors), np.nan))
    found.look(block, lambda _, head: tensors[head][1])
    return found.found


def tensor(site: str, array: Any, shape: tuple[int, ...] | None = None) -> tuple[Head, np.ndarray[Any, Any]]:
    array = np.asarray(array, "float32")
    return Head(Site.parse(site), shape or array.shape, "float32", Site.parse(site).batched), array


NAN, INF = np.nan, np.inf


def test_the_first_bad_batch_of_a_site_counts() -> None:
    found = BadSamples()
    assert looked(found, 0, tensor("inputs", [[0, 1], [2, 3]])) == {}
    looked(found, 1, tensor("activations/a", [[0], [1]]), tensor("inputs", [[0, 1], [2, INF]]))
    looked(found, 2, tensor("activations/a", [[NAN], [1]]), tensor("inputs", [[NAN, 1], [2, INF]]))
    assert found.found == {
        "inputs": {"step": 1, "samples": [1], "number": 1, "of": 2},
        "activations/a": {"step": 2, "samples": [0], "number": 1, "of": 2},
    }


def test_tensors_without_samples_and_parts_of_tensors_are_left_out() -> None:
    rows = tensor("inputs", [[NAN, 1]], shape=(64, 2))  # one row of 64
    weights = tensor("weights/a/kernel", [[NAN, 1]])
    validation = tensor("validation/inputs", [[NAN]])
    assert looked(BadSamples(), 0, rows, weights) == {}
    assert looked(BadSamples(), 0, validation) == {}


def test_what_is_kept_is_bounded() -> None:
    found = looked(BadSamples(), 0, tensor("inputs", np.full((1000, 2), NAN)))
    assert len(found["inputs"]["samples"]) == MOST_NAMED
    assert found["inputs"]["number"] == 1000
    many = BadSamples()
    for step in range(3 * MOST_SITES):
        looked(many, step, tensor(f"activations/layer_{step}", [[NAN]]))
    assert len(many.found) == MOST_SITES
