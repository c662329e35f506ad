"""What counts as equal in a proof: every bit, except the sign and payload of a NaN."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from fitscope.capture.bits import same_bits

ONE = np.array([1.0, np.nan, -0.0, 3.0], np.float32)
SIGNED = np.array([1.0, -np.nan, -0.0, 3.0], np.float32)
CASES = [
    (ONE, ONE.copy(), True),
    (ONE, SIGNED, True),
    (ONE, np.array([1.0, np.nan, 0.0, 3.0], np.float32), False),  # the sign of a zero counts
    (ONE, np.array([np.nan, 1.0, -0.0, 3.0], np.float32), False),
    (ONE, np.array([1.0, 2.0, -0.0, 3.0], np.float32), False),
    (ONE, np.array([1.0, np.nan, -0.0, np.nextafter(np.float32(3), np.float32(4))], np.float32), False),
    (np.arange(4), np.arange(4) + 1, False),
    (np.array([True, False]), np.array([True, True]), False),
]


def test_the_cases_differ_in_the_bits_of_their_nan() -> None:
    assert ONE.tobytes() != SIGNED.tobytes()


@pytest.mark.parametrize(("one", "other", "same"), CASES)
def test_arrays_on_the_host(one: np.ndarray, other: np.ndarray, same: bool) -> None:
    assert same_bits(one, other) is same


def test_other_kinds_of_arrays() -> None:
    assert same_bits(np.array([complex(1, np.nan)]), np.array([complex(1, -np.nan)]))
    assert not same_bits(np.array([complex(1, np.nan)]), np.array([complex(2, np.nan)]))
    assert not same_bits(np.array(["a"]), np.array(["b"]))
    assert not same_bits(ONE, ONE.astype(np.float64))
    assert not same_bits(ONE, ONE[:3])


@pytest.mark.parametrize(("one", "other", "same"), CASES)
def test_arrays_of_jax(one: np.ndarray, other: np.ndarray, same: bool) -> None:
    jax = pytest.importorskip("jax")
    found = importlib.import_module("fitscope.capture.backends._jax_second_run")
    a, b = jax.numpy.asarray(one), jax.numpy.asarray(other)
    assert found._same(a, b) is same
    assert found.same_on_device(a, b) is same


@pytest.mark.parametrize(("one", "other", "same"), CASES)
def test_tensors_of_torch(one: np.ndarray, other: np.ndarray, same: bool) -> None:
    torch = pytest.importorskip("torch")
    found = importlib.import_module("fitscope.capture.backends._torch_programs")
    assert found._same(torch.from_numpy(one.copy()), torch.from_numpy(other.copy())) is same


@pytest.mark.parametrize(("one", "other", "same"), CASES)
def test_tensors_of_tensorflow(one: np.ndarray, other: np.ndarray, same: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    found = importlib.import_module("fitscope.capture.backends._tensorflow_second_run")
    assert found._same(tf.constant(one), tf.constant(other)) is same
