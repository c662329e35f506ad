"""Names on disk: every site has a folder of its own, on every file system, whatever it is called."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fitscope import read
from fitscope.store import Memory, RunWriter
from fitscope.store.schema import encode, site_path

odd = st.text(st.sampled_from(list("aA/.%+~#: \\\0\n\t\x7fé漢data")), max_size=12)
names = st.one_of(
    st.text(max_size=20), odd, st.sampled_from(["data", "..", ".", "", "/", "zarr.json", "a//b", "c.0"])
)


@given(names)
@example("activations/conv1")
@example("x" * 3000)
@example("/".join(["deep"] * 300))
@example("\ud800")
def test_paths_of_sites_are_safe_on_every_system(site: str) -> None:
    path = site_path(site)
    assert re.fullmatch(r"[A-Za-z0-9_.%+/-]+", path)
    assert len(path) <= 400
    for part in path.split("/"):
        assert 0 < len(part) <= 100
        assert part not in (".", "..", "data", "zarr.json")
        assert not part.startswith(".")
        assert not part.endswith(".")


@given(names)
def test_paths_of_sites_can_be_decoded(site: str) -> None:
    path = site_path(site)
    if len(path) < 60 and "\ud800" <= max(site, default="") <= "\udfff":
        return  # half a character: encoded all right, but not decodable as text
    parts = ["" if part == "+" else unquote(part) for part in path.split("/")]
    if not re.search(r"\+[0-9a-f]{24}$", path):
        assert "/".join(parts) == site


@given(st.lists(names, unique=True, max_size=8))
def test_no_two_sites_share_a_path(sites: list[str]) -> None:
    assert len({site_path(site) for site in sites}) == len(sites)


def test_simple_names_are_unchanged() -> None:
    assert site_path("weights/block_1/conv-2/kernel.v") == "weights/block_1/conv-2/kernel.v"
    assert site_path("activations/dense#2") == "activations/dense%232"


def test_long_names_differ() -> None:
    one, two = ("n" * 500 + end for end in "ab")
    assert site_path(one) != site_path(two)


CROWD = [
    "a", "A", "a/b", "a/B", "a/b/c", "a/data", "data", "data/data", "a//b", "", "/", ".", "..", "../..",
    "a+1", "a/+1",
    "zarr.json", "c.0.0", "x" * 300, "x" * 301, "ü", "\0", "\n", "con", "a b", "a%20b", "~", "*",
]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.permutations(CROWD))
def test_thousands_of_sites_have_separate_paths(order: list[str]) -> None:
    from fitscope.record import Moment, Record

    store = Memory()
    writer = RunWriter.create(store, "r")
    for number, site in enumerate(order):
        tensor = np.full((2, 3), number, np.float32)
        writer.write([Record(site, Moment(0, 0, 0, 0.0), (2, 3), "float32", None, tensor)])
    writer.close()
    run = read.open(store)
    assert run.sites == sorted(order)
    for number, site in enumerate(order):
        assert (run.array(site, 0) == number).all()
    # one array per group, and no group with an array above another: else xarray cannot open the tree
    root = json.loads(store.get("r/a0000/r00000/tensors.zarr/zarr.json"))
    groups = [entry["path"].casefold() for entry in root["attributes"]["arrays"]]
    assert len(set(groups)) == len(groups)
    for group in groups:
        assert not any(other.startswith(f"{group}/") for other in groups)


def test_any_object_in_notes_can_be_written() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    document = {
        "a": np.float32(1.5),
        "b": float("nan"),
        "c": (1, {2}),
        3: np.arange(3),
        "d": Odd(),
        "e": "\ud800",
        "f": {"g": [float("inf")]},
        "h": np.bool_(True),
        "i": b"bytes",
    }
    back = json.loads(encode(document))
    assert back["a"] == 1.5
    assert back["b"] == "nan"
    assert back["c"] == [1, [2]]
    assert back["3"] == [0, 1, 2]
    assert back["d"] == "odd"
    assert back["f"] == {"g": ["inf"]}
    assert back["h"] is True


@pytest.mark.parametrize("run_id", ["", "a/b", "..", ".hidden", "a\nb", "x" * 300, "a\\b"])
def test_a_run_id_that_cannot_name_a_folder_is_an_error(run_id: str) -> None:
    from fitscope.errors import StoreError

    with pytest.raises(StoreError, match="Choose another id"):
        RunWriter.create(Memory(), run_id)
