"""The command line as a whole: its commands, its version, and how it says that something is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fitscope as fs

Call = Callable[..., Any]


def test_version_prints_the_version(call: Call) -> None:
    assert call("--version").output == f"fitscope {fs.__version__}\n"


def test_without_a_command_the_help_lists_the_commands(call: Call) -> None:
    said = call().output
    assert all(name in said for name in ("demo", "ls", "show"))


def test_an_error_prints_one_message_and_exits_with_2(call: Call) -> None:
    for arguments in (("show", "nowhere"), ("ls", "nowhere"), ("demo", "--backend", "theano")):
        result = call(*arguments)
        assert result.exit_code == 2, arguments
        assert result.stderr.startswith("fitscope: Expected "), arguments
        assert "Received: " in result.stderr
        assert "Traceback" not in result.output
        assert len(result.stderr.strip().splitlines()) == 1, "not cut into lines, so that it can be copied"


def test_the_error_quotes_the_argument_as_text(call: Call) -> None:
    assert "[red]" in call("show", "[red]nowhere").stderr


def test_a_missing_backend_names_the_command_that_installs_it(call: Call, monkeypatch: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    result = call("demo", "--backend", "torch")
    assert result.exit_code == 2
    assert "pip install 'fitscope[torch]'" in result.stderr


def test_python_dash_m_works_in_a_terminal_without_unicode(write: Any, tmp_path: Path) -> None:
    write(("schön",))
    done = subprocess.run(
        [sys.executable, "-m", "fitscope", "show", "runs"],
        cwd=tmp_path,
        env={"PYTHONIOENCODING": "ascii", "PATH": "", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "sch\\xf6n" in done.stdout


def test_reading_imports_no_framework(write: Any, tmp_path: Path) -> None:
    write()
    code = (
        "import sys; from fitscope.cli import app\n"
        "try: app(['show', 'runs'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'keras', 'jax', 'tensorflow', 'torch', 'numba'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
