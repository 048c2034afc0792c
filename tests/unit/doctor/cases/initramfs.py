"""Faults of the images that kernels boot with."""

from __future__ import annotations

from hosts import RECORDED
from layouts import DEBIAN_12, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404
from trees import OUR_LINE

from .changes import case, every, file, images

case("EPD201", RHEL_9, images("# nothing", older=False), images(OUR_LINE + " "), ())
case(
    "EPD202",
    UBUNTU_2404,
    lambda tree: tree.images.update({tree.layout.older_kernel: "# nothing"}),
    every(
        lambda tree: tree.images.pop(tree.layout.older_kernel),
        lambda tree: tree.remove(f"lib/modules/{tree.layout.older_kernel}"),
        lambda tree: tree.put(**{f"boot/initrd.img-{tree.layout.older_kernel}": "gone"}),
    ),
)
case(
    "EPD203",
    DEBIAN_12,
    every(
        lambda tree: tree.images.pop(tree.layout.older_kernel),
        lambda tree: tree.put(**{f"boot/initrd.img-{tree.layout.older_kernel}": b"070701cut"}),
    ),
    file("boot/initrd.img-4.9.0-old", b"070701cut"),
)
case(
    "EPD204",
    UBUNTU_2204,
    file(
        RECORDED + "df",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 9 9 0 99% /boot\n",
    ),
    file(
        RECORDED + "df",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 9 9 90 9% /boot\n",
    ),
)
case(
    "EPD205",
    SLES_15,
    lambda tree: tree.images.pop(tree.layout.kernel),
    lambda tree: (tree.images.pop(tree.layout.kernel), tree.images.pop(tree.layout.older_kernel)),
)
