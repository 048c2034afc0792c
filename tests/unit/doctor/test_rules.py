"""Every rule fires on its fault, on no other, and not on what only looks like it."""

from __future__ import annotations

import json

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import (
    diagnose,
    model,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from cases import CASES, FLEET_CASES
from findings import fleet_findings, host_findings
from hosts import Tree
from layouts import LAYOUTS

BY_RULE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
BY_FLEET_RULE = pytest.mark.parametrize("case", FLEET_CASES, ids=lambda case: case.rule)


def ids(findings: list[dict]) -> set[str]:
    return {item["id"] for item in findings}


def test_every_rule_has_its_fixtures():
    covered = [case.rule for case in (*CASES, *FLEET_CASES)]
    assert sorted(covered) == sorted(model.RULES)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("mode", ["auto", "gpu", "cpu", "off"])
def test_a_healthy_host_has_no_findings(tmp_path, layout, mode):
    found = facts.gather(str(Tree(layout).write(tmp_path)))
    assert diagnose.diagnose(found, {"mode": mode}) == []


@BY_RULE
def test_the_fault_fires_its_rule_and_no_other(tmp_path, case):
    findings = host_findings(case, case.fires, tmp_path)
    assert ids(findings) == {case.rule, *case.also}
    check(findings)


@BY_RULE
def test_the_near_miss_fires_nothing(tmp_path, case):
    found = ids(host_findings(case, case.near, tmp_path))
    assert case.rule not in found
    assert found <= set(case.also)


@BY_FLEET_RULE
def test_the_odd_host_fires_its_rule_and_no_other(tmp_path, case):
    findings = fleet_findings(case, case.fires, tmp_path)
    assert ids(findings) == {case.rule}
    assert findings[0]["hosts"] == ["gpu2"]
    check(findings)


@BY_FLEET_RULE
def test_the_hosts_that_only_look_different_fire_nothing(tmp_path, case):
    assert ids(fleet_findings(case, case.near, tmp_path)) == set()


def check(findings: list[dict]) -> None:
    """A finding is complete, and is what the documented JSON says."""
    json.dumps(findings)
    for item in findings:
        assert item["severity"] in model.SEVERITIES
        assert item["evidence"]
        for evidence in item["evidence"]:
            assert evidence["where"]
            assert evidence["seen"]
        for text in (item["title"], item["consequence"], item["fix"]):
            assert text
            assert "{" not in text
            assert "None" not in text


def test_a_host_without_gpus_has_no_findings(tmp_path):
    assert diagnose.diagnose(facts.gather(str(tmp_path)), {"mode": "gpu"}) == []


def test_an_unknown_intent_is_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown intent 'modus'"):
        diagnose.diagnose(facts.gather(str(tmp_path)), {"modus": "gpu"})


@pytest.mark.parametrize("rule", model.RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_explains_itself(rule):
    assert rule.explanation
    assert rule.subject in diagnose.subjects()
    assert not rule.title.endswith(".")
    assert rule.role in {None, "nvidia_driver", "initramfs", "reboot", "gdrcopy", "nvshmem"}


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("sys/kernel/security/lockdown", "none [integrity] confidentiality\n", "lockdown"),
        (
            f"boot/config-{LAYOUTS[0].kernel}",
            "CONFIG_DMA_SHARED_BUFFER=y\nCONFIG_MODULE_SIG_FORCE=y\n",
            "CONFIG_MODULE_SIG_FORCE",
        ),
    ],
)
def test_signatures_are_asked_for_by_more_than_secure_boot(tmp_path, path, content, reason):
    tree = Tree(LAYOUTS[0])
    tree.files[path] = content
    findings = diagnose.diagnose(facts.gather(str(tree.write(tmp_path))))
    assert ids(findings) == {"EPD308"}
    assert reason in findings[0]["evidence"][0]["wanted"]
