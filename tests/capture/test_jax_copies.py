"""A copy of the state for a proof: of its own memory, on no device in particular, and without compiling anything."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from fitscope.capture.backends._jax_second_run import copied  # noqa: E402


@pytest.fixture
def compiled() -> list[str]:
    """The programs that were compiled."""
    found: list[str] = []

    def listen(event: str, seconds: float, **facts: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(str(facts.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


def test_a_copy_is_like_the_original_and_compiles_nothing(compiled):
    state = {
        "free": jnp.arange(21.0).reshape(7, 3),
        "committed": jax.device_put(jnp.ones((5, 2)), jax.devices()[0]),
        "key": jax.random.key(1),
        "number": 3,
    }
    before = len(compiled)
    copy = copied(state)
    assert len(compiled) == before
    assert copy["number"] == 3
    assert (jax.random.key_data(copy["key"]) == jax.random.key_data(state["key"])).all()
    for name in ("free", "committed"):
        assert (copy[name] == state[name]).all()
        assert copy[name].unsafe_buffer_pointer() != state[name].unsafe_buffer_pointer()
        assert copy[name]._committed == state[name]._committed, "a program would be compiled again for it"
