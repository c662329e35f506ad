"""Who may look at the page: this machine only, with the token, by GET; and what every answer carries."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fitscope.show.app import app
from fitscope.show.guard import HEADERS, Guard
from fitscope.show.serve import Server

from .conftest import Written, steady

TOKEN = "right-token"
PATHS = ("/", "/static/main.js", "/api/runs", "/api/head", "/api/live", "/nowhere")


@pytest.fixture
def client(written: Callable[..., Written], tmp_path: Path) -> Iterator[TestClient]:
    written().add(range(20), steady("abc"))
    (tmp_path / "secret.txt").write_text("secret")
    with TestClient(
        app(str(tmp_path / "runs"), token=TOKEN), base_url="http://127.0.0.1:8760", follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def known(client: TestClient) -> TestClient:
    client.cookies.set(cookie_of(client), session_of(client))
    return client


def cookie_of(client: TestClient) -> str:
    assert isinstance(client.app, Guard)
    return client.app.cookie


def session_of(client: TestClient) -> str:
    assert isinstance(client.app, Guard)
    return client.app.session


def safe(answer: Any) -> None:
    for name, value in HEADERS.items():
        assert answer.headers[name] == value, name
    assert answer.headers.get("access-control-allow-origin") is None


@pytest.mark.parametrize("path", PATHS)
def test_a_request_without_the_token_is_refused(client: TestClient, path: str) -> None:
    for given in ("", "?token=", "?token=wrong", "?token=right-toke", "?token=right-token%00"):
        answer = client.get(path + given)
        assert answer.status_code == 403
        assert "right" not in answer.text
        safe(answer)
    client.cookies.set(cookie_of(client), "wrong")
    assert client.get(path).status_code == 403


def test_the_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(client: TestClient) -> None:
    answer = client.get(f"/?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/", "the token does not stay in the address"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    safe(answer)
    assert client.get("/").status_code == 200


def test_two_servers_can_be_open_in_one_browser(client: TestClient, tmp_path: Path) -> None:
    """Cookies know no ports: with one name for all, the second page would lock the first one out."""
    client.get(f"/?token={TOKEN}")
    with TestClient(app(tmp_path / "runs", token="another"), base_url="http://127.0.0.1:8761") as second:
        second.cookies = client.cookies
        assert second.get("/api/runs").status_code == 403
        assert second.get("/?token=another").status_code == 200
        assert second.get("/api/runs").status_code == 200
        client.cookies = second.cookies
        assert client.get("/api/runs").status_code == 200
        assert all(TOKEN not in name and "another" not in name for name in client.cookies)


def test_a_link_opened_from_a_local_file_leads_to_the_page(client: TestClient) -> None:
    """To a browser that is another site: it would not send the cookie along when sent on, so it stops on the way."""
    site = {"sec-fetch-site": "cross-site"}
    link = {**site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    answer = client.get(f"/?token={TOKEN}&a=%22%3E%3Cb", headers=link)
    assert answer.status_code == 200
    assert 'content="0;url=/?a=%22%3E%3Cb"' in answer.text
    assert TOKEN not in answer.text
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    safe(answer)
    assert client.get("/").status_code == 200
    for headers, path in ((link, "/"), (link, "/?token=wrong"), (site, f"/?token={TOKEN}"),
                          ({**link, "sec-fetch-dest": "iframe"}, f"/?token={TOKEN}"),
                          ({**link, "origin": "null"}, f"/?token={TOKEN}")):  # fmt: skip
        answer = client.get(path, headers=headers)
        assert answer.status_code == 403, (headers, path)
        safe(answer)


def test_a_redirect_never_leads_elsewhere(client: TestClient) -> None:
    for path in ("//evil.example/", "/%2f%2fevil.example", "/\\evil.example"):
        answer = client.get(f"http://127.0.0.1:8760{path}?token={TOKEN}")
        assert answer.headers.get("location", "/") == "/"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8760",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "localhost.",
        "",
        "[::",
        "10.0.0.1",
        "localhost/evil",
        "localhost:8760/evil",
        "localhost?evil",
        "localhost#evil",
        "localhost:",
        "localhost:8760x",
        "localhost:999999",
        "user@localhost",
        "localhost\\evil",
    ],
)
def test_a_forged_host_is_refused(known: TestClient, host: str) -> None:
    answer = known.get("/api/runs", headers={"host": host})
    assert answer.status_code == 403
    safe(answer)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "localhost:1", "[::1]:8760"])
def test_another_port_is_accepted(known: TestClient, host: str) -> None:
    assert known.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "file://", "https://evil"]
)
def test_other_sites_are_refused(known: TestClient, origin: str) -> None:
    answer = known.get("/api/runs", headers={"origin": origin})
    assert answer.status_code == 403
    safe(answer)
    assert known.get("/api/runs", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert known.get("/api/runs", headers={"origin": "http://localhost:8888"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("origin", "http://localhost"), ("origin", "http://evil.example")],
        [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
        [("sec-fetch-site", "Cross-Site")],
        [("sec-fetch-site", "anything")],
        [("sec-fetch-site", "")],
    ],
)
def test_headers_that_contradict_each_other_are_foreign(
    known: TestClient, headers: list[tuple[str, str]]
) -> None:
    answer = known.get("/api/runs", headers=headers)
    assert answer.status_code == 403
    safe(answer)
    for site in ("same-origin", "none"):
        assert known.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_only_get_and_head_are_answered(known: TestClient, method: str) -> None:
    answer = known.request(method, "/api/runs")
    assert answer.status_code == 405
    safe(answer)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/%2e%2e%2fapp.py",
        "/static/..%252fapp.py", "/static/..\\app.py", "/static//etc/passwd", "/static/%00main.js", "/static/", "/static/main.js%00",
        "/../../secret.txt", "/static/....//app.py", "/static/\u2025/app.py",
    ],
)  # fmt: skip
def test_only_files_of_fitscope_are_served(known: TestClient, path: str) -> None:
    answer = known.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text
    assert "secret" not in answer.text
    safe(answer)


@pytest.mark.parametrize(
    "run",
    [
        "../runs/first",
        "first/../first",
        "/etc",
        "..",
        "first%00",
        "%2e%2e",
        "..%2f..",
        "first/",
        ".",
        "a0000",
    ],
)
def test_only_runs_in_the_listing_are_served(known: TestClient, run: str) -> None:
    answer = known.get("/api/head", params={"run": run})
    assert answer.status_code == 404
    safe(answer)


def test_a_symbolic_link_out_of_the_directory_is_not_followed(
    known: TestClient, written: Callable[..., Written], tmp_path: Path
) -> None:
    written(name="other").add(range(5), steady("a"))
    runs, outside = tmp_path / "runs", tmp_path / "elsewhere"
    assert [run["id"] for run in known.get("/api/runs").json()] == ["other", "first"]
    (runs / "first").rename(outside)
    (runs / "first").symlink_to(outside)
    (runs / "linked").symlink_to(outside)
    assert [run["id"] for run in known.get("/api/runs").json()] == ["other"]
    for name in ("first", "linked", "elsewhere"):
        assert known.get("/api/head", params={"run": name}).status_code == 404


@pytest.mark.parametrize("part", ["run.json", "a0000", "a0000/r00000", "a0000/r00000/stats"])
def test_a_link_inside_a_run_is_not_followed(known: TestClient, tmp_path: Path, part: str) -> None:
    inside = tmp_path / "runs" / "first" / part
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    answer = known.get("/api/head", params={"run": "first"})
    if part == "run.json":
        assert answer.status_code == 404  # then it is no run
    else:
        assert answer.json()["rows"] == []


def test_the_served_directory_may_be_a_symbolic_link(known: TestClient, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(tmp_path / "runs")
    with TestClient(app(tmp_path / "named", token=TOKEN), base_url="http://127.0.0.1:8760") as other:
        assert other.get(f"/api/head?token={TOKEN}").status_code == 200
        assert other.get("/api/head", params={"run": "first"}).json()["rows"]


@pytest.mark.parametrize("query", ["step=x", "step=1e9", "columns=nan", "from=x&to=1", "level=-"])
def test_a_bad_request_is_not_a_server_error(known: TestClient, query: str) -> None:
    answer = known.get(f"/api/matrix?measure=activations.rms&{query}")
    assert answer.status_code == 400
    safe(answer)


@pytest.mark.parametrize("query", [f"step={'9' * 400}", "from=1e400&to=2", "level=99&first=7"])
def test_a_parameter_out_of_bounds_is_refused_with_a_message(known: TestClient, query: str) -> None:
    answer = known.get(f"/api/matrix?measure=activations.rms&{query}")
    assert answer.status_code == 400
    assert f"{query.partition('=')[0]} must be" in answer.text
    safe(answer)


@pytest.mark.parametrize(
    "query",
    [
        "measure=nothing",
        "measure=activations.rms&mode=odd",
        "measure=activations.rms&mode=run",
        "",
    ],
)
def test_an_unknown_path_is_answered_with_a_message(known: TestClient, query: str) -> None:
    answer = known.get(f"/api/matrix?{query}")
    assert answer.status_code == 404
    assert "Expected" in answer.json()["problem"]


def test_every_answer_has_security_headers_and_a_content_type(known: TestClient) -> None:
    for path, kind in (("/", "text/html"), ("/static/main.js", "text/javascript"), ("/static/style.css", "text/css"),
                       ("/api/head", "application/json"), ("/api/matrix?measure=activations.rms", "application/octet-stream")):  # fmt: skip
        answer = known.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        safe(answer)
        assert known.head(path).status_code == 200


def test_serving_leaves_other_loggers_alone(tmp_path: Path) -> None:
    closed = []

    class Theirs(logging.Handler):
        def close(self) -> None:
            closed.append(self)
            super().close()

    theirs = Theirs()
    with Server(tmp_path).start():
        assert closed == []
    theirs.close()
