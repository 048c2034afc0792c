"""The verdict on waits that were measured on four systemd hosts, one of them slow in a known way.

``recorded/slow_fleet.json`` is what ``scripts/slow_fleet --matrices`` wrote, medians of runs on a
machine with ten times the work that its two cores could do. What a run knows beside them, that the
slowness lasted and how far a median is off, is left out, so nothing but the matrices decides.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ep_runtime.bench.blame import OperationWaits, blame
from slow_cases import CASES, HEALTHY

RECORD = json.loads((Path(__file__).parent / "recorded" / "slow_fleet.json").read_text())
SLOW = "ep3"
RUNS = [(case, number) for case, runs in RECORD.items() for number in range(len(runs))]


def test_every_case_is_there():
    assert set(RECORD) == set(CASES)
    assert all(runs for runs in RECORD.values())


@pytest.mark.parametrize(("case", "number"), RUNS)
def test_the_right_host_and_kind_are_named(case, number):
    run = RECORD[case][number]
    operations = {}
    for name, figures in run["operations"].items():
        waits = np.array(figures["waits"], dtype=np.float64)
        own = np.array(figures["own"], dtype=np.float64)
        operations[name] = OperationWaits(waits, waits, own, figures["median"])
    late = np.array(run["late_us"])
    found = blame(run["hosts"], operations, (late, late))
    named = {run["hosts"][rank] for culprit in found for rank in culprit.ranks}
    if case == HEALTHY:
        assert found == []
    else:
        assert named == {SLOW}
        assert found[0].kind in CASES[case]
