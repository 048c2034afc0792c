"""Five hundred hosts in one process."""

from __future__ import annotations

import copy
import time

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import diagnose
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from cases import CASES
from hosts import Tree
from layouts import DGX_OS


def test_five_hundred_hosts_take_less_than_five_seconds(tmp_path):
    """Hosts with 8 GPUs and 8 NICs, every tenth of them with a fault."""
    healthy = facts.gather(str(Tree(DGX_OS, devices=8).write(tmp_path / "healthy")))
    case = next(item for item in CASES if item.rule == "EPD310")
    tree = Tree(DGX_OS, devices=8)
    case.fires(tree)
    faulty = facts.gather(str(tree.write(tmp_path / "faulty")))
    fleet = {
        f"gpu{number:03d}": copy.deepcopy(healthy if number % 10 else faulty)
        for number in range(1, 501)
    }
    # The processor's time: other work on this machine is no slowness of ours.
    begin = time.process_time()
    findings = diagnose.diagnose_fleet(fleet)
    assert time.process_time() - begin < 5
    assert [item["id"] for item in findings] == ["EPD310"] * 50
