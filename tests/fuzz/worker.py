"""Judges specs, one per line of its input, and writes a line of JSON for each.

A process of its own, so that a model that kills Python or hangs is a finding like any other.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for number, line in enumerate(sys.stdin):
        spec = json.loads(line)
        os.environ["KERAS_BACKEND"] = spec["backend"]
        if spec["distribution"]:
            os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
        from fuzz.compare import judge

        if number == 0 and spec["backend"] == "jax":
            _keep_programs()
        print(json.dumps(judge(spec)), file=out)
        if number % 8 == 7:
            gc.collect()  # rather than after every training, which takes half a second


def _keep_programs() -> None:
    """Has JAX compile a program once that it meets twice: the user's own step, with and without a scope."""
    import jax

    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp(prefix="fuzz-programs-"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


if __name__ == "__main__":
    main()
