"""The program ep-doctor, as the wheel installs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import ep_runtime
import pytest
from ep_runtime.doctor import cli

SOURCE = Path(__file__).resolve().parents[1] / "src/ep_runtime/doctor"
INSTALLED = Path(ep_runtime.__file__).parent / "doctor"
GPU = "sys/bus/pci/devices/0000:18:00.0"


@pytest.fixture
def host(tmp_path):
    """A host with a GPU and without a driver."""
    for name, content in {
        f"{GPU}/vendor": "0x10de\n",
        f"{GPU}/class": "0x030200\n",
        f"{GPU}/device": "0x2335\n",
        "proc/sys/kernel/numa_balancing": "1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def run(capsys, *arguments) -> tuple[int, str]:
    status = cli.main([str(item) for item in arguments])
    return status, capsys.readouterr().out


def test_errors_give_status_one_and_json(capsys, host):
    status, text = run(capsys, "--root", host, "--format", "json")
    findings = json.loads(text)
    assert status == 1
    assert [item["id"] for item in findings] == ["EPD301", "EPD803"]
    for item in findings:
        keys = {"id", "severity", "title", "evidence", "consequence", "fix"}
        assert keys <= set(item)
        assert set(item["evidence"][0]) == {"where", "seen", "wanted"}


def test_no_errors_give_status_zero(capsys, host):
    for path in (host / GPU).iterdir():
        path.unlink()
    status, text = run(capsys, "--root", host)
    assert status == 0
    assert text.splitlines()[-1] == "No findings on 1 host."


def test_table_and_page(capsys, host):
    status, text = run(capsys, "--root", host)
    assert status == 1
    assert text.startswith("ERROR    EPD301  The NVIDIA driver is not loaded")
    assert max(len(line) for line in text.splitlines()) <= 80
    status, text = run(capsys, "--root", host, "--format", "html")
    assert status == 1
    assert text.startswith("<!doctype html>")
    assert "EPD301" in text


def test_ibgda_says_the_state_and_the_reasons(capsys, host):
    status, text = run(capsys, "ibgda", "--root", host)
    assert status == 1
    assert text.splitlines()[0] == "IBGDA support: disabled"
    assert "EPD301" in text


def test_explain_a_file(capsys, tmp_path):
    log = tmp_path / "run.log"
    log.write_bytes(
        b"\xff\nNIC handler will be GPU.\nDeepEP timeout for barrier, rank 1, dst_rank 2\n"
    )
    status, text = run(capsys, "explain", log, "--format", "json")
    findings = json.loads(text)
    assert status == 1
    assert [item["id"] for item in findings] == ["EPL301", "EPL101"]
    assert findings[0]["evidence"][0]["where"] == f"{log}:3"
    log.write_text("NIC handler will be GPU.\n")
    assert run(capsys, "explain", log)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--root", "/no/such/place"),
        ("--format", "xml"),
        ("--num-tokens", "0"),
        ("--mode", "fast"),
        ("explain",),
        ("unknown",),
    ],
)
def test_wrong_usage_gives_status_two(arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    assert ended.value.code == 2


def test_a_log_that_is_not_there_gives_status_two(capsys, tmp_path):
    assert cli.main(["explain", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_the_compiled_core_nor_other_packages(host):
    """A None in sys.modules makes the import of that name fail."""
    check = (
        "import sys\n"
        "for name in ('torch', 'ep_runtime._core', 'jinja2', 'rich'): sys.modules[name] = None\n"
        "from ep_runtime.doctor import cli\n"
        f"status = cli.main(['--root', {str(host)!r}, '--format', 'json'])\n"
        "assert not [name for name in sys.modules if name.startswith(('torch.', 'numpy'))]\n"
        "sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert json.loads(ended.stdout)[0]["id"] == "EPD301"


def test_names_of_the_package_are_still_there():
    for name in ep_runtime.__all__:
        assert getattr(ep_runtime, name) is not None
        assert name in dir(ep_runtime)
    with pytest.raises(AttributeError, match="no_such_name"):
        ep_runtime.no_such_name  # noqa: B018 - the access is the test


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_has_the_files_of_the_source():
    """The collection uses the source through a link, so it is the same set of files there."""
    assert files(INSTALLED) == files(SOURCE)


@pytest.mark.skipif(
    not (Path(sysconfig.get_path("scripts")) / "ep-doctor").exists(),
    reason="ep_runtime is not installed as a wheel here",
)
def test_the_installed_program_reads_a_log_from_its_input():
    program = Path(sysconfig.get_path("scripts")) / "ep-doctor"
    ended = subprocess.run(
        [program, "explain", "-"],
        input="Unable to create ah.\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert ended.returncode == 1
    assert "EPL114" in ended.stdout
