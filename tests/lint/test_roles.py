"""Every role has the same rooms, and its documented variables are the ones it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
# Facts of the target read the old way, `ansible_os_family` for ansible_facts['os_family'].
FACT_VARIABLE = re.compile(
    r"\bansible_(os_family|distribution\w*|kernel|hostname|fqdn|architecture|default_ipv4|"
    r"processor\w*|memtotal_mb|python_version|date_time|env|system|machine|nodename|user_id)\b"
)


def load(path: Path):
    return yaml.safe_load(path.read_text()) or {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_same_rooms(role):
    for name in (
        "README.md",
        "defaults/main.yml",
        "meta/argument_specs.yml",
        "meta/main.yml",
        "tasks/main.yml",
    ):
        assert (role / name).is_file(), f"roles/{role.name}/{name} is missing"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_argument_specs_and_defaults_have_the_same_keys(role):
    spec = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(spec) == set(load(role / "defaults/main.yml"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_documented_defaults_are_the_defaults(role):
    """A default in the specs is the one in defaults/, but for those computed by a template."""
    spec = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load(role / "defaults/main.yml")
    differing = {
        name: (option["default"], defaults[name])
        for name, option in spec.items()
        if "default" in option
        and "{{" not in str(defaults[name])
        and option["default"] != defaults[name]
    }
    assert differing == {}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_variables_carry_the_role_name(role):
    assert all(name.startswith(f"{role.name}_") for name in load(role / "defaults/main.yml"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_readme_names_every_variable(role):
    readme = (role / "README.md").read_text()
    assert [name for name in load(role / "defaults/main.yml") if name not in readme] == []


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_facts_are_read_from_ansible_facts(path):
    found = FACT_VARIABLE.findall(path.read_text())
    assert found == [], f"write ansible_facts['...'] instead of ansible_{found}"
