"""Programs that are asked on the running system: late, missing, failing, or talking too much."""

from __future__ import annotations

import time

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    commands,
    root,
)


@pytest.fixture
def ask(monkeypatch):
    """Start these programs as those of the running system."""
    started = []

    def start(deadline_s: float = 20.0, **programs: str) -> tuple[root.HostRoot, commands.Programs]:
        shells = {name.replace("_", "-"): ["sh", "-c", text] for name, text in programs.items()}
        monkeypatch.setattr(commands, "PROGRAMS", shells)
        monkeypatch.setattr(commands, "DEADLINE_S", deadline_s)
        host = root.HostRoot("/")
        started.append(commands.Programs(host))
        return host, started[-1]

    yield start
    for programs in started:
        programs.close()


def test_output_and_complaint(ask):
    _host, programs = ask(
        nvidia_smi="echo '00000000:18:00.0, 9.0, Disabled, Default, Enabled'; echo oops >&2"
    )
    assert commands.gpu_answers(programs) == {
        "gpus": {
            "0000:18:00.0": {
                "compute_capability": "9.0",
                "mig_mode": "Disabled",
                "compute_mode": "Default",
                "persistence_mode": "Enabled",
            }
        },
        "complaint": "oops",
    }


def test_a_program_that_hangs_is_given_up_and_named(ask):
    begin = time.monotonic()
    host, programs = ask(0.2, dmesg="sleep 60", df="echo; echo a b c 7 e f")
    assert programs.output("dmesg") is None
    assert programs.output("dmesg") is None
    programs.close()
    assert time.monotonic() - begin < 30
    assert host.unread == {"dmesg (no answer in 0.2 s)"}


def test_all_programs_share_one_deadline(ask):
    begin = time.monotonic()
    _host, programs = ask(0.5, **{f"p{number}": "sleep 60" for number in range(8)})
    assert {programs.output(f"p{number}") for number in range(8)} == {None}
    assert time.monotonic() - begin < 30


def test_a_program_that_is_not_there(ask, monkeypatch):
    host, programs = ask()
    assert programs.output("nvidia-smi") is None
    monkeypatch.setattr(commands, "PROGRAMS", {"nvidia-smi": ["/no/such/program"]})
    assert commands.Programs(host).output("nvidia-smi") is None
    assert host.unread == set()


def test_a_kernel_log_that_is_refused_is_told(ask):
    host, programs = ask(dmesg="echo 'dmesg: read kernel buffer failed' >&2; exit 1")
    assert commands.kernel_log(programs) == []
    assert host.unread == {"the kernel's log (dmesg)"}


def test_a_kernel_log_is_cut_to_our_modules(ask):
    _host, programs = ask(
        dmesg="yes '[1.0] usb 1-1: new device' | head -n 5000; yes '[2.0] NVRM: Xid' | head -n 300"
    )
    assert commands.kernel_log(programs) == ["[2.0] NVRM: Xid"] * 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU 0: NVIDIA H200 (UUID: x)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n", 1),
        ("GPU 0: NVIDIA L40S (UUID: x)\n", 0),
        ("Failed to initialize NVML: Unknown Error\n", None),
        ("", None),
    ],
)
def test_nvlinks(tmp_path, text, expected):
    path = tmp_path / "run/epfleet/recorded/nvidia-smi-nvlink"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    host = root.HostRoot(str(tmp_path))
    assert commands.nvlinks(commands.Programs(host)) == expected
