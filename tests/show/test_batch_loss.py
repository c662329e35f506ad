"""The page has the loss of every batch, derived or not, and nothing where it is not known."""

from __future__ import annotations

import numpy as np

import fitscope as fs
from fitscope.pipeline.batch_loss import HEAD
from fitscope.record import Stretch
from fitscope.show.data import page_facts
from fitscope.show.data.gather import Gathered
from fitscope.store import RunWriter


def test_the_loss_lane_has_every_known_step(tmp_path):
    writer = RunWriter.create(tmp_path, "run", {})
    steps = np.arange(100)
    values = np.linspace(2, 1, 100)
    values[50], errors = 40.0, np.full(100, 1e-4)
    values[80:], errors[80], errors[81:] = np.nan, 0.0, np.inf
    zeros = np.zeros(100, np.int64)
    writer.write_stretch(Stretch(HEAD, steps, zeros, steps, steps * 1.0, values, errors, zeros + 1))
    writer.close()
    g = Gathered(fs.open(tmp_path))
    g.update()
    assert g.survey.loss.steps.tolist() == list(range(81)), "of what came after the NaN nothing is known"
    assert np.nanargmax(g.survey.loss.values) == 50
    assert np.isnan(g.survey.loss.values[80])
    lanes = {lane["name"]: lane["spans"] for lane in page_facts.now(g)["lanes"]}
    assert lanes["loss spike"] == [(50, 50)]
    assert lanes["NaN / Inf"] == [(80, 80)]
