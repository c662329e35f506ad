"""Every view, in every form: text, HTML, notebook, matplotlib."""

from __future__ import annotations

import base64
import gc
import gzip
import hashlib
import json
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fitscope as fs
from fitscope.record import Moment, Samples

from .conftest import Written, steady

VIEWS: dict[str, Callable[[fs.Run], fs.View]] = {
    "spectrogram": lambda run: run.plot.spectrogram(),
    "depth": lambda run: run.plot.depth(),
    "series": lambda run: run.plot.series("activations/b", "rms"),
    "values": lambda run: run.plot.values("b"),
    "histogram": lambda run: run.plot.histogram("gradients/b"),
    "loss": lambda run: run.plot.loss(),
    "jumps": lambda run: run.plot.jumps(step=30),
    "health": lambda run: run.plot.health(),
    "worst_samples": lambda run: run.plot.worst_samples(),
    "sample": lambda run: run.plot.sample("three"),
    "predictions": lambda run: run.plot.predictions(),
    "compare": lambda run: fs.compare(run, run),
    "model": lambda run: run.plot.model(),
    "overhead": lambda run: run.plot.overhead(),
    "summary": lambda run: run.plot.summary(),
}


def odd(step: int, name: str, value: float) -> float:
    """`b` jumps at step 30, `c` is dead from step 20 on."""
    return value * 64 if (step, name) == (30, "b") else 0.0 if name == "c" and step >= 20 else value


@pytest.fixture
def run(written: Callable[..., Written]) -> fs.Run:
    made = written()
    ids = ("one", "two", "three", "four")
    for step in range(0, 60, 5):
        at = Moment(step, 0, step, 1_800_000_000.0 + step)
        prediction = np.eye(4) * 0.9 if step else np.eye(4)[::-1] * 0.9
        loss = np.array([0.1, 0.2, 9.0 - step / 10, 0.3])
        made.writer.write(
            [],
            [Samples(at, "train", ids=ids, loss=loss, target=np.arange(4.0)[:, None], prediction=prediction)],
        )
    made.add(range(60), steady("abc", odd))
    budget = {"share": 0.02, "every": 20, "decisions": [{"step": 0, "every": 10}, {"step": 40, "every": 20}]}
    made.writer.note(overhead={"cpu_share": 0.012, "captured": 60, "steps": 60, "budget": budget})
    made.writer.note(identity={"train": {"status": "twin", "steps": [], "why": "it differs"}})
    made.writer.close()
    return fs.open(made.path)


def test_there_is_a_test_for_every_view(run: fs.Run) -> None:
    methods = {name for name in dir(run.plot) if not name.startswith("_")}
    assert methods | {"compare"} == set(VIEWS)


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_has_every_form(run: fs.Run, name: str, tmp_path: Path) -> None:
    view = VIEWS[name](run)
    assert isinstance(view, fs.View)
    assert view.kind == name
    for width in (100, 40):
        text = view.to_text(width)
        assert len(text.strip().splitlines()) >= 2, text
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text
    assert view.save(tmp_path / "x.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    bundle = view._repr_mimebundle_()
    assert 'sandbox="allow-scripts"' in bundle["text/html"]
    assert bundle["text/plain"] == view.to_text()
    assert view.save(tmp_path / "x.png").stat().st_size > 3000
    assert view.to_matplotlib().axes[0].get_title()


def test_views_show_their_facts_as_text(run: fs.Run) -> None:
    assert re.search(r"b\s+\+\d+\.\d σ", run.plot.jumps("activations", "rms", step=30).to_text())
    assert "Dead ReLU units since 20" in run.plot.health().to_text()
    worst = run.plot.worst_samples(step=0).to_text().splitlines()
    assert worst[2].split() == ["#three", "2", "1", "0.9", "9"]
    assert "steps 0 to 55" in run.plot.sample("three").to_text()
    cost = run.plot.overhead().to_text()
    assert "cpu_share" in cost
    assert re.search(r"cadence\s+every 20 steps \(budget 2 %\)", cost)
    assert re.search(r"identity\s+bit-identical: your own program took every step", cost)
    assert re.search(r"from step 40\s+every 20", cost)
    assert "recorded a twin (it differs)" in " ".join(cost.split()), "a sentence wraps and is not cut"
    assert "every 20 steps (budget 2 %)" in run.plot.summary().to_text(140)
    assert "step 40" in run.plot.depth(step=40).to_text()


def test_a_spike_is_seen_in_the_text_of_a_spectrogram(run: fs.Run) -> None:
    line = next(
        line
        for line in run.plot.spectrogram("activations", "rms").to_text(140).splitlines()
        if line.startswith("b ")
    )
    assert len(set(line[2:].strip())) == 2, "one column stands out"


def test_rows_without_a_value_are_left_out(written: Callable[..., Written]) -> None:
    def without_a(step: int) -> dict[str, Any]:
        return {site: value for site, value in steady("ab")(step).items() if site != "gradients/a"}

    run = fs.open(written(name="some").add(range(10), without_a).path)

    def rows(kind: str) -> list[str]:
        lines = run.plot.spectrogram(kind).to_text(80).splitlines()[1:-1]  # a title, rows, the scale
        return [line.partition(" ")[0] for line in lines]

    assert rows("activations") == ["a", "b"]
    assert rows("gradients") == ["b"]
    axes = run.plot.spectrogram("gradients").to_matplotlib().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b"]


def test_a_view_has_colours_only_on_request(run: fs.Run) -> None:
    view = run.plot.spectrogram()
    assert "\x1b[" not in view.to_text()
    assert "\x1b[" in view.to_text(colour=True)


def test_a_wrong_argument_is_an_error_that_lists_the_choices(
    run: fs.Run, written: Callable[..., Written], tmp_path: Path
) -> None:
    with pytest.raises(fs.RunError, match="Did you mean 'gradients'"):
        run.plot.spectrogram("gradient")
    with pytest.raises(fs.RunError, match=r"a stat of 'gradients'.*'rms', 'max', 'zeros'"):
        run.plot.spectrogram("gradients", "ratio")
    with pytest.raises(fs.RunError, match="mode"):
        run.plot.spectrogram(mode="odd")  # type: ignore[arg-type]
    with pytest.raises(fs.RunError, match="a site of run 'first'"):
        run.plot.series("activations/nobody", "rms")
    with pytest.raises(fs.RunError, match="a site of run 'first'"):
        run.plot.values("weights/a")
    with pytest.raises(fs.RunError, match=r"Received: 'bb'\. Did you mean '\w+/b'"):
        run.plot.values("bb")
    with pytest.raises(fs.RunError, match="sample"):
        run.plot.sample("nobody")
    with pytest.raises(fs.RunError, match="step from 0"):
        run.plot.depth(step=-5)
    with pytest.raises(fs.StoreError, match="ends in"):
        run.plot.spectrogram().save(tmp_path / "x.docx")
    with pytest.raises(fs.RunError, match=r"recorded steps.*'empty', which has none yet"):
        fs.open(written(name="empty").path).plot.spectrogram()
    bare = written(name="bare").add(range(3), steady("a"))
    with pytest.raises(fs.RunError, match="per_sample"):
        fs.open(bare.path).plot.worst_samples()


def test_numbers_are_freed_with_their_run(run: fs.Run) -> None:
    view = fs.compare(run.path, run.path)
    first = weakref.ref(view._gathered)
    view.to_html()
    del view
    assert first() is None, "not even until somebody collects the garbage"
    held = run.plot.spectrogram()
    assert held.run is run
    assert run.plot.loss()._gathered is held._gathered, "a run that is held is read once"


def test_the_numbers_of_a_run_are_freed_when_it_is_deleted(run: fs.Run) -> None:
    opened = fs.open(run.path)
    numbers = weakref.ref(opened.plot.spectrogram()._gathered)
    fs.compare(run, opened)
    del opened
    gc.collect()
    assert numbers() is None


def enclosed(text: str) -> tuple[dict[str, Any], set[str]]:
    """The facts in a file, and the names of its arrays."""
    found = re.search(r'id="data">([^<]*)<', text)
    assert found is not None
    data = gzip.decompress(base64.b64decode(found[1]))
    header = json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])
    return header["facts"], {name for name, *_ in header["arrays"]}


@pytest.mark.parametrize(
    ("measure", "site"),
    [
        ("weights.rms", "weights/b/kernel"),
        ("updates.ratio", "updates/b/kernel"),
        ("validation/activations.rms", "validation/activations/b"),
        ("gradients.rms", "gradients/b"),
        ("activations.rms", "activations/b"),
    ],
)
def test_a_view_of_values_uses_its_own_measure(
    written: Callable[..., Written], measure: str, site: str
) -> None:
    def at(step: int) -> dict[str, Any]:
        more = {f"{kind}/b/kernel": np.full(3, 2.0**step) for kind in ("weights", "updates")}
        return {**steady("abc")(step), **more, "validation/activations/b": np.ones(4)}

    run = fs.open(written().add(range(8), at).path)
    facts, arrays = enclosed(run.plot.histogram(site).to_html())
    assert facts["head"]["shown"][0] == measure
    assert facts["distributions"][f"b {measure}"]["site"] == site
    assert {f"distribution {site}.{part}" for part in ("start", "share")} <= arrays
    for key, about in facts["distributions"].items():
        kind = key.split()[1].split(".")[0]
        assert about["site"].startswith(kind), "of anything else it has none"


@pytest.mark.parametrize("weight", ["kernel", "bias"])
def test_the_values_of_a_weight_are_those_of_the_one_that_was_named(
    written: Callable[..., Written], weight: str
) -> None:
    def at(step: int) -> dict[str, Any]:
        return {**steady("b")(step), "weights/b/kernel": np.full(3, 4.0), "weights/b/bias": np.full(3, 16.0)}

    run, site = fs.open(written(("b",)).add(range(3), at).path), f"weights/b/{weight}"
    view = run.plot.values(site)
    assert site in view.title
    assert view.to_text().splitlines()[1].split()[0] == {"kernel": "4", "bias": "16"}[weight]
    facts, _ = enclosed(view.to_html())
    assert facts["moments"][0]["sites"][0]["site"] == site
    assert facts["distributions"]["b weights.rms"]["site"] == site


def test_a_saved_view_has_its_title(run: fs.Run, written: Callable[..., Written]) -> None:
    other = fs.open(written(name="other").add(range(60), steady("abc")).path)
    for view, words in ((run.plot.spectrogram("activations", mode="past"), ("activation RMS", "vs own past", "first")),
                        (fs.compare(run, other, "gradients", "rms"), ("gradient RMS", "vs other", "first")),
                        (run.plot.loss(), ("loss per batch", "first"))):  # fmt: skip
        text = view.to_html()
        title, caption = (re.search(f"<{tag}[^>]*>([^<]*)</", text) for tag in ("title", "h1"))
        assert title is not None
        assert caption is not None
        assert title[1] == caption[1] == view.title
        assert all(word in view.title for word in words), view.title
    assert "<h1" not in run.plot.summary().to_html(), "the whole page has a head"


def test_a_title_is_escaped_and_the_security_policy_stays(written: Callable[..., Written]) -> None:
    name = "</h1></title><script>alert(1)</script>\x1b\u202e"
    run = fs.open(written((name,)).add(range(8), steady((name,))).path)
    text = run.plot.series(f"activations/{name}", "rms").to_html()
    assert "&lt;/h1&gt;&lt;/title&gt;&lt;script&gt;alert(1)" in text
    assert not any(bad in text for bad in ("<script>alert", "</h1></title>", "\x1b", "\u202e"))
    assert text.count("<script") == 2
    policy = re.search('Policy" content="([^"]*)"', text)
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    script = r"script-src 'sha256-[^' ]+'"
    assert re.fullmatch(
        rf"default-src 'none'; {script}; style-src 'sha256-{re.escape(digest)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        policy[1],
    )


def test_a_view_shows_itself_in_a_terminal(run: fs.Run, capsys: Any) -> None:
    run.plot.loss().show()
    assert "loss per batch" in capsys.readouterr().out


def test_hostile_names_are_escaped_in_the_frame_and_the_terminal(written: Callable[..., Written]) -> None:
    name = "'\"></iframe><script>alert(1)</script>\x1b[31m\u202e"
    run = fs.open(written((name,)).add(range(8), steady((name,))).path)
    for view in (run.plot.spectrogram(), run.plot.health(), run.plot.summary()):
        bundle = view._repr_mimebundle_()
        assert "<script>alert" not in bundle["text/html"]
        assert bundle["text/html"].count("</iframe>") == 1
        assert "\x1b" not in view.to_text()
        assert "\u202e" not in view.to_text()
        view.to_matplotlib()


def test_a_notebook_keeps_the_picture_when_it_becomes_html(run: fs.Run) -> None:
    import nbformat
    from nbconvert import HTMLExporter

    data = run.plot.spectrogram()._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell(
        "view", outputs=[nbformat.v4.new_output("execute_result", data=data, execution_count=1)]
    )
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    frame = re.search(r"<iframe[^>]*>", page)
    assert frame is not None
    assert 'sandbox="allow-scripts"' in frame[0]
    assert "default-src" in frame[0]
