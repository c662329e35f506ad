"""Reduces a tensor to the few numbers that a run keeps.

`stats` defines every stat once. `host` computes them in memory in one pass (numba), `in_step` inside a compiled step (for
accelerators), and `oracle` in the slow and obvious way, for the tests. Stats can be merged over steps, devices and workers.
"""
