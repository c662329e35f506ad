"""What the rows of the tables are called. Imports nothing: reports are made without a framework."""

from __future__ import annotations

PLAIN = "plain"
AGAIN = "plain again"
UNCAPTURED = "uncaptured step"
BUDGET = "default budget"
SAMPLED = "every step, sampled"
EXACT = "every step, exact"
TWIN = "every step, by a twin"
WHOLE = "whole tensors every 10th step, to disk"
SECOND = "second forward in a callback"
TENSORBOARD = "Keras TensorBoard callback"
TRAINSCOPE = "trainscope"
DEBUGGER = "TensorBoard debugger V2"

#: What people use instead of a scope: the row of ours that delivers more, which each is compared with.
ALTERNATIVES = {
    SECOND: SAMPLED,  # activations alone, and not those of the step
    TRAINSCOPE: SAMPLED,  # parameters at each step, activations at each 5th, no gradients of activations
    DEBUGGER: SAMPLED,  # how many values are zero, infinite, NaN
    TENSORBOARD: BUDGET,  # weights once an epoch, the running means of loss and metrics
}

#: What each row is, for the reader.
ABOUT = {
    AGAIN: "`fit` once more: what differs from 1.00 is noise",
    UNCAPTURED: "a scope that has nothing to do: `fs.Scope(to, every=fs.steps(10**12))`",
    BUDGET: "`fs.Scope(to, allowance=0)`: the share of 2 %, without the seconds that a short training may spend (`default.md` has those)",
    SAMPLED: "`fs.Scope(to, every=1)`: statistics of all layers at each step",
    EXACT: "`fs.Scope(to, every=1, exact=True)`: the same of every value",
    TWIN: '`fs.Scope(to, every=1, identity="twin")`: your own program takes every step, the one with taps runs beside it',
    WHOLE: '`keep="tensor"` of all activations and gradients, `every=10`',
    SECOND: "a callback that runs all layers again on the batch, and NumPy on their outputs",
    TENSORBOARD: "`histogram_freq=1, update_freq=1`: loss and metrics at each step, histograms of weights once an epoch",
    TRAINSCOPE: (
        "trainscope from PyPI with its own settings, called between backward and update of the same `fit`; "
        "it gets a module with one leaf for each Keras layer"
    ),
    DEBUGGER: (
        "`tf.debugging.experimental.enable_dump_debug_info`, FULL_HEALTH, no ring buffer; it is on for a whole process, so two "
        "processes take turns, one with it and one without"
    ),
}
