"""What the doctor's files may import, and that each finding has its page."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCTOR = ROOT / "runtime/src/ep_runtime/doctor"
# On hosts there is Python alone; the page is made where Ansible or the wheel brought Jinja2.
WITH_JINJA = {"page.py"}
FILES = sorted(DOCTOR.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DOCTOR)))
def test_imports_are_relative_or_of_the_standard_library(path):
    allowed = sys.stdlib_module_names | ({"jinja2"} if path.name in WITH_JINJA else set())
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            continue
        assert {name.split(".")[0] for name in names} <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DOCTOR)))
def test_the_files_are_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def declared(pattern: str) -> set[str]:
    text = "".join(path.read_text() for path in FILES)
    return set(re.findall(pattern, text))


def test_every_finding_has_its_page_and_every_page_its_finding():
    pages = {path.stem for path in (ROOT / "docs/diagnose").glob("EPD*.md")}
    assert pages == declared(r'rule\(\s*"(EPD\d{3})"')
    index = (ROOT / "docs/diagnose/README.md").read_text()
    assert set(re.findall(r"\[(EPD\d{3})\]\(\1\.md\)", index)) == pages


def test_every_message_has_its_place_on_the_page_of_logs():
    page = (ROOT / "docs/diagnose/logs.md").read_text()
    # add(__name__, "EPL101", ...) and _assertion("EPL401", ...)
    assert set(re.findall(r"^### (EPL\d{3}):", page, re.MULTILINE)) == declared(r'"(EPL\d{3})"')
