"""`fitscope serve`, `report`, `watch`: what they print and write."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from fitscope.show.serve import Server

from .conftest import Write, records


def test_serve_prints_a_working_address_and_ends_quietly_on_ctrl_c(write: Write, tmp_path: Path) -> None:
    write()
    served = subprocess.Popen(
        [sys.executable, "-m", "fitscope", "serve", str(tmp_path / "runs"), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert served.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", served.stdout.readline())
        assert found is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        deadline = time.monotonic() + 30
        while True:
            try:
                page = opener.open(found[0]).read()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert b"fitscope" in page
        served.send_signal(signal.SIGINT)
        _, errors = served.communicate(timeout=20)
        assert "Traceback" not in errors
        assert errors == ""
    finally:
        served.kill()
        served.wait()


def test_serve_explains_a_wrong_path(write: Write, call: Callable[..., Any]) -> None:
    result = call("serve", "runs")
    assert result.exit_code == 2
    assert "Received: 'runs', which does not exist" in result.output
    write()
    for command in ("serve", "ls", "show"):
        assert "Did you mean 'runs'" in call(command, "run").output, command
    result = call("serve", "runs", "--port", "99999999")
    assert result.exit_code == 2
    assert "Expected a free port" in result.output


def test_the_browser_is_not_started_with_the_token(
    write: Write, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody on a machine can see what a program was started with."""
    opened: list[Path] = []

    def look(address: str) -> None:
        assert "token" not in address
        path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address).path))
        assert path.stat().st_mode & 0o077 == 0, "nobody else can read it"
        assert re.search(r"url=http://127\.0\.0\.1:\d+/\?token=[^\"]{32}\"", path.read_text(encoding="utf-8"))
        opened.append(path)

    def run(self: Server) -> None:
        assert opened[0].exists()
        raise KeyboardInterrupt

    write()
    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr(Server, "run", run)
    call("serve", "runs", "--open", "--port", "0")
    assert not opened[0].exists()


def test_report_writes_one_file(write: Write, call: Callable[..., Any], tmp_path: Path) -> None:
    write()
    result = call("report", "runs", "-o", "out/run.html")
    assert result.exit_code == 0, result.output
    assert "out/run.html" in result.output
    assert (tmp_path / "out/run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.html"], "nothing half done stays"


def test_report_names_the_path_that_is_not_writable(
    write: Write, call: Callable[..., Any], tmp_path: Path
) -> None:
    write()
    (tmp_path / "file").write_text("")
    result = call("report", "runs", "-o", "file/run.html")
    assert result.exit_code == 2
    assert "Expected a writable file" in result.output


def test_watch_runs_until_the_run_ends(write: Write, call: Callable[..., Any]) -> None:
    writer = write(close=None)

    def train() -> None:
        try:
            time.sleep(0.5)
            writer.write(records(["conv1", "head"], 40))
        except BaseException:
            writer.close("failed")  # or nobody would stop watching
            raise
        writer.close("complete")

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        result = call("watch", "runs", "--interval", "0.1")
        training.result()
    assert result.exit_code == 0, result.output
    assert "complete" in result.output
    assert "step 40" in result.output
    assert result.output.count("╭") == 1, "into a pipe goes only the end"


def test_show_lists_the_findings(write: Write, call: Callable[..., Any]) -> None:
    from .conftest import record

    write(extra=(record("activations/conv1", 21, [[float("nan"), 1.0]]),))
    result = call("show", "runs")
    assert "NaN born here · conv1 · step 21" in result.output
