"""How six distributions lay out what the readers look for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Where one distribution keeps its kernels, images, modules and libraries."""

    name: str
    os_release: str
    kernel: str
    older_kernel: str
    image: str
    generator: str
    modules: str
    compression: str
    library_directory: str
    packages: str
    link_layer: str = "InfiniBand"
    nic_prefix: str = "mlx5_"
    flavour: str = "open"
    nvswitches: int = 0
    dkms: bool = True


UBUNTU_2204 = Layout(
    name="ubuntu2204",
    os_release='PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n',
    kernel="5.15.0-164-generic",
    older_kernel="5.15.0-105-generic",
    image="boot/initrd.img-{0}",
    generator="usr/sbin/mkinitramfs",
    modules="updates/dkms",
    compression="",
    library_directory="usr/lib/x86_64-linux-gnu",
    packages="dpkg",
)
UBUNTU_2404 = Layout(
    name="ubuntu2404",
    os_release='PRETTY_NAME="Ubuntu 24.04.3 LTS"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n',
    kernel="6.8.0-90-generic",
    older_kernel="6.8.0-31-generic",
    image="boot/initrd.img-{0}",
    generator="usr/sbin/mkinitramfs",
    modules="updates/dkms",
    compression=".zst",
    library_directory="usr/lib/x86_64-linux-gnu",
    packages="dpkg",
    link_layer="Ethernet",
)
DEBIAN_12 = Layout(
    name="debian12",
    os_release='PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n',
    kernel="6.1.0-57-amd64",
    older_kernel="6.1.0-9-amd64",
    image="boot/initrd.img-{0}",
    generator="usr/sbin/mkinitramfs",
    modules="updates/dkms",
    compression="",
    library_directory="usr/lib/x86_64-linux-gnu",
    packages="dpkg",
    link_layer="Ethernet",
)
RHEL_9 = Layout(
    name="rhel9",
    os_release='NAME="Red Hat Enterprise Linux"\nVERSION_ID="9.6"\nID="rhel"\nID_LIKE="fedora"\n',
    kernel="5.14.0-570.12.1.el9_6.x86_64",
    older_kernel="5.14.0-503.11.1.el9_5.x86_64",
    image="boot/initramfs-{0}.img",
    generator="usr/bin/dracut",
    modules="extra",
    compression=".xz",
    library_directory="usr/lib64",
    packages="rpm",
    dkms=False,
)
SLES_15 = Layout(
    name="sles15",
    os_release='NAME="SLES"\nVERSION_ID="15.6"\nID="sles"\nID_LIKE="suse"\n',
    kernel="6.4.0-150600.23.65-default",
    older_kernel="6.4.0-150600.21-default",
    image="boot/initrd-{0}",
    generator="usr/bin/dracut",
    modules="updates",
    compression=".gz",
    library_directory="usr/lib64",
    packages="rpm",
    link_layer="Ethernet",
    dkms=False,
)
DGX_OS = Layout(
    name="dgxos",
    os_release='PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n',
    kernel="5.15.0-1073-nvidia",
    older_kernel="5.15.0-1053-nvidia",
    image="boot/initrd.img-{0}",
    generator="usr/sbin/mkinitramfs",
    modules="updates/dkms",
    compression="",
    library_directory="usr/lib/x86_64-linux-gnu",
    packages="dpkg",
    nvswitches=4,
)
LAYOUTS = (UBUNTU_2204, UBUNTU_2404, DEBIAN_12, RHEL_9, SLES_15, DGX_OS)
