"""Whatever is written is read back: random sequences of records, of every type and shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zarr
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fitscope import read
from fitscope.record import Record
from fitscope.store import Files, Memory, Objects, RunWriter
from fitscope.store import array as array_module
from fitscope.store import tensors as tensors_module

Make = Callable[..., Record]

TYPES = [
    *(np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64")),
    *(np.dtype(name) for name in ("float16", "float32", "float64", "complex64", ">f4", ">i2")),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.int4),
]


@st.composite
def tensor(draw: Any, types: list[np.dtype[Any]] = TYPES) -> np.ndarray[Any, Any]:
    dtype = draw(st.sampled_from(types))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    seed = draw(st.integers(0, 1000))
    values = np.random.default_rng(seed).normal(scale=3, size=shape)
    if dtype.kind in "fc" and values.size and seed % 3 == 0:
        values.flat[0] = [np.nan, np.inf, -np.inf, -0.0][seed % 4]
    with np.errstate(all="ignore"):
        array: np.ndarray[Any, Any] = np.asarray(values).astype(dtype)
    return array


def same(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    """The very same elements, NaN and the sign of zero included."""
    return one.shape == two.shape and one.dtype == two.dtype.newbyteorder("=") and bits(one) == bits(two)


def bits(x: np.ndarray[Any, Any]) -> bytes:
    x = x.astype(x.dtype.newbyteorder("="))
    with np.errstate(all="ignore"):
        return (
            np.where(x != x, np.full_like(x, np.nan), x).tobytes()
            if x.dtype.kind not in "iub"
            else x.tobytes()
        )


@pytest.fixture(params=["small chunks", "as shipped"])
def layout(request: pytest.FixtureRequest) -> Any:
    """Chunks and indices so small that every path is taken within a few captures."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small chunks":
            patch.setattr(array_module, "LARGEST_CHUNK", 64)
            patch.setattr(array_module, "SHARED_CHUNK", 48)
            patch.setattr(tensors_module, "LONGEST_INDEX", 5)
        yield


@pytest.mark.usefixtures("layout")
def test_every_sequence_of_captures_is_read_back(make: Make) -> None:
    action = st.one_of(
        st.tuples(st.sampled_from(["a", "a/b", "c"]), tensor(), st.booleans()), st.just("flush")
    )

    @settings(max_examples=120, deadline=None)
    @given(st.lists(action, max_size=25))
    def check(actions: list[Any]) -> None:
        store = Memory()
        writer = RunWriter.create(store, "r")
        written: dict[tuple[str, int], np.ndarray[Any, Any]] = {}
        for step, item in enumerate(actions):
            if item == "flush":
                writer.flush()
            else:
                site, x, batched = item
                writer.write([make(site, step, x, keep="tensor", batched=batched)])
                written[site, step] = x
        writer.close()
        assert writer.lost == {}
        run = read.open(store)
        assert run.sites == sorted({site for site, _ in written})
        for (site, step), x in written.items():
            assert same(run.array(site, step), x)
        assert run.damaged == []
        assert writer.bytes == sum(len(data) for key, data in store._objects.items() if "/a0000/" in key)

    check()


@pytest.mark.usefixtures("layout")
def test_lazy_arrays_index_like_numpy(make: Make) -> None:
    """`run.tensor` against the padded array built by hand, under all kinds of indexing."""
    rng = np.random.default_rng(0)
    sizes = [5, 5, 3, 7, 5, 1, 0, 5, 6, 5, 2]
    store = Memory()
    writer = RunWriter.create(store, "r")
    full = np.full((len(sizes), 7, 4, 3), np.nan, np.float32)
    for number, size in enumerate(sizes):
        x = rng.normal(size=(size, 4, 3)).astype(np.float32)
        full[number, :size] = x
        writer.write([make("s", number * 10, x)])
        if number % 3 == 0:
            writer.flush()
    writer.close()
    lazy = read.open(store).tensor("s")
    assert lazy.dims == ("step", "sample", "dim_1", "dim_2")
    assert lazy["step"].values.tolist() == [number * 10 for number in range(len(sizes))]
    assert lazy["size"].values.tolist() == sizes
    np.testing.assert_array_equal(lazy.values, full)

    @settings(max_examples=80, deadline=None)
    @given(
        st.tuples(
            *(
                st.one_of(st.integers(-n, n - 1), st.slices(n), st.lists(st.integers(-n, n - 1), max_size=4))
                for n in full.shape
            )
        )
    )
    def check(key: tuple[Any, ...]) -> None:
        for k, extent in zip(key, full.shape, strict=True):  # xarray itself stumbles over x[0:0:-1]
            assume(not isinstance(k, slice) or (k.step or 1) > 0 or len(range(extent)[k]) > 0)
        expected = full
        for axis in reversed(range(4)):  # outer indexing: one axis after the other
            expected = np.take(expected, np.arange(full.shape[axis])[key[axis]], axis=axis)
        np.testing.assert_array_equal(lazy.isel(dict(zip(lazy.dims, key, strict=True))).values, expected)

    check()


def test_arrays_may_grow_on_every_axis(make: Make, tmp_path: Any) -> None:
    shapes = [(2, 3), (2, 3), (4, 3), (1, 5), (3, 2), (9, 9)]
    writer = RunWriter.create(Files(tmp_path), "r")
    for step, shape in enumerate(shapes):
        writer.write([make("s", step, np.full(shape, step, np.int32))])
        writer.flush()
    writer.close()
    run = read.open(tmp_path)
    for step, shape in enumerate(shapes):
        assert same(run.array("s", step), np.full(shape, step, np.int32))
    array = zarr.open_array(tmp_path / "r/a0000/r00000/tensors.zarr/s/data", mode="r")
    assert array.shape == (6, 9, 9)
    assert array.attrs["shapes"] == [list(shape) for shape in shapes]
    assert array[2].sum() == 2 * 12  # what is beyond the capture is 0


def test_other_dtype_and_dims_get_their_own_array(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    captures = [
        np.ones((2, 3), np.float32),
        np.ones((2, 3), np.float16),
        np.ones((2, 3), np.float32) * 3,
        np.ones((2, 3, 4), np.float32),
        np.ones((2, 3), np.float16) * 5,
    ]
    for step, x in enumerate(captures):
        writer.write([make("s", step, x)])
    writer.close()
    run = read.open(store)
    for step, x in enumerate(captures):
        assert same(run.array("s", step), x)
    root = json.loads(store.get("r/a0000/r00000/tensors.zarr/zarr.json"))
    assert [entry["path"] for entry in root["attributes"]["arrays"]] == ["s", "s+1", "s+2"]
    with pytest.raises(LookupError, match=r"one by one: run\.array"):
        run.tensor("s")


def test_mixed_dtypes_are_read_in_a_wider_one(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    for step, dtype in enumerate([ml_dtypes.bfloat16, np.float32, ml_dtypes.bfloat16]):
        writer.write([make("s", step, np.full((2,), step + 0.5, dtype))])
    writer.close()
    lazy = read.open(store).tensor("s")
    assert lazy.dtype == np.float32
    assert lazy.values.tolist() == [[0.5, 0.5], [1.5, 1.5], [2.5, 2.5]]


def test_bfloat16_is_read_as_float32_by_other_tools(make: Make, tmp_path: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    writer = RunWriter.create(tmp_path, "r")
    writer.write([make("s", 7, x)])
    writer.close()
    array = zarr.open_array(tmp_path / "r/a0000/r00000/tensors.zarr/s/data", mode="r")
    assert array.dtype == np.float32
    assert array.attrs["dtype"] == "bfloat16"
    run = read.open(tmp_path)
    assert run.array("s", 7).dtype == ml_dtypes.bfloat16
    assert run.tensor("s").dtype == ml_dtypes.bfloat16
    assert same(run.tensor("s").values[0], x)


def test_a_long_run_continues_in_further_arrays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors_module, "LONGEST_INDEX", 100)
    store = Memory()
    writer = RunWriter.create(store, "r")
    for step in range(350):
        writer.write([make("s", step, np.array([step, -step], np.int32), keep="tensor")])
        if step % 90 == 0:
            writer.flush()
    writer.close()
    lazy = read.open(store).tensor("s")
    assert lazy.sizes["step"] == 350
    assert (lazy.values[:, 0] == np.arange(350)).all()
    largest = max(len(data) for key, data in store._objects.items() if key.endswith("data/zarr.json"))
    assert largest < 5_000


def test_large_captures_are_split_and_small_ones_share(make: Make) -> None:
    assert array_module.chunk_shape((32, 10), 4) == (204, 32, 10)
    assert array_module.chunk_shape((), 4) == (1024,)
    assert array_module.chunk_shape((32, 64, 64, 2), 4) == (1, 32, 64, 64, 2)
    assert array_module.chunk_shape((256, 1 << 18), 4) == (1, 16, 1 << 18)
    assert array_module.chunk_shape((30, 1 << 20), 4) == (1, 3, 1 << 20)  # without a remainder
    assert array_module.chunk_shape((3, 1 << 24), 4) == (1, 1, 1 << 22)  # a row that is too large by itself
    assert array_module.chunk_shape((0, 0), 4) == (1024, 1, 1)
    store = Memory()
    writer = RunWriter.create(store, "r")
    writer.write([make("s", 0, np.ones((1024, 1, 4097), np.float64), keep="tensor", batched=False)])
    writer.close()
    sizes = [len(data) for key, data in store._objects.items() if "/data/c." in key]
    assert max(sizes) <= 16 << 20
    assert sum(sizes) == 1024 * 4097 * 8


def test_kept_samples_and_whole_batches_are_read_back(make: Make) -> None:
    store = Memory()
    writer = RunWriter.create(store, "r")
    writer.write([make("s", 0, np.ones((8, 2), np.float32), shape=(64, 2))])
    writer.write([make("s", 1, np.ones((8, 2), np.float32), shape=(17, 2))])
    writer.close()
    lazy = read.open(store).tensor("s")
    assert lazy["size"].values.tolist() == [8, 8]
    assert lazy["batch_size"].values.tolist() == [64, 17]


def test_stats_are_read_back(make: Make, objects: Objects) -> None:
    rng = np.random.default_rng(1)
    writer = RunWriter.create(objects, "r")
    records = []
    for step in range(20):
        for site in ("b", "a/x", "loss"):
            x = rng.normal(scale=10.0 ** rng.integers(-30, 30), size=() if site == "loss" else (4, 6))
            x = np.where(x < -2, 0, x).astype(np.float32)
            if step == 5:
                x = np.full_like(x, np.nan)
            records.append(make(site, step, x, keep="stats", batched=site != "loss", epoch=step // 7))
        writer.write(records[-3:])
        if step % 6 == 0:
            writer.flush()
    writer.close()
    run = read.open(objects)
    assert run.sites == ["a/x", "b", "loss"]
    frame = run.stats
    assert len(frame) == len(records)
    for record in records:
        row = frame[(frame["site"] == record.site) & (frame["step"] == record.at.step)].iloc[0]
        assert record.stats is not None
        for name in ("count", "mean", "std", "min", "max", "rms", "zeros", "negatives", "nans", "infs"):
            np.testing.assert_equal(row[name], getattr(record.stats, name))
        assert tuple(row["shape"]) == record.shape
        assert row["dtype"] == "float32"
        assert (row["epoch"], row["batch"], row["time"]) == (record.at.epoch, record.at.batch, record.at.time)
        hist = np.zeros(513, np.int64)
        hist[row["buckets"] + 256] = row["counts"]
        assert (hist == record.stats.hist).all()
        dense = run.histogram(record.site).sel(step=record.at.step)
        assert (dense.values == record.stats.hist[dense["bucket"].values + 256]).all()
    assert run.histogram("b").sum("bucket").values.tolist() == [24 if step != 5 else 0 for step in range(20)]
