"""From a tensor to the few numbers kept about it.

`stats` defines every stat once; `host` computes them from memory in one pass (numba), `in_step` as part of a
compiled step (for accelerators), `oracle` the slow and obvious way, for the tests. Stats merge: over steps,
devices and workers.
"""
