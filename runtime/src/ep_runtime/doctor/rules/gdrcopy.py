# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""GDRCopy, by which a CPU thread rings the doorbell where the GPU may not."""

from __future__ import annotations

import re
from typing import Any, List, Tuple

from ..host import nvshmem
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule
from .kernels import will_boot

_REBUILD = (
    "Rebuild it: role gdrcopy, or `dkms remove gdrdrv/VERSION --all && dkms install"
    " gdrdrv/VERSION`,"
    " then `modprobe -r gdrdrv && modprobe gdrdrv`."
)
_REFUSED = re.compile(
    r"gdrdrv: (?:disagrees about version of symbol|Unknown symbol|no symbol version)"
    r"|gdrdrv.*(?:Key was rejected|Required key not available)"
    r"|Loading of module .*gdrdrv.* rejected"
)


def _needs_gdrcopy(facts: Facts, intent: Intent) -> bool:
    """Older NVSHMEM has no other way to serve a CPU-assisted queue pair."""
    versions = [nvshmem.version_key(copy["version"]) for copy in facts["nvshmem"]]
    oldest = min(versions, default=nvshmem.version_key(nvshmem.NO_GDRCOPY_NEEDED))
    needed = oldest < nvshmem.version_key(nvshmem.NO_GDRCOPY_NEEDED)
    return bool(intent["mode"] == "cpu" and needed)


def _numbers(version: Any) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(version or ""))[:3])


@rule(
    "EPD401",
    ERROR,
    "CPU-assisted IBGDA needs gdrdrv, which is not loaded",
    "NVSHMEM before 3.4.5 says `GDRCopy open call failed` and has no IBGDA; nothing reaches another"
    " host.",
    "Run role gdrcopy (epfleet_ibgda_mode: cpu), or raise nvshmem_version to 3.4.5, which can do"
    " without.",
    role="gdrcopy",
)
def not_loaded(facts: Facts, intent: Intent) -> List[Evidence]:
    """In this mode a CPU thread writes doorbells, through a mapping that GDRCopy makes."""
    if _needs_gdrcopy(facts, intent) and not facts["gdrdrv"]["loaded"]:
        return [Evidence("/sys/module/gdrdrv", "not loaded", "the loaded module")]
    return []


@rule(
    "EPD402",
    WARNING,
    "CPU-assisted IBGDA runs without GDRCopy",
    "NVSHMEM takes host memory for its queues: correct, and slower than with GDRCopy.",
    "Run role gdrcopy with epfleet_ibgda_mode: cpu.",
    role="gdrcopy",
)
def slower_without(facts: Facts, intent: Intent) -> List[Evidence]:
    """Since 3.4.5 NVSHMEM falls back to host memory (`CPU with host memory backend`)."""
    usable = facts["gdrdrv"]["loaded"] and facts["gdrdrv"]["library"]
    if intent["mode"] == "cpu" and not usable and not _needs_gdrcopy(facts, intent):
        missing = "libgdrapi.so.2" if facts["gdrdrv"]["loaded"] else "gdrdrv"
        return [Evidence("GDRCopy", f"{missing} is missing", "gdrdrv loaded, libgdrapi.so.2")]
    return []


@rule(
    "EPD403",
    ERROR,
    "gdrdrv is loaded, but /dev/gdrdrv is missing or leads elsewhere",
    "gdr_open fails (errno 2 or 6): NVSHMEM disables GDRCopy.",
    "Make the node anew: role gdrcopy, or `rm -f /dev/gdrdrv; mknod -m 666 /dev/gdrdrv c"
    " {wanted} 0`.",
    role="gdrcopy",
)
def no_node(facts: Facts, intent: Intent) -> List[Evidence]:
    """The module makes no node itself and gets a new major number at each load. A script of the
    package makes the node; where modules-load.d alone loads the module, nobody does.
    """
    gdrdrv = facts["gdrdrv"]
    if not gdrdrv["loaded"] or gdrdrv["device_ok"] or gdrdrv["major"] is None:
        return []
    node = gdrdrv["device_major"]
    seen = "missing" if node is None else f"major {node}"
    return [Evidence("/dev/gdrdrv", seen, str(gdrdrv["major"]))]


@rule(
    "EPD404",
    ERROR,
    "gdrdrv was built for the other flavour of the driver",
    "It cannot be loaded beside the driver that is there.",
    _REBUILD,
    role="gdrcopy",
)
def other_flavour(facts: Facts, intent: Intent) -> List[Evidence]:
    """Built against the proprietary driver's sources gdrdrv depends on nv-p2p-dummy, which the open
    driver does not have.
    """
    found = []
    for kernel, modules in sorted(facts["modules"]["installed"].items()):
        module, driver = modules.get("gdrdrv"), modules.get("nvidia")
        if module is None or module["depends"] is None or kernel != will_boot(facts):
            continue
        open_driver = bool(driver and "GPL" in (driver["license"] or ""))
        if open_driver and "nv-p2p-dummy" in module["depends"].replace("_", "-").split(","):
            found.append(Evidence(module["path"], f"depends on {module['depends']}", "nvidia"))
    return found


@rule(
    "EPD405",
    WARNING,
    "gdrdrv is missing or built for another kernel on the kernel that boots next",
    "GDRCopy is gone after the next boot.",
    "Install the headers of that kernel and build it: `dkms autoinstall -k {wanted}`.",
    role="gdrcopy",
)
def next_kernel(facts: Facts, intent: Intent) -> List[Evidence]:
    """Other kernels have the module; or its version magic names another kernel."""
    release = will_boot(facts)
    installed = facts["modules"]["installed"]
    module = installed.get(release, {}).get("gdrdrv")
    if module is None:
        if release in installed and any("gdrdrv" in modules for modules in installed.values()):
            return [Evidence(f"/lib/modules/{release}", "no gdrdrv.ko", release)]
        return []
    magic = (module["vermagic"] or release).split(" ")[0]
    # A link that the distribution made to a module of a kernel with the same interface.
    compatible = "/weak-updates/" in module["path"]
    if magic == release or compatible:
        return []
    return [Evidence(module["path"], f"built for {magic}", release)]


@rule(
    "EPD406",
    WARNING,
    "libgdrapi is newer than gdrdrv",
    "gdr_open refuses an older module: `The minimum required gdrdrv driver version is ...`.",
    "Install gdrdrv {wanted} and load it anew (role gdrcopy).",
    role="gdrcopy",
)
def library_newer(facts: Facts, intent: Intent) -> List[Evidence]:
    """Older libraries work with newer modules; the other way there is a least version."""
    library, module = facts["gdrdrv"]["library_version"], facts["gdrdrv"]["version"]
    if library and module and _numbers(library)[:2] > _numbers(module)[:2]:
        return [Evidence("/sys/module/gdrdrv/version", module, library)]
    return []


@rule(
    "EPD407",
    WARNING,
    "GDRCopy is too old for this kernel or this driver",
    "It does not build, or maps memory wrongly.",
    "Install GDRCopy {wanted} (variable gdrcopy_version).",
    role="gdrcopy",
)
def too_old(facts: Facts, intent: Intent) -> List[Evidence]:
    """Its change log names 2.5.1 for CUDA 13 (driver 580) and 2.5.2 for kernels since 6.15."""
    version = facts["gdrdrv"]["version"]
    if not version:
        return []
    driver, kernel = _numbers(facts["nvidia"]["version"]), _numbers(facts["kernel"]["release"])
    # The module's version leaves the third number out.
    own = _numbers(version)
    if kernel[:2] >= (6, 15) and own < (2, 5, 2)[: len(own)]:
        wanted = "2.5.2 or newer"
    elif driver[:1] >= (580,) and own < (2, 5, 1)[: len(own)]:
        wanted = "2.5.1 or newer"
    else:
        return []
    return [Evidence("/sys/module/gdrdrv/version", version, wanted)]


@rule(
    "EPD408",
    ERROR,
    "The kernel refused to load gdrdrv",
    "There is no GDRCopy.",
    _REBUILD + " It was built against another driver or is not signed.",
    role="gdrcopy",
)
def refused(facts: Facts, intent: Intent) -> List[Evidence]:
    """DKMS rebuilds modules for a new kernel, not for a new NVIDIA driver; gdrdrv then asks for
    symbols of the old one.
    """
    if facts["gdrdrv"]["loaded"]:
        return []
    lines = [line.strip() for line in facts["kernel_log"] if _REFUSED.search(line)]
    return [Evidence("dmesg", line, "a module that loads") for line in lines[:3]]
