"""With a loaded driver: options go live by a reboot, and a policy that forbids it is obeyed.

No kernel here loads the stand-in. What a loaded driver says under /proc/driver comes from files
that `tests/standin/load` puts there at boot, with the options that modprobe would pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import testinfra
from conftest import BACKENDS, NAMES
from walk import SKIP, Run, boot_counts, everywhere

LOAD = (Path(__file__).resolve().parents[3] / "tests/standin/load").read_text()
UNIT = """[Service]
Type=oneshot
ExecStart=/usr/local/sbin/standin-load
[Install]
WantedBy=multi-user.target
"""
# With a GPU there the hosts are found wanting: no libmlx5, no NIC, a limit on locked memory.
ACCEPTED = {"epfleet_accepted_findings": ["EPD506", "EPD601", "EPD801"]}
NEED = {"epfleet_reboot_policy": "when_needed", "nvidia_driver_take_over": True, **ACCEPTED}
DWORDS = {"PeerMappingOverride": 1, "EpfleetLoaded": 1}


def booted(since):
    """How often each host booted since those counts."""
    return [after - since[name] for name, after in boot_counts().items()]


@pytest.fixture(scope="module")
def loading():
    """Every host's driver is loaded at boot, and now, with the options that a load gets."""
    for path, text in (
        ("/usr/local/sbin/standin-load", LOAD),
        ("/etc/systemd/system/standin-load.service", UNIT),
    ):
        everywhere(f"cat > {path} <<'EOF'\n{text}EOF\nchmod 0755 {path}")
    everywhere("systemctl enable standin-load && /usr/local/sbin/standin-load")
    yield
    everywhere(
        "systemctl disable standin-load; umount /proc/driver;"
        " rm /usr/local/sbin/standin-load /etc/systemd/system/standin-load.service"
    )


@pytest.fixture(scope="module")
def live(loading):
    counts = boot_counts()
    run = Run("site", nvidia_driver_registry_dwords=DWORDS, **NEED)
    return run, booted(counts), everywhere("cat /proc/driver/nvidia/params")


def test_options_that_the_loaded_driver_lacks_take_one_reboot(live):
    run, boots, _params = live
    assert run.status == 0, run.output[-3000:]
    assert boots == [1, 1, 1]
    assert "the loaded driver has the options that it should have" in " ".join(run.output.split())


def test_the_driver_has_them_now(live):
    assert all("EpfleetLoaded=1" in params for params in live[2].values())


@pytest.fixture(scope="module")
def repeated(live):
    counts = boot_counts()
    return Run("site", nvidia_driver_registry_dwords=DWORDS, **NEED), booted(counts)


def test_live_options_take_no_reboot(repeated):
    run, boots = repeated
    assert (run.changes, boots) == ([], [0, 0, 0])


@pytest.fixture(scope="module")
def busy(repeated):
    """A change that needs a reboot, with a process on a GPU of the first host."""
    first = testinfra.get_host(BACKENDS[0])
    first.check_output("touch /dev/nvidia0; nohup sleep 600 < /dev/nvidia0 > /dev/null 2>&1 &")
    counts = boot_counts()
    run = Run("site", nvidia_driver_registry_dwords={**DWORDS, "EpfleetBusy": 1}, **NEED)
    boots = booted(counts)
    first.check_output("pkill -x sleep; rm /dev/nvidia0")
    return run, boots


def test_work_on_the_gpus_stops_the_reboot_and_is_named(busy):
    run, boots = busy
    assert run.status != 0
    assert boots == [0, 0, 0]
    assert "The GPUs are in use by sleep (" in run.message()


@pytest.fixture(scope="module")
def forbidden(busy):
    return Run("site", **{**NEED, "epfleet_reboot_policy": "never"})


def test_a_forbidden_reboot_is_named_with_every_host(forbidden):
    assert forbidden.status != 0
    assert f"{', '.join(NAMES)} must reboot before the driver options are live" in (
        forbidden.message()
    )


@pytest.fixture(scope="module")
def chosen(forbidden):
    """The mode is chosen for a driver without the options, where no reboot is allowed."""
    everywhere("/usr/local/sbin/standin-load ''")
    counts = boot_counts()
    run = Run(
        "site",
        epfleet_ibgda_mode="auto",
        epfleet_reboot_policy="never",
        skip=f"{SKIP},gdrcopy",  # the next module's subject
        **ACCEPTED,
    )
    return run, booted(counts)


def test_where_policy_forbids_the_options_the_cpu_rings_the_doorbell(chosen):
    run, boots = chosen
    assert run.status == 0, run.output[-3000:]
    assert boots == [0, 0, 0]
    assert "Mode cpu needs no driver options" in run.output
