"""Other people's tools read a run with no help from us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from fitscope.record import Record
from fitscope.store import Files, RunWriter

Make = Callable[..., Record]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, make: Make) -> Path:
    """A run of two attempts with nested sites, a short batch, integers and scalars. Never closed."""
    root = tmp_path_factory.mktemp("tools")
    for number in range(2):
        writer = (
            RunWriter.create(Files(root), "r")
            if number == 0
            else RunWriter.attempt(Files(root), "r", start_step=10)
        )
        for step in range(number * 10, number * 10 + 10):
            size = 3 if step % 5 == 4 else 4
            writer.write(
                [
                    make("activations/conv", step, np.full((size, 6, 2), step, np.float32)),
                    make("activations/conv/inner", step, np.full((size, 2), step, np.float16)),
                    make("targets", step, np.full((size,), step, np.int64)),
                    make("weights/conv/kernel", step, np.full((7, 5), step, np.float32), batched=False),
                    make("loss", step, np.float32(step), batched=False),
                ]
            )
            if step % 4 == 0:
                writer.flush()
        writer.flush()
    return root / "r"


@pytest.fixture
def rank(run: Path) -> Path:
    return run / "a0000" / "r00000"


def expected_rows(frame: Any, rows: int) -> None:
    assert len(frame) == rows
    loss = frame[frame["site"] == "loss"].sort_values("step")
    assert loss["value"].tolist() == loss["step"].tolist() == list(range(rows // 5))
    row = frame[(frame["site"] == "activations/conv") & (frame["step"] == 4)].iloc[0]
    assert (row["mean"], row["count"], list(row["shape"])) == (4.0, 36, [3, 6, 2])
    assert (list(row["buckets"]), list(row["counts"])) == ([131], [36])


def test_pandas_reads_the_stats(rank: Path) -> None:
    expected_rows(pd.read_parquet(rank / "stats"), 50)


def test_pandas_reads_all_attempts_through_pyarrow(run: Path) -> None:
    import pyarrow.dataset as ds

    files = [str(path) for path in sorted(run.glob("a*/r*/stats/*.parquet"))]
    expected_rows(ds.dataset(files).to_table().to_pandas(), 100)


def test_polars_reads_the_stats(run: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.scan_parquet(str(run / "a*" / "r*" / "stats" / "*.parquet")).collect()
    expected_rows(frame.to_pandas(), 100)
    assert frame["counts"].dtype == pl.List(pl.Int64)


def test_duckdb_reads_the_stats(run: Path) -> None:
    import duckdb

    glob = f"{run}/a*/r*/stats/*.parquet"
    expected_rows(duckdb.sql(f"select * from '{glob}'").df(), 100)
    total = duckdb.sql(f"select sum(len(buckets)) from '{glob}' where site = 'loss'").fetchall()
    assert total == [(20,)]


def test_dask_reads_the_stats(rank: Path) -> None:
    dd = pytest.importorskip("dask.dataframe")
    assert dd.read_parquet(rank / "stats", columns=["site", "mean"])["mean"].mean().compute() == 4.5


def test_zarr_reads_the_tensors(rank: Path) -> None:
    group = zarr.open_group(rank / "tensors.zarr", mode="r")
    sites = {entry["site"]: entry["path"] for entry in group.attrs["arrays"]}  # type: ignore[union-attr,index,call-overload]
    assert set(sites) == {
        "activations/conv", "activations/conv/inner", "targets", "weights/conv/kernel", "loss",
    }  # fmt: skip
    array = group[f"{sites['activations/conv']}/data"]
    assert isinstance(array, zarr.Array)
    assert array.shape == (10, 4, 6, 2)
    assert array.attrs["step"] == list(range(10))
    assert array.attrs["size"] == [4, 4, 4, 4, 3] * 2
    assert array.metadata.dimension_names == ("step", "sample", "dim_1", "dim_2")  # type: ignore[union-attr]
    data = np.asarray(array[:])
    assert (data[3] == 3).all()
    assert np.isnan(data[4, 3]).all()
    kernel = group["weights/conv/kernel/data"]
    assert kernel.metadata.dimension_names == ("step", "dim_0", "dim_1")  # type: ignore[union-attr]
    assert group["targets/data"][4].tolist() == [4, 4, 4, 0]  # type: ignore[index]


def test_xarray_reads_one_site(rank: Path) -> None:
    data = xr.open_zarr(rank / "tensors.zarr", group="activations/conv", consolidated=False, chunks=None)[
        "data"
    ]
    assert data.dims == ("step", "sample", "dim_1", "dim_2")
    assert data.isel(step=7).values.max() == 7.0


def test_xarray_reads_the_whole_tree(rank: Path) -> None:
    tree = xr.open_datatree(rank / "tensors.zarr", engine="zarr", consolidated=False)
    assert float(tree["activations/conv/data"][2].mean()) == 2.0
    sites = {node.attrs["site"] for node in tree.subtree if "site" in node.attrs}
    assert len(sites) == 5


def test_dask_reads_the_tensors(rank: Path) -> None:
    da = pytest.importorskip("dask.array")
    array = da.from_zarr(str(rank / "tensors.zarr"), component="weights/conv/kernel/data")
    assert array.sum().compute() == 45 * 35


def test_numpy_maps_a_chunk_into_memory(rank: Path) -> None:
    chunk = np.memmap(rank / "tensors.zarr/weights/conv/kernel/data/c.0.0.0", np.float32, "r").reshape(
        -1, 7, 5
    )
    assert (chunk[9] == 9).all()


def test_the_documents_are_readable_json(run: Path) -> None:
    import json

    assert json.loads((run / "run.json").read_text())["id"] == "r"
    assert "\n" in (run / "run.json").read_text()


def test_duckdb_and_zarr_read_a_run_in_a_bucket(s3: str, make: Make) -> None:
    """The same run in an object store, read through the object store's own clients."""
    obstore = pytest.importorskip("obstore")
    import pyarrow.parquet as pq

    writer = RunWriter.create(f"{s3}/tools", "r")
    for step in range(5):
        writer.write([make("a", step, np.full((2, 3), step, np.float32))])
    writer.flush()
    store = obstore.store.from_url(f"{s3}/tools/r/a0000/r00000")
    array = zarr.open_array(
        zarr.storage.ObjectStore(store, read_only=True), path="tensors.zarr/a/data", mode="r"
    )
    assert np.asarray(array[:, 0, 0]).tolist() == [0, 1, 2, 3, 4]
    part = obstore.get(store, "stats/part-000000.parquet").bytes()
    import pyarrow as pa

    assert pq.read_table(pa.BufferReader(bytes(part)))["mean"].to_pylist() == [0, 1, 2, 3, 4]
