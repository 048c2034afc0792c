"""preflight.yml, verify.yml and site.yml on fixture hosts; real runs of ansible-playbook.

A copy of the playbooks reads each host below a root of its own; everything else is the checkout's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cases import CASES
from cases.changes import every, live, not_loaded
from conftest import CHECKOUT
from hosts import SECURE_BOOT, Tree
from layouts import UBUNTU_2204

PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture
def collection(tmp_path):
    """The collection with host_facts reading below ``root``, a variable of the host."""
    place = tmp_path / "collections/ansible_collections/epfleet/expert_parallel"
    (place / "playbooks").mkdir(parents=True)
    for name in ("plugins", "roles", "runtime", "meta", "galaxy.yml"):
        (place / name).symlink_to(CHECKOUT / name)
    for path in (CHECKOUT / "playbooks").glob("*.yml"):
        text = path.read_text()
        if path.name == "check.yml":
            marker = "      epfleet.expert_parallel.host_facts:\n"
            assert marker in text
            text = text.replace(marker, marker + '        root: "{{ root }}"\n')
        (place / "playbooks" / path.name).write_text(text)
    return place


def run(collection, tmp_path, playbook, changes, *arguments) -> tuple[int, str]:
    """Run on hosts gpu1.. with these changes: exit status and output. No run changes a host."""
    lines = ["[ep_fleet]"]
    for number, change in enumerate(changes, 1):
        tree = Tree(UBUNTU_2204)
        change(tree)
        root = tree.write(tmp_path / f"roots/gpu{number}")
        lines.append(f"gpu{number} root={root}")
    lines += [
        "[ep_fleet:vars]",
        "epfleet_become=false",
        "ansible_connection=local",
        'ansible_python_interpreter="{{ ansible_playbook_python }}"',
    ]
    (tmp_path / "hosts.ini").write_text("\n".join(lines) + "\n")
    before = snapshot(tmp_path / "roots")
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "collections"),
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_NOCOLOR": "1",
        "HOME": str(tmp_path),
    }
    ended = subprocess.run(
        [
            str(PLAYBOOK),
            *("-i", str(tmp_path / "hosts.ini")),
            *arguments,
            str(collection / "playbooks" / playbook),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
        timeout=600,
    )
    output = ended.stdout + ended.stderr
    assert set(re.findall(r"changed=(\d+)", output)) == {"0"}, output
    assert snapshot(tmp_path / "roots") == before
    return ended.returncode, output


def snapshot(folder: Path) -> dict[str, int]:
    return {
        str(path): path.lstat().st_mtime_ns
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


def healthy(_tree: Tree) -> None:
    pass


def secure_boot(tree: Tree) -> None:
    tree.files[SECURE_BOOT] = b"\6\0\0\0\1"


def fires(rule: str):
    return next(case.fires for case in CASES if case.rule == rule)


@pytest.mark.parametrize("playbook", ["preflight.yml", "verify.yml"])
def test_a_healthy_fleet_passes_and_nothing_changes(collection, tmp_path, playbook):
    code, output = run(collection, tmp_path, playbook, [healthy, healthy])
    assert code == 0
    assert "No findings on 2 hosts." in output


def test_preflight_lets_through_what_the_roles_mend(collection, tmp_path):
    """Options that are not live, and no driver at all: the rollout is there for that."""
    changes = [live(stream="0", dwords=""), every(not_loaded)]
    code, output = run(collection, tmp_path, "preflight.yml", changes)
    assert code == 0
    assert "EPD101" in output
    assert "EPD301" in output


def test_preflight_stops_for_what_no_role_mends_and_names_the_hosts(collection, tmp_path):
    changes = [secure_boot, healthy, secure_boot, healthy]
    code, output = run(collection, tmp_path, "preflight.yml", changes)
    assert code == 2
    assert "ERROR    EPD308     2 hosts  The kernel asks for signed modules and one is" in output
    assert "Nothing was changed." in output
    assert "[EPD308 on gpu[1,3]]" in output


def test_an_accepted_finding_does_not_stop(collection, tmp_path):
    accepted = json.dumps({"epfleet_accepted_findings": ["EPD308"]})
    code, output = run(collection, tmp_path, "preflight.yml", [secure_boot], "-e", accepted)
    assert code == 0
    assert "EPD308" in output


def test_an_unknown_accepted_finding_is_refused(collection, tmp_path):
    accepted = json.dumps({"epfleet_accepted_findings": ["EPD999"]})
    code, output = run(collection, tmp_path, "preflight.yml", [healthy], "-e", accepted)
    assert code == 2
    assert "epfleet_accepted_findings names 'EPD999', which is no finding" in output


def test_site_begins_with_preflight(collection, tmp_path):
    code, output = run(collection, tmp_path, "site.yml", [secure_boot])
    assert code == 2
    assert "[EPD308 on gpu1]" in output
    assert "TASK [epfleet.expert_parallel.nvidia_driver" not in output


def test_verify_fails_where_the_intended_is_not_live(collection, tmp_path):
    folder = tmp_path / "findings"
    # Three hosts: 256 experts do not divide by their ranks, which matters to a benchmark alone.
    changes = [live(stream="0", dwords=""), healthy, fires("EPD803")]
    code, output = run(
        collection, tmp_path, "verify.yml", changes, "-e", f"epfleet_findings_dir={folder}"
    )
    assert code == 2
    assert "The fleet is not as intended: [EPD101 on gpu1]" in output
    findings = json.loads((folder / "findings.json").read_text())
    assert [(item["id"], item["hosts"]) for item in findings] == [
        ("EPD101", ["gpu1"]),
        ("EPD803", ["gpu3"]),
    ]
    assert "EPD101" in (folder / "findings.html").read_text()


def test_verify_takes_the_intended_from_the_variables(collection, tmp_path):
    """The intended is what the roles would do: with other options this host is not as intended."""
    values = json.dumps({"nvidia_driver_registry_dwords": {"PeerMappingOverride": 1, "RMx": 2}})
    code, output = run(collection, tmp_path, "verify.yml", [healthy] * 2, "-e", values)
    assert code == 2
    assert "[EPD102 on gpu[1-2]]" in output


def test_verify_asks_for_no_driver_options_in_another_mode(collection, tmp_path):
    changes = [live(stream="0", dwords=""), live(stream="0", dwords="")]
    mode = ("-e", "epfleet_ibgda_mode=cpu")
    code, output = run(collection, tmp_path, "verify.yml", changes, *mode)
    assert code == 0
    assert "No findings on 2 hosts." in output


def test_check_mode_looks_and_writes_nothing(collection, tmp_path):
    folder = tmp_path / "findings"
    code, output = run(
        collection,
        tmp_path,
        "verify.yml",
        [fires("EPD803")],
        *("--check", "-e", f"epfleet_findings_dir={folder}"),
    )
    assert code == 0
    assert "EPD803" in output
    assert not folder.exists()
