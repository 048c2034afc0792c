"""site.yml refuses bad input by name, before it changes anything; real runs of ansible-playbook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, COLLECTIONS

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
HOST = 'ansible_connection=local ansible_python_interpreter="{{ ansible_playbook_python }}"'
FLEET = f"[ep_fleet]\nnode1 {HOST}\nnode2 {HOST}\n[ep_fleet:vars]\nepfleet_become=false\n"


def run_site(tmp_path, inventory: str, *arguments: str) -> tuple[int, str]:
    (tmp_path / "inventory.ini").write_text(inventory)
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
        "HOME": str(tmp_path),
    }
    command = [str(PLAYBOOK), "-i", str(tmp_path / "inventory.ini"), *arguments]
    run = subprocess.run(
        [*command, str(CHECKOUT / "playbooks/site.yml")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
        timeout=300,
    )
    return run.returncode, run.stdout + run.stderr


def refused(code: int, output: str) -> str:
    assert code == 2
    assert set(re.findall(r"changed=(\d+)", output)) == {"0"}
    return output


def test_bad_values_are_all_named(tmp_path):
    values = "epfleet_ibgda_mode=fast nvshmem_version=3.2.5 ep_benchmark_hidden=7100"
    output = refused(*run_site(tmp_path, FLEET, "-e", values))
    assert "epfleet_ibgda_mode is 'fast'; it must be one of auto, gpu" in output
    assert "nvshmem_version is 3.2.5; low-latency kernels need 3.3.9" in output
    assert "ep_benchmark_hidden is 7100; it must be a multiple of 128" in output


def test_hosts_that_do_not_fit_together_are_named(tmp_path):
    inventory = FLEET.replace("node1 ", "node1 nvshmem_cuda_major=12 ")
    inventory = inventory.replace("node2 ", "node2 nvshmem_cuda_major=13 ")
    values = "ep_benchmark_num_experts=31 ep_benchmark_ranks_per_host=2"
    output = refused(*run_site(tmp_path, inventory, "-e", values))
    assert "nvshmem_cuda_major: all hosts" in output
    assert "CUDA 12: node1; CUDA 13: node2" in output
    assert (
        "ep_benchmark_num_experts is 31; it must be divisible by the number of ranks, 4" in output
    )


def test_a_host_that_cannot_be_reached_stops_the_run(tmp_path):
    lost = "node3 ansible_host=127.0.0.1 ansible_port=1\n"
    code, output = run_site(tmp_path, FLEET.replace("[ep_fleet:vars]", f"{lost}[ep_fleet:vars]"))
    assert code == 2
    assert "fatal: [node3]: FAILED!" in output
    assert "TASK [Check the hosts against each other]" not in output
    assert set(re.findall(r"changed=(\d+)", output)) == {"0"}


@pytest.mark.parametrize("inventory", ["[ep_fleet]\n", f"[others]\nnode1 {HOST}\n"])
def test_an_empty_fleet_is_refused(tmp_path, inventory):
    output = refused(*run_site(tmp_path, inventory))
    assert "epfleet_hosts is 'ep_fleet', and the inventory has no host there" in output
