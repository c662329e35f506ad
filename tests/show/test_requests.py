"""Requests that ask for too much, take too long or never end: each is refused or closed, and keeps nobody else waiting."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from fitscope.show import protocol
from fitscope.show.app import app
from fitscope.show.data import page_facts
from fitscope.show.data.matrix import VALUE, Matrix, Scale
from fitscope.show.guard import HEADERS, Guard
from fitscope.show.serve import Server

from .conftest import Written, steady

NUMBERS = ("step", "by", "column", "columns", "level", "first", "loss_level", "loss_first")
PATHS = ("head", "matrix", "step", "series", "moment", "samples", "distribution", "live")


@pytest.fixture
def client(written: Callable[..., Written], tmp_path: Path) -> Iterator[TestClient]:
    written(name="first").add(range(100), steady("abc"))
    written(name="second").add(range(30), steady("abc"))
    with TestClient(
        app(tmp_path / "runs", token="a-token-of-a-test"), base_url="http://127.0.0.1:8760"
    ) as client:
        assert isinstance(client.app, Guard)
        client.cookies.set(client.app.cookie, client.app.session)
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_a_number_out_of_bounds_is_refused_with_a_message(client: TestClient, path: str) -> None:
    for name in NUMBERS:
        for value in ("x", "99999999999999999999", "-99999999999999999999", "1.5", "nan", "1e3", "٣x"):
            answer = client.get(f"/api/{path}", params={"measure": "activations.rms", name: value})
            assert answer.status_code == 400, (name, value)
            assert answer.text.startswith(f"Bad request: {name} must be an integer from ")


@pytest.mark.parametrize(
    ("name", "value"), [("level", "99999999999"), ("level", "-3"), ("level", "41"), ("first", "-1")]
)
def test_a_level_out_of_range_is_refused(client: TestClient, name: str, value: str) -> None:
    answer = client.get("/api/live", params={"measure": "activations.rms", name: value})
    assert answer.status_code == 400


@pytest.mark.parametrize(("start", "end"), [("x", "1"), ("nan", "1"), ("1e400", "2"), ("0", "inf")])
def test_an_invalid_span_is_refused(client: TestClient, start: str, end: str) -> None:
    answer = client.get("/api/matrix", params={"measure": "activations.rms", "from": start, "to": end})
    assert answer.status_code == 400


@pytest.mark.parametrize("name", ["run", "other", "measure", "mode", "row", "mark"])
def test_a_name_that_is_too_long_is_refused(client: TestClient, name: str) -> None:
    assert client.get("/api/matrix", params={name: "x" * 5000}).status_code == 400


@pytest.mark.parametrize("level", [0, 1, 7, 20, 39, 40])
def test_the_coarsest_columns_are_quick_to_make(client: TestClient, level: int) -> None:
    """Before, this was a loop of 2**level steps with the lock of all runs held."""
    query = {"measure": "activations.rms", "level": level, "column": 0, "row": "a", "mark": "high"}
    assert client.get("/api/step", params=query).status_code == 200


def test_columns_wider_than_the_run_hold_all_its_steps() -> None:
    rng = np.random.default_rng(0)
    matrix = Matrix(3, Scale("linear", 0.0, 1.0))
    row, step = np.divmod(np.arange(300), 100)
    matrix.add(row, step, rng.uniform(size=300), np.full(300, VALUE, np.uint8))
    fine = matrix.window(0, 0, 100)
    for level in (7, 8, 20, 40, 61):
        wide = matrix.window(level, 0, matrix.columns(level))
        assert wide.low.tolist() == fine.low.min(axis=1, keepdims=True).tolist()
        assert wide.high.tolist() == fine.high.max(axis=1, keepdims=True).tolist()
        assert wide.flags.tolist() == [[VALUE]] * 3


def test_a_slow_request_does_not_delay_another_run(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    head = page_facts.head

    def slow(g: Any) -> Any:
        if g.run.id == "first":
            inside.set()
            assert go_on.wait(60)
        return head(g)

    monkeypatch.setattr(page_facts, "head", slow)
    answers: list[int] = []
    ask = threading.Thread(target=lambda: answers.append(client.get("/api/head?run=first").status_code))
    ask.start()
    assert inside.wait(60)
    for path in ("/", "/static/main.js", "/api/runs", "/api/head?run=second"):
        assert client.get(path).status_code == 200
    assert answers == []
    go_on.set()
    ask.join(60)
    assert answers == [200]


def test_two_runs_compared_both_ways_at_once_do_not_wait_for_each_other(client: TestClient) -> None:
    def compare(one: str, other: str) -> None:
        for _ in range(15):
            query = {"run": one, "other": other, "mode": "run", "measure": "activations.rms"}
            answers.append(client.get("/api/matrix", params=query).status_code)

    answers: list[int] = []
    asking = [
        threading.Thread(target=compare, args=names) for names in (("first", "second"), ("second", "first"))
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(120)
    assert answers == [200] * 30


def test_the_cookie_does_not_reveal_the_token(client: TestClient) -> None:
    assert isinstance(client.app, Guard)
    answer = client.get("/?token=a-token-of-a-test", follow_redirects=False)
    value = answer.cookies[client.app.cookie]
    assert value == client.app.session
    assert len(value) >= 32
    assert client.app.token not in value
    assert client.get(f"/?token={value}").status_code == 403, "the cookie is no token"
    client.cookies.clear()
    client.cookies.set(client.app.cookie, client.app.token)
    assert client.get("/api/runs").status_code == 403, "the token is no cookie"
    assert Guard(client.app, "a-token-of-a-test").session != value, (
        "another server with the same token has another"
    )


def test_a_page_on_another_port_is_refused(client: TestClient) -> None:
    assert client.get("/api/runs", headers={"sec-fetch-site": "same-site"}).status_code == 403
    assert client.get("/api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_an_internal_error_is_answered_with_all_headers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(page_facts, "head", fail)
    with caplog.at_level(logging.ERROR):
        answer = client.get("/api/head")
    assert answer.status_code == 500
    assert "oops" not in answer.text
    assert "/api/head could not be answered: ZeroDivisionError: oops" in caplog.text
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


# ---- below HTTP --------------------------------------------------------------------------------------


def heard(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause)
        said = b""
        while more := connection.recv(65536):
            said += more
        return said


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n",),
        (b"GET / HT",),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",),
        (b"GET /", b" ", b"H", b"T", b"T"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n"),
    ],
)
def test_an_incomplete_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 0.3)
    with Server(tmp_path, 0).start() as server:
        said = heard(server.port, *pieces, pause=0.05)
        assert b"200 OK" not in said


def test_an_open_event_stream_is_not_closed(
    written: Callable[..., Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 0.1)
    written(name="first").add(range(30), steady("abc"))
    with Server(tmp_path / "runs", 0, tick=0.1).start() as server:
        guard = server._guard
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            request = (
                f"GET /api/live HTTP/1.1\r\nHost: localhost\r\nCookie: {guard.cookie}={guard.session}\r\n\r\n"
            )
            connection.sendall(request.encode())
            said = connection.recv(65536)
            assert b"200 OK" in said
            time.sleep(0.5)
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                while connection.recv(65536):
                    pass


def test_half_open_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PATIENCE", 600.0)
    monkeypatch.setattr(protocol, "MOST", 5, raising=False)
    with Server(tmp_path, 0).start() as server, contextlib.ExitStack() as opened:
        half = []
        for _ in range(12):
            half.append(
                opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            )
            half[-1].sendall(b"GET / HT")
        for connection in half[:7]:  # those that have waited longest
            connection.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        guard = server._guard
        cookie = f"Cookie: {guard.cookie}={guard.session}\r\n"
        request = f"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n{cookie}Connection: close\r\n\r\n"
        assert b"200 OK" in heard(server.port, request.encode())


@pytest.mark.parametrize("times", [1, 90_000])
def test_refused_connections_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """They neither wait for another request nor for somebody to read thousands of answers."""
    monkeypatch.setattr(protocol, "MOST", 5, raising=False)
    refused = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Server(tmp_path, 0).start() as server, contextlib.ExitStack() as opened:
        for _ in range(5):
            connection = socket.socket()
            opened.enter_context(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(60)
            connection.connect(("127.0.0.1", server.port))
            with contextlib.suppress(ConnectionError):
                connection.sendall(times * refused)
            if times == 1:
                said = b"".join(iter(lambda one=connection: one.recv(4096), b""))
                assert said.startswith(b"HTTP/1.1 403")
                assert b"\r\nconnection: close\r\n" in said.lower()
        guard = server._guard
        cookie = f"Cookie: {guard.cookie}={guard.session}\r\n"
        request = f"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n{cookie}Connection: close\r\n\r\n"
        assert b"200 OK" in heard(server.port, request.encode())


def test_the_server_accepts_few_connections_at_once(tmp_path: Path) -> None:
    server = Server(tmp_path, 0)
    assert server._server.config.backlog <= 64
    server.close()


@pytest.mark.parametrize(
    "text",
    [b"nonsense\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"GET / HTTP/1.1\r\nA B\r\n\r\n", b"\x16\x03\x01\x02"],
)
def test_bytes_that_are_not_http_are_refused_with_all_headers(tmp_path: Path, text: bytes) -> None:
    with Server(tmp_path, 0).start() as server:
        said = heard(server.port, text + b"\r\n\r\n").decode().lower()
    assert said.startswith("http/1.1 400")
    for name, value in HEADERS.items():
        assert f"\r\n{name}: {value.lower()}\r\n" in said
