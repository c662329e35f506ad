"""A process does not end before its writers have, whatever ends it. Each test is a small script in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

#: What the scripts share: a writer that takes a moment for each item, and appends it to a file.
HEAD = """
    import atexit, ctypes, multiprocessing, os, signal, sys, threading, time
    from pathlib import Path
    from fitscope.pipeline import signals
    from fitscope.pipeline import unfinished
    from fitscope.pipeline.queue import Transport

    place = Path(sys.argv[1])
    ITEMS = 40

    def say(*words):
        with (place / "said").open("a") as file:
            print(*words, file=file)

    class Owner:
        more = False
        def more_may_come(self): return self.more
        def process_ends(self, signal): say("ends by", signal)
        def goodbye(self): say("goodbye")

    def make(name="items", pause=0.01, owner=None, end=lambda: None, items=ITEMS):
        def work(items):
            for item in items:
                time.sleep(pause)
                with (place / name).open("a") as file:
                    print(item, file=file)
        def ending():
            end()
            say("end of", name)
        made = Transport(
            work, lambda: 60.0, lambda error, item: say("error", error), limit=10**9, end=ending,
            skipped=lambda item: say("skipped", item), owner=owner or Owner(),
        )
        for item in range(items):
            made.put(item, 10**9 // 50)  # too large to be worked on together with others
        return made

    def ready():
        (place / "ready").touch()
"""


class Script:
    """A script that runs, and what it has written so far."""

    def __init__(self, place: Path, body: str) -> None:
        self.place = place
        path = place / "script.py"
        path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
        with (place / "stderr").open("w") as errors:
            self.process = subprocess.Popen([sys.executable, str(path), str(place)], stderr=errors)

    def send(self, number: int, when: Callable[[], bool] | None = None) -> Script:
        """Sends a signal, once the script says that it is ready."""
        while not (when or (self.place / "ready").exists)():
            assert self.process.poll() is None
            time.sleep(0.005)
        time.sleep(0.1)
        self.process.send_signal(number)
        return self

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    @property
    def errors(self) -> str:
        return (self.place / "stderr").read_text()

    def items(self, name: str = "items") -> list[int]:
        return [int(line) for line in (self.place / name).read_text().split()]

    def said(self) -> list[str]:
        return (self.place / "said").read_text().splitlines() if (self.place / "said").exists() else []


@pytest.fixture
def script(tmp_path):
    made = []

    def start(body: str) -> Script:
        made.append(Script(tmp_path, body))
        return made[0]

    yield start
    for one in made:
        one.process.kill()


ALL = list(range(40))


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ("", 0),
        ("writer.close(wait=False)", 0),
        ("writer.close(wait=False); del writer", 0),
        ("sys.exit(3)", 3),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("raise RuntimeError", 1),
    ],
)
def test_the_end_of_a_script_waits_for_everything(script, leave, code):
    one = script(f"writer = make()\n{leave}")
    assert one.wait() == code, one.errors
    assert one.items() == ALL
    assert one.said()[-2:] == ["end of items", "goodbye"]


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import code; code.InteractiveConsole().push('raise KeyboardInterrupt')", 0),
    ],
    ids=["not caught", "in a console"],
)
def test_code_that_a_writer_executes_leaves_the_exit_status_alone(script, leave, code):
    one = script(f"writer = make(end=lambda: exec('import dataclasses'))\n{leave}")
    assert one.wait() == code, one.errors
    assert one.items() == ALL


def test_the_end_of_a_script_waits_for_several_writers(script):
    one = script("for name in 'abc': make(name)\nmake('d').close(wait=False)")
    assert one.wait() == 0
    assert [one.items(name) for name in "abcd"] == [ALL] * 4


def test_an_interrupted_wait_does_not_end_the_writer(script):
    """Python 3.11 and 3.12 then believe that the thread is dead."""
    one = script(
        """
        writer = make()
        ready()
        try:
            writer.close()
        except KeyboardInterrupt:
            say("interrupted")
        """
    ).send(signal.SIGINT)
    assert one.wait() == 0, one.errors
    assert one.said()[0] == "interrupted"
    assert one.items() == ALL


def test_a_second_ctrl_c_skips_and_counts_the_queue(script):
    one = script("writer = make(pause=0.3)\nwriter.close(wait=False)\nready()").send(signal.SIGINT)
    assert one.wait() == 0
    assert "captured steps are not written" in one.errors
    written, skipped = one.items(), [int(line.split()[1]) for line in one.said() if "skipped" in line]
    assert skipped
    assert written + skipped == ALL
    assert one.said()[-2:] == ["end of items", "goodbye"]  # closed as it should be


def test_a_third_ctrl_c_leaves_at_once(script):
    one = script("make(pause=100.0)\nready()").send(signal.SIGINT)
    one.send(signal.SIGINT, lambda: "interrupted again" in one.errors)
    one.wait()  # it would take longer than this waits
    assert "left at once" in one.errors


def test_writers_end_before_anything_is_torn_down(script):
    """Frameworks do so in functions of `atexit`, in whatever order; executors and threads cannot be started then."""
    one = script(
        """
        import concurrent.futures
        atexit.register(lambda: say("atexit before", len(unfinished.writers())))
        def end():
            thread = threading.Thread(target=lambda: say("thread"))
            thread.start()
            thread.join()
            with concurrent.futures.ThreadPoolExecutor() as executor:
                executor.submit(say, "executor").result()
        writer = make(end=end)
        atexit.register(lambda: say("atexit after", len(unfinished.writers())))
        """
    )
    assert one.wait() == 0, one.errors
    said = [line for line in one.said() if not line.startswith("ends by")]
    assert said == ["thread", "executor", "end of items", "goodbye", "atexit after 0", "atexit before 0"]


def test_a_training_in_a_thread_may_outlive_the_main_thread(script):
    one = script(
        """
        owner = Owner()
        owner.more = True
        writer = make(owner=owner)
        def train():
            threading.main_thread().join()
            time.sleep(0.2)
            say("trained", writer.put(40, 1))
        threading.Thread(target=train).start()
        """
    )
    assert one.wait() == 0, one.errors
    assert one.items() == [*ALL, 40]
    assert one.said() == ["trained True", "ends by None", "end of items", "goodbye"]


def test_a_forked_child_leaves_the_writer_to_its_parent(script):
    one = script(
        """
        writer = make()
        if os.fork() == 0:
            assert not writer.put(99, 1)
            writer.close()
            writer.drain()
            sys.exit(0)  # through the whole end of the interpreter
        say("child", os.waitstatus_to_exitcode(os.wait()[1]))
        """
    )
    assert one.wait() == 0, one.errors
    assert one.said()[0] == "child 0"
    assert one.items() == ALL


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_multiprocessing_child_waits_too(script, how):
    one = script(
        f"""
        if __name__ == "__main__":
            child = multiprocessing.get_context("{how}").Process(target=make)
            child.start()
            child.join()
            say("child", child.exitcode)
        """
    )
    assert one.wait() == 0, one.errors
    assert one.items() == ALL
    assert one.said()[-1] == "child 0"


# ---- signals that kill -----------------------------------------------------------------------------------

TRAINS = """
    import signal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests run under nohup inherit that it is ignored
    writer = make(pause=0.02)
    signals.listen()
    atexit.register(say, "atexit")
    ready()
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_kills_lets_the_writers_finish_and_kills(script, name):
    number = getattr(signal, name)
    one = script(TRAINS).send(number)
    assert one.wait() == -number, one.errors
    assert one.items() == ALL
    assert one.said() == [
        f"ends by {name}",
        "end of items",
    ]  # and nothing that the signal does not run otherwise


def test_a_second_signal_kills_the_process_at_once(script):
    one = script(TRAINS.replace("0.02", "100.0")).send(signal.SIGTERM)
    one.send(signal.SIGTERM, lambda: "ends by SIGTERM" in one.said())
    assert one.wait() == -signal.SIGTERM


def test_a_process_with_nothing_to_write_dies_at_once(script):
    one = script("signals.listen()\nready()\nwhile True: time.sleep(0.01)").send(signal.SIGTERM)
    assert one.wait() == -signal.SIGTERM


def test_a_forked_child_dies_at_once(script):
    one = script(
        """
        writer = make(pause=0.01)
        signals.listen()
        pid = os.fork()
        if pid == 0:
            while True:
                time.sleep(0.01)
        time.sleep(0.1)
        os.kill(pid, signal.SIGTERM)
        say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert one.wait() == 0, one.errors
    assert one.said()[0] == f"child {-signal.SIGTERM}"
    assert one.items() == ALL


@pytest.mark.parametrize(
    ("set_up", "is_kept"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: None)", "callable(signal.getsignal(signal.SIGTERM))"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
            "signal.getsignal(signal.SIGTERM) is signal.SIG_IGN",
        ),
        # In C, where Python does not see it.
        (
            "handler, before = ctypes.CFUNCTYPE(None, ctypes.c_int)(int), signals._in_c(15); ctypes.CDLL(None).signal(15, handler)",
            "before == 0 and signals._in_c(signal.SIGTERM) == ctypes.cast(handler, ctypes.c_void_p).value",
        ),
    ],
    ids=["a function", "ignored", "in C"],
)
def test_a_program_with_a_handler_is_left_alone(script, set_up, is_kept):
    one = script(
        f"""
        {set_up}
        mine = signal.getsignal(signal.SIGTERM)
        signals.listen()
        say({is_kept}, signal.getsignal(signal.SIGTERM) is mine)
        signals.listen_no_more()
        say({is_kept}, signal.getsignal(signal.SIGTERM) is mine)
        """
    )
    assert one.wait() == 0, one.errors
    assert one.said() == ["True True"] * 2


def test_the_default_is_back_when_nothing_is_recorded(script):
    one = script(
        """
        writer = make()
        signals.listen()
        signals.listen_no_more()
        say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        writer.close()
        signals.listen_no_more()
        say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signals._in_c(signal.SIGTERM))
        writer = make("others")
        signals.listen()
        theirs = lambda *_: None
        signal.signal(signal.SIGTERM, theirs)
        writer.close()
        signals.listen_no_more()
        say(signal.getsignal(signal.SIGTERM) is theirs)
        threading.Thread(target=signals.listen).start()  # outside of the main thread nothing is set
        """
    )
    assert one.wait() == 0, one.errors
    assert [line for line in one.said() if "end" not in line] == ["False", "True 0", "True"]
