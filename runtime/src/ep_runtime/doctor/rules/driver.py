# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA driver: loaded, of one version everywhere, and able to load again."""

from __future__ import annotations

import re
from typing import Any, Dict, List

from ..host.nvshmem import version_key
from ..intent import remote
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule
from .kernels import that_count, will_boot

# What NVSHMEM's installation guide asks for IBGDA.
FLOOR = "510.40.3"
_BLACKWELL = (0x2900, 0x31FF)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_VERSION = re.compile(r"^\d+(\.\d+){1,3}$")


def _older(version: Any, than: str) -> bool:
    text = str(version or "")
    return bool(_VERSION.match(text)) and version_key(text) < version_key(than)


def _installed(facts: Facts, kernel: Any) -> Dict[str, Any]:
    modules: Dict[str, Any] = facts["modules"]["installed"].get(kernel, {}).get("nvidia", {})
    return modules


@rule(
    "EPD301",
    ERROR,
    "The NVIDIA driver is not loaded",
    "No program on this host can use a GPU.",
    "Install the driver (role nvidia_driver, variable nvidia_driver_packages) or load it with"
    " `modprobe nvidia` and read what the kernel says: `dmesg | grep -i nvidia`.",
    role="nvidia_driver",
)
def not_loaded(facts: Facts, intent: Intent) -> List[Evidence]:
    """There are NVIDIA GPUs on the PCI bus, and no module nvidia in the kernel."""
    nvidia = facts["nvidia"]
    if nvidia["module_loaded"] or facts["container"]["inside"]:
        return []
    seen = f"{nvidia['gpu_count']} GPUs on the bus, no module nvidia"
    return [Evidence("/sys/module/nvidia", seen, "the loaded module")]


@rule(
    "EPD302",
    ERROR,
    "nouveau drives a GPU",
    "The NVIDIA driver cannot take that GPU.",
    "Write `blacklist nouveau` and `options nouveau modeset=0` to a file in /etc/modprobe.d,"
    " rebuild"
    " the images (`update-initramfs -u -k all`, `dracut --force --regenerate-all`) and reboot.",
)
def nouveau(facts: Facts, intent: Intent) -> List[Evidence]:
    """The kernel's own driver was loaded first, mostly out of an image built before it was
    blacklisted, or because the vendor's file that blacklists it is hidden.
    """
    return [
        Evidence(f"/sys/bus/pci/devices/{gpu['pci']}/driver", "nouveau", "nvidia")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["driver"] == "nouveau"
    ]


@rule(
    "EPD303",
    ERROR,
    "The driver is too old for IBGDA",
    "NVSHMEM cannot give GPUs their own queue pairs; only transports that go through the CPU are"
    " left.",
    f"Install driver {FLOOR} or newer (a current branch, better), then reboot.",
)
def too_old(facts: Facts, intent: Intent) -> List[Evidence]:
    """NVSHMEM's installation guide names the oldest driver that serves IBGDA."""
    if remote(intent) and _older(facts["nvidia"]["version"], FLOOR):
        where = "/proc/driver/nvidia/version"
        return [Evidence(where, facts["nvidia"]["version"], f"{FLOOR} or newer")]
    return []


@rule(
    "EPD304",
    ERROR,
    "The driver's libraries are of another version than the loaded module",
    "Every CUDA program fails: `Failed to initialize NVML: Driver/library version mismatch`.",
    "Reboot, so that the installed module is loaded (role reboot does it); then keep both in"
    " step: hold"
    " the packages (`apt-mark hold`, `dnf versionlock`) so that no unattended upgrade does this"
    " again.",
    role="reboot",
)
def library_mismatch(facts: Facts, intent: Intent) -> List[Evidence]:
    """An upgrade replaced libcuda and the module's file while the old module stays loaded."""
    library = facts["libraries"]["libcuda.so.1"]
    version = facts["nvidia"]["version"]
    if library and library["version"] and version and library["version"] != version:
        return [Evidence(library["path"], library["version"], f"{version}, the loaded module's")]
    return []


@rule(
    "EPD305",
    WARNING,
    "The installed driver module is of another version than the loaded one",
    "The next boot changes the driver, with all that was built against the old one.",
    "Reboot at a time of your choosing (role reboot does it), and rebuild gdrdrv for the new driver"
    " (role gdrcopy).",
    role="reboot",
)
def module_differs(facts: Facts, intent: Intent) -> List[Evidence]:
    """The module file of the running kernel was replaced since it was loaded."""
    module = _installed(facts, facts["kernel"]["release"])
    version = facts["nvidia"]["version"]
    if module.get("version") and version and module["version"] != version:
        return [Evidence(module["path"], module["version"], f"{version}, the loaded module's")]
    return []


@rule(
    "EPD306",
    ERROR,
    "The kernel that boots next has no NVIDIA module",
    "After the next boot: `NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA"
    " driver`.",
    "Install the headers of kernel {wanted} and build the module: `dkms autoinstall -k"
    " {wanted}`. Do"
    " not reboot before that.",
)
def next_kernel_without_driver(facts: Facts, intent: Intent) -> List[Evidence]:
    """A new kernel came in, and DKMS (or the package with the prebuilt module) did not follow."""
    release = will_boot(facts)
    others = [kernel for kernel, held in facts["modules"]["installed"].items() if "nvidia" in held]
    if not others or release in others or release not in facts["kernel"]["installed"]:
        return []
    seen = f"no nvidia.ko; there is one for {', '.join(sorted(others))}"
    found = [Evidence(f"/lib/modules/{release}", seen, release)]
    for module in facts["modules"]["dkms"]:
        for failure in module["failed"]:
            if failure["kernel"] == release:
                found.append(Evidence(f"{failure['log']}:{failure['line']}", failure["error"]))
    return found


@rule(
    "EPD307",
    WARNING,
    "DKMS could not build a module",
    "The kernel named there boots without it.",
    "Read {where}. The first error: {seen}. Mostly the kernel's headers are missing or the"
    " driver is"
    " too old for it.",
)
def dkms_failed(facts: Facts, intent: Intent) -> List[Evidence]:
    """DKMS leaves its log in the build folder when a build did not come to its end."""
    return [
        Evidence(
            f"{failure['log']}:{failure['line']}",
            failure["error"],
            f"{module['name']} {module['version']} built for kernel {failure['kernel']}",
        )
        for module in facts["modules"]["dkms"]
        for failure in module["failed"]
        if failure["kernel"] != will_boot(facts) or module["name"] != "nvidia"
    ]


@rule(
    "EPD308",
    ERROR,
    "The kernel asks for signed modules and one is not signed",
    "The kernel refuses it: `Key was rejected by service`.",
    "Use the distribution's signed modules, or sign {where} with a key that the firmware has"
    " (`mokutil"
    " --import` asks for it on the console at the next boot), or switch Secure Boot off.",
)
def unsigned(facts: Facts, intent: Intent) -> List[Evidence]:
    """With Secure Boot, in lockdown, or with CONFIG_MODULE_SIG_FORCE the kernel loads only modules
    signed with a key it trusts. Modules that DKMS builds are signed with a key of the host's own,
    if at all.
    """
    reasons = {
        "Secure Boot": facts["secure_boot"],
        "lockdown": facts["kernel"]["lockdown"] in ("integrity", "confidentiality"),
        "CONFIG_MODULE_SIG_FORCE": facts["kernel"]["config"]["MODULE_SIG_FORCE"] == "y",
    }
    asked_by = next((reason for reason, holds in reasons.items() if holds), None)
    if asked_by is None:
        return []
    return [
        Evidence(
            module["path"], "no signature", f"a signature, for {asked_by} (kernel {kernel} {why})"
        )
        for kernel, why in that_count(facts)
        for name, module in sorted(facts["modules"]["installed"].get(kernel, {}).items())
        if module["signed"] is False
    ]


@rule(
    "EPD309",
    ERROR,
    "This GPU needs the open kernel modules",
    "The proprietary module does not know it: `No devices were found`.",
    "Install the open flavour (nvidia-open, nvidia-driver-BRANCH-open) and reboot.",
)
def needs_open(facts: Facts, intent: Intent) -> List[Evidence]:
    """GPUs since Blackwell are served by the open kernel modules alone."""
    module = _installed(facts, will_boot(facts))
    proprietary = facts["nvidia"]["flavour"] == "proprietary" or module.get("license") == "NVIDIA"
    if not proprietary:
        return []
    found = []
    for gpu in facts["nvidia"]["gpus"]:
        device = gpu["device"] or ""
        known = re.match(r"^0x[0-9a-fA-F]{4}$", device)
        if known and _BLACKWELL[0] <= int(device, 16) <= _BLACKWELL[1]:
            seen = f"device {device} with the proprietary module"
            found.append(Evidence(gpu["pci"], seen, "the open modules"))
    return found


@rule(
    "EPD310",
    ERROR,
    "NVSwitches without a running fabric manager",
    "CUDA does not start: error 802, `system not yet initialized`.",
    "Install nvidia-fabricmanager of version {wanted} and `systemctl enable --now"
    " nvidia-fabricmanager` (role nvidia_driver does, where it installs the driver).",
    role="nvidia_driver",
)
def no_fabric_manager(facts: Facts, intent: Intent) -> List[Evidence]:
    """GPUs behind NVSwitches are usable only once the fabric manager has set the switches up."""
    fabric = facts["fabric"]
    if not fabric["nvswitches"] or fabric["active"] is not False:
        return []
    state = f"version {fabric['version']}" if fabric["version"] else "not installed"
    seen = f"{fabric['nvswitches']} NVSwitches; the service does not run ({state})"
    return [Evidence("nvidia-fabricmanager.service", seen, str(facts["nvidia"]["version"]))]


@rule(
    "EPD311",
    ERROR,
    "The fabric manager is of another version than the driver",
    "It refuses to start: `NVIDIA GPU driver interface version ... don't match with driver"
    " version`.",
    "Install nvidia-fabricmanager {wanted} and restart the service (role nvidia_driver does, where"
    " it installs the driver).",
    role="nvidia_driver",
)
def fabric_manager_differs(facts: Facts, intent: Intent) -> List[Evidence]:
    """The two must be equal to the last number."""
    fabric, version = facts["fabric"], facts["nvidia"]["version"]
    if not fabric["nvswitches"] or not fabric["version"] or fabric["version"] == version:
        return []
    return [Evidence("package nvidia-fabricmanager", fabric["version"], str(version))]


@rule(
    "EPD312",
    WARNING,
    "A fabric manager is enabled on a host without NVSwitches",
    "The service fails at each boot (`NV_WARN_NOTHING_TO_DO`).",
    "`systemctl disable --now nvidia-fabricmanager`.",
)
def fabric_manager_for_nothing(facts: Facts, intent: Intent) -> List[Evidence]:
    """It has nothing to manage, and says so by failing."""
    if facts["fabric"]["enabled"] and not facts["fabric"]["nvswitches"]:
        return [Evidence("nvidia-fabricmanager.service", "enabled", "no NVSwitch on the bus")]
    return []


@rule(
    "EPD313",
    WARNING,
    "The driver reported GPU errors (Xid) since the boot",
    "A GPU with hardware errors slows down or stops a whole expert-parallel group.",
    "Look the number up in NVIDIA's Xid catalogue; take the host out of the fleet for those that"
    " ask"
    " for a reset or a repair.",
)
def xid(facts: Facts, intent: Intent) -> List[Evidence]:
    """Xid lines of the kernel's log, one for each GPU and number."""
    found: Dict[Any, str] = {}
    for line in facts["kernel_log"]:
        match = _XID.search(line)
        if match:
            found.setdefault(match.groups(), line.strip())
    return [
        Evidence(f"dmesg, GPU {address}", line, f"no Xid {number}")
        for (address, number), line in sorted(found.items())
    ]


@rule(
    "EPD314",
    ERROR,
    "The kernel refused to load the NVIDIA driver",
    "No program on this host can use a GPU.",
    "Rebuild the module for this kernel (`dkms autoinstall`), or sign it: {seen}.",
)
def refused(facts: Facts, intent: Intent) -> List[Evidence]:
    """Symbol versions of another kernel, or a key that the kernel does not trust."""
    pattern = re.compile(
        r"\bnvidia: (?:disagrees about version of symbol|Unknown symbol)"
        r"|Loading of module .*nvidia.* is rejected|nvidia.*Key was rejected by service"
    )
    if facts["nvidia"]["module_loaded"]:
        return []
    lines = [line.strip() for line in facts["kernel_log"] if pattern.search(line)]
    return [Evidence("dmesg", line, "a module that loads") for line in lines[:3]]


@rule(
    "EPD315",
    ERROR,
    "A device node of the driver leads to another driver",
    "CUDA programs fail to open the device, or open the wrong one.",
    "`nvidia-modprobe -u -c=0` makes the nodes anew; then `nvidia-ctk cdi generate` where"
    " containers use"
    " CDI.",
)
def stale_node(facts: Facts, intent: Intent) -> List[Evidence]:
    """The module was loaded again and got another major number, the node still has the old one."""
    return [
        Evidence(f"/dev/{name}", f"major {node['major']}", f"major {node['registered']}")
        for name, node in sorted(facts["nvidia"]["nodes"].items())
        if node["registered"] is not None and node["major"] != node["registered"]
    ]


@rule(
    "EPD316",
    ERROR,
    "The driver does not serve a GPU that is on the bus",
    "The host has fewer usable GPUs than its peers; a run over all of them does not start.",
    "`dmesg | grep {where}` says why (often: fallen off the bus, a failed initialisation)."
    " Power-cycle"
    " the host; if it stays, the GPU is broken.",
)
def lost_gpu(facts: Facts, intent: Intent) -> List[Evidence]:
    """The driver lists the GPUs it has in /proc/driver/nvidia/gpus; one is missing there."""
    gpus = facts["nvidia"]["gpus"]
    if not any(gpu["uuid"] for gpu in gpus):
        return []
    return [
        Evidence(gpu["pci"], "on the bus, unknown to the driver", "a GPU that the driver lists")
        for gpu in gpus
        if not gpu["uuid"] and gpu["driver"] in (None, "nvidia")
    ]
