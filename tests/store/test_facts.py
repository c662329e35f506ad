"""The facts of a site: made by taps, kept as columns, derived from names in runs of format 1."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fitscope import read
from fitscope.record import Moment, Record, Samples
from fitscope.reduce import host
from fitscope.sites import Site, abbreviates
from fitscope.store import RunWriter

#: name → kind, layer, weight, pass
FACTS = {
    "activations/encoder/dense": ("activations", "encoder/dense", None, "train"),
    "gradients/dense#2[0]": ("gradients", "dense", None, "train"),
    "weight_gradients/conv1/kernel": ("weight_gradients", "conv1", "kernel", "train"),
    "weights/scale": ("weights", None, "scale", "train"),
    "updates/dense/kernel#2": ("updates", "dense", "kernel#2", "train"),
    "metrics/accuracy": ("metrics", None, None, "train"),
    "loss/d_optimizer#2": ("loss", None, None, "train"),
    "taps/attention/scores": ("taps", None, None, "train"),
    "predictions#2/out": ("predictions", None, None, "train"),
    "validation/loss": ("loss", None, None, "validation"),
    "predict/changes/activations/conv1": ("changes/activations", "conv1", None, "predict"),
}
COLUMNS = ["kind", "layer", "weight", "pass"]


@pytest.mark.parametrize("name", FACTS)
def test_a_name_is_parsed_into_the_facts_it_shows(name: str) -> None:
    site = Site.parse(name)
    assert (site.kind, site.layer or None, site.weight or None, site.in_pass) == FACTS[name]
    assert site == name


@pytest.mark.parametrize(
    "name", ["", "/", "a//b", "validation", "changes", "taps/", "activations/[x]", "a b/#c/[d"]
)
def test_an_odd_name_is_unchanged(name: str) -> None:
    assert Site.parse(name) == name


def test_a_lone_surrogate_in_a_name_costs_no_row(tmp_path: Path) -> None:
    """UTF-8 cannot hold it, so no row of its part could be written."""
    x, at = np.ones(3, np.float32), Moment(0, 0, 0, 1.0)
    odd = (Site("activations", layer="\ud800"), Site.parse("taps/\udfff"))
    assert odd == ("activations/\\ud800", "taps/\\udfff")
    sites = (Site("activations", layer="sound"), *odd)
    writer = RunWriter.create(tmp_path, "run")
    writer.write(
        [Record(site, at, (3,), "float32", host.reduce(x), x) for site in sites],
        [Samples(at, "train", "\ud800", ids=["a", "\ud800"], loss=np.zeros(2))],
    )
    writer.close()
    assert writer.lost == {}
    run = read.open(tmp_path)
    assert sorted(run.stats["site"]) == sorted(sites)
    assert all(np.array_equal(run.array(site, 0), x) for site in sites)
    assert run.samples["id"].tolist() == ["a", "\\ud800"]


def test_the_facts_survive_copies_and_pickles() -> None:
    site = Site("gradients", "head", suffix="/logits", in_pass="validation", batched=False)
    for same in (pickle.loads(pickle.dumps(site)), copy.deepcopy(site), copy.copy(site)):
        assert type(same) is Site
        assert same == site == "validation/gradients/head/logits"
        assert (same.layer, same.suffix, same.in_pass, same.batched) == (
            "head",
            "/logits",
            "validation",
            False,
        )


def test_sites_of_one_layer_share_a_place() -> None:
    assert Site("activations", "dense", suffix="#2[0]").place == ("activations", "dense")
    assert Site.at(("weights", "block/dense/kernel")) == Site("weights", "block/dense", "kernel")
    assert Site("taps", label="a/b", suffix="#2").place == ("taps", "a/b")


def test_a_short_name_matches_by_its_parts() -> None:
    assert abbreviates("weights/kernel", "weights/dense/kernel")
    assert not abbreviates("weights/kernel", "weights/dense/bias")


def _write(folder: Path) -> None:
    writer = RunWriter.create(folder, "r")
    for step in range(3):
        at = Moment(step, 0, step, 1.7e9 + step)
        array = np.arange(4.0) + step
        writer.write(
            [Record(Site.parse(name), at, array.shape, "float64", host.reduce(array)) for name in FACTS],
            [Samples(at, "validation", loss=array)],
        )
        writer.flush()
    writer.close()


def _as_format_1(folder: Path) -> None:
    """The run as an older fitscope wrote it: no facts in `stats`, and `pass` called `phase` in `samples`."""
    document = json.loads((folder / "r/run.json").read_text())
    (folder / "r/run.json").write_text(json.dumps({**document, "format": 1}))
    for file in (folder / "r").rglob("*.parquet"):
        table = pq.read_table(file)
        if file.parent.name == "stats":
            table = table.drop_columns(COLUMNS)
        else:
            table = table.rename_columns(["phase" if name == "pass" else name for name in table.column_names])
        pq.write_table(table, file)


@pytest.mark.parametrize("older", [False, True])
def test_the_tables_have_the_facts_as_columns(tmp_path: Path, older: bool) -> None:
    _write(tmp_path)
    if older:
        _as_format_1(tmp_path)
    run = read.open(tmp_path)
    frame = run.stats.drop_duplicates("site").set_index("site")[COLUMNS].astype(object)
    found = {str(name): tuple(frame.loc[name].where(frame.loc[name].notna(), None)) for name in frame.index}
    assert found == FACTS
    asked = run.sql("select distinct site from stats where kind = 'weight_gradients' and layer = 'conv1'")
    assert asked["site"].tolist() == ["weight_gradients/conv1/kernel"]
    assert run.sql("select count(*) as n from stats where pass = 'validation'")["n"][0] == 3
    assert set(run.samples["pass"]) == {"validation"}
    assert run.sql("select count(*) as n from samples where pass = 'validation'")["n"][0] == 12
    assert len(run.series("validation/loss", "mean")) == 3


@pytest.mark.parametrize("older", [False, True])
def test_a_pass_at_the_step_where_the_next_attempt_began_counts(tmp_path: Path, older: bool) -> None:
    _write(tmp_path)
    if older:
        _as_format_1(tmp_path)
    second = RunWriter.attempt(
        tmp_path, "r", start_step=2
    )  # while it goes on; one that ends with nothing takes nothing over
    run = read.open(tmp_path)
    at_two = run.sql("select site from stats where step = 2")["site"].tolist()
    assert sorted(at_two) == ["predict/changes/activations/conv1", "validation/loss"]
    assert run.stats.query("step == 2")["site"].tolist() == sorted(at_two)
    second.close()


def test_the_facts_cost_few_bytes(tmp_path: Path) -> None:
    """They repeat the name, and Parquet keeps each of them once: less than two bytes a row."""
    _write(tmp_path)
    table = pa.concat_tables(pq.read_table(file) for file in (tmp_path / "r").rglob("stats/*.parquet"))
    many = pa.concat_tables([table] * 100).sort_by("site")
    sizes = []
    for columns in (many.column_names, [name for name in many.column_names if name not in COLUMNS]):
        file = tmp_path / "size.parquet"
        pq.write_table(many.select(columns), file, compression="zstd")
        sizes.append(file.stat().st_size)
    assert sizes[0] - sizes[1] < 2 * many.num_rows
