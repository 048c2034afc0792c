"""What no variable may reach, and what every file that we write must say: docs/security.md."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TASK_FILES = sorted(
    path for part in ("roles", "playbooks") for path in (ROOT / part).rglob("*.yml")
)
PYTHON_FILES = sorted(
    path
    for part in ("plugins", "runtime/src", "runtime/shim")
    for path in (ROOT / part).rglob("*.py")
)
SHELLS = {"shell", "raw", "script", "expect"}
# Writes a file whose owner and mode it would otherwise take from whoever runs it.
WRITERS = {"copy", "template", "lineinfile", "blockinfile", "get_url", "unarchive", "assemble"}


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from mappings(part)


def calls(path: Path) -> Iterator[tuple[str, Any]]:
    """Every use of a builtin module: its short name and its arguments."""
    for mapping in mappings(yaml.safe_load(path.read_text())):
        for key, arguments in mapping.items():
            if isinstance(key, str) and key.startswith("ansible.builtin."):
                yield key.rpartition(".")[2], arguments


def problems_of(module: str, arguments: Any) -> list[str]:
    found = []
    if module in SHELLS:
        found.append(f"{module} gives its text to a shell")
    if module == "command":
        # Free-form text is split as a shell would: a value with a blank becomes two arguments.
        free = arguments if isinstance(arguments, str) else arguments.get("cmd", "")
        if "{{" in free:
            found.append(f"command takes a variable outside of argv: {free}")
    makes = module == "file" and arguments.get("state") in ("directory", "touch")
    if (module in WRITERS or makes) and "mode" not in arguments:
        found.append(f"{module} of {arguments.get('dest', arguments.get('path'))} has no mode")
    if module == "get_url" and "checksum" not in arguments:
        found.append("get_url has no checksum")
    return found


@pytest.mark.parametrize("path", TASK_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tasks(path: Path) -> None:
    found = [text for module, arguments in calls(path) for text in problems_of(module, arguments)]
    assert not found


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("shell", "echo {{ x }}"),
        ("command", "echo {{ x }}"),
        ("command", {"cmd": "echo {{ x }}"}),
        ("copy", {"dest": "/etc/x", "content": ""}),
        ("file", {"path": "/etc/x", "state": "directory"}),
        ("get_url", {"url": "https://x", "dest": "/x", "mode": "0644"}),
    ],
)
def test_each_rule_finds_its_fault(module: str, arguments: Any) -> None:
    assert problems_of(module, arguments)


def python_problems(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            found += [
                name for name in names if name.split(".")[0] in ("pickle", "marshal", "shelve")
            ]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("os.system", "os.popen", "tempfile.mktemp", "eval", "exec"):
            found.append(called)
        told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        # Loads tensors and plain values; anything else is an error.
        if called == "torch.load" and told.get("weights_only") != "True":
            found.append("torch.load without weights_only")
        for keyword in node.keywords:
            if (
                keyword.arg in ("shell", "use_unsafe_shell")
                and ast.unparse(keyword.value) != "False"
            ):
                found.append(f"{called} with {keyword.arg}")
    return found


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python(path: Path) -> None:
    """No shell, no unpickling, no evaluated text, no temporary name that another can take."""
    assert python_problems(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run(x, shell=True)",
        "module.run_command(x, use_unsafe_shell=True)",
        "os.system(x)",
        "from pickle import loads",
        "eval(x)",
        "tempfile.mktemp()",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
    ],
)
def test_each_python_rule_finds_its_fault(source: str) -> None:
    assert python_problems(source)
