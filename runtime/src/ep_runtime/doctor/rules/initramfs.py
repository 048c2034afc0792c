# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The images that kernels boot with."""

from __future__ import annotations

from typing import List

from ..intent import wanted_options
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule
from .kernels import that_count, will_boot

_REBUILD = (
    "Run role initramfs, which rebuilds every stale image and reads it back; by hand"
    " `update-initramfs -u -k all` or `dracut --force --regenerate-all`."
)


def _images(facts: Facts, state: str, of_kernels_that_count: bool) -> List[Evidence]:
    counting = dict(that_count(facts))
    found = []
    for image in facts["initramfs"]:
        if image["state"] == state and (image["kernel"] in counting) == of_kernels_that_count:
            why = counting.get(image["kernel"], "is installed")
            found.append(
                Evidence(
                    image["path"],
                    f"{image['evidence']} (kernel {image['kernel']} {why})",
                    "the options of the root file system",
                )
            )
    return found


@rule(
    "EPD201",
    ERROR,
    "The image of a kernel that boots holds other driver options than the files",
    "The driver is loaded from the image, with the image's options: a reboot does not help.",
    _REBUILD,
    role="initramfs",
)
def stale(facts: Facts, intent: Intent) -> List[Evidence]:
    """nvidia.ko is inside the image of the running kernel or of the one that boots next, and the
    options in there differ from those in the root file system. The image itself is read; exit codes
    of the tools prove nothing.
    """
    return _images(facts, "stale", True) if wanted_options(intent) else []


@rule(
    "EPD202",
    WARNING,
    "The image of another installed kernel holds other driver options than the files",
    "Whoever boots that kernel gets a driver without the options.",
    _REBUILD,
    role="initramfs",
)
def stale_others(facts: Facts, intent: Intent) -> List[Evidence]:
    """`update-initramfs -u` without `-k all` rebuilds the newest kernel's image alone."""
    return _images(facts, "stale", False) if wanted_options(intent) else []


@rule(
    "EPD203",
    WARNING,
    "An image cannot be read",
    "Nobody can say which driver options the next boot gives.",
    "Rebuild the image, or install the program that unpacks it: {seen}.",
)
def unreadable(facts: Facts, intent: Intent) -> List[Evidence]:
    """The image is damaged, cut short by a full /boot, or packed with a program this host lacks."""
    return [
        Evidence(image["path"], image["evidence"], "a readable image")
        for image in facts["initramfs"]
        if image["state"] == "unknown"
    ]


@rule(
    "EPD204",
    WARNING,
    "/boot is too full to rebuild an image",
    "The rebuild leaves the old image in place, or half of a new one.",
    "Remove kernels that are no longer booted (`apt autoremove --purge`, `dnf remove`).",
)
def no_room(facts: Facts, intent: Intent) -> List[Evidence]:
    """A new image is written beside the old one, so once more its size must be free."""
    free, largest = facts["boot"]["free_bytes"], facts["boot"]["largest_image_bytes"]
    if free is None or largest is None or free >= largest:
        return []
    return [Evidence("/boot", f"{free} bytes free", f"{largest}, the size of the largest image")]


@rule(
    "EPD205",
    ERROR,
    "The kernel that boots next has no image",
    "The host may not come back from its next boot.",
    "Build it: `update-initramfs -c -k {wanted}` or `dracut --force --kver {wanted}`.",
)
def no_image(facts: Facts, intent: Intent) -> List[Evidence]:
    """Other kernels of this host have an image, this one has none."""
    release = will_boot(facts)
    kernels = {image["kernel"] for image in facts["initramfs"]}
    if not kernels or release in kernels or release not in facts["kernel"]["installed"]:
        return []
    return [Evidence("/boot", f"images of {', '.join(sorted(kernels))} only", release)]
