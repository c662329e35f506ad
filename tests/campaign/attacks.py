"""The list of attacks, and how often each is tried in a whole campaign."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from campaign.disk import disk_faults
from campaign.files import files
from campaign.ground import Round
from campaign.names import names
from campaign.power import power_cuts
from campaign.readers import looks, object_reads
from campaign.requests import requests
from campaign.trainings import fits, kills, soak


class Attack(NamedTuple):
    what: str  #: is tried, in words
    run: Callable[[int], Round]
    goal: int  #: so many in a whole campaign
    quick: bool = True  #: CI tries one seed


ATTACKS: dict[str, Attack] = {
    "kills": Attack("trainings killed by SIGKILL and resumed: JAX, TensorFlow, torch, TF1 sessions", kills, 1_000, quick=False),
    "power cuts": Attack("states of the store after a power cut", power_cuts, 10_000),
    "disk faults": Attack("runs on a disk whose calls fail: ENOSPC, EIO, EDQUOT, short, slow", disk_faults, 1_000),
    "object reads": Attack("objects read while another process replaces them", object_reads, 1_000_000),
    "looks": Attack("looks at a run while another process writes it", looks, 10_000),
    "files": Attack("files of a run changed at random and read", files, 100_000),
    "requests": Attack("random requests to the page's server", requests, 100_000),
    "names": Attack("hostile names of sites, written and read", names, 10_000),
    "soak": Attack("steps of trainings of 200,000 steps each", soak, 1_000_000, quick=False),
    "fits": Attack("trainings in one process", fits, 500, quick=False),
}  # fmt: skip
