"""What fixtures are made of: changes to a healthy host, one thing each, and pairs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from hosts import RECORDED, VENV, Tree
from layouts import (
    Layout,
)
from trees import OUR_LINE

Change = Callable[[Tree], object]
DWORDS = 'options nvidia NVreg_RegistryDwords="{0}"\n'
PEERMEM_REFUSED = (
    "[ 9.9] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"
)
STREAM = "options nvidia NVreg_EnableStreamMemOPs=1\n"


@dataclass(frozen=True)
class Case:
    """The fixtures of one rule: a host with exactly that fault, and a near miss without it.

    ``also`` names rules that the same fault must fire too, because two rules look at one thing from
    two sides. Everything else that fires is a mistake.
    """

    rule: str
    layout: Layout
    fires: Change
    near: Change
    also: tuple[str, ...] = ()


CASES: list[Case] = []
FLEET_CASES: list[Case] = []


def case(
    rule: str, layout: Layout, fires: Change, near: Change, also: tuple[str, ...] = ()
) -> None:
    """Add the fixtures of one rule."""
    CASES.append(Case(rule, layout, fires, near, also))


def fleet_case(rule: str, layout: Layout, fires: Change, near: Change) -> None:
    """The changes are made to one host of three."""
    FLEET_CASES.append(Case(rule, layout, fires, near))


def every(*changes: Change) -> Change:
    """Several changes as one."""

    def change(tree: Tree) -> None:
        for item in changes:
            item(tree)

    return change


def file(path: str, content: str | bytes) -> Change:
    """One file with this content."""
    return lambda tree: tree.files.__setitem__(path, content)


def without(prefix: str) -> Change:
    """Without the files whose paths begin so."""
    return lambda tree: tree.remove(prefix)


def live(stream: str = "1", dwords: str = "PeerMappingOverride=1;") -> Change:
    """What the loaded driver has."""
    return lambda tree: tree.parameters.update(stream=stream, dwords=dwords)


def images(options: str, older: bool = True) -> Change:
    """What the images hold."""

    def change(tree: Tree) -> None:
        tree.images[tree.layout.kernel] = options
        if older:
            tree.images[tree.layout.older_kernel] = options

    return change


def intent(**given: object) -> Change:
    """What the roles intend."""
    return lambda tree: tree.intent.update(given)


def environment(**variables: str) -> Change:
    """Variables of every login."""
    return lambda tree: tree.environment(**variables)


def log(*lines: str) -> Change:
    """Lines of the kernel's log."""
    return lambda tree: tree.log(*lines)


def device(i: int, name: str, value: str, kind: str = "gpu") -> Change:
    """A sysfs file of GPU or NIC ``i``."""

    def change(tree: Tree) -> None:
        address = (tree.gpus if kind == "gpu" else tree.nics)[i]
        tree.line(f"sys/devices/{tree.place(address)}/{name}", value)

    return change


def bound(i: int, driver: str) -> Change:
    """Another driver holds GPU ``i``, which the NVIDIA driver then does not list."""

    def change(tree: Tree) -> None:
        place = tree.place(tree.gpus[i])
        tree.links[f"sys/devices/{place}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        tree.remove(f"proc/driver/nvidia/gpus/{tree.gpus[i]}")

    return change


def not_loaded(tree: Tree) -> None:
    """No NVIDIA driver in the kernel."""
    tree.remove("sys/module/nvidia")
    tree.remove("proc/driver/nvidia")
    tree.remove(RECORDED + "nvidia-smi")


def unload(name: str) -> Change:
    """One module less in the kernel."""
    return without(f"sys/module/{name}")


def gdrdrv(version: str, library: str = "2.5.1") -> Change:
    """Versions of the loaded module and of the library."""

    def change(tree: Tree) -> None:
        tree.line("sys/module/gdrdrv/version", version)
        tree.library("libgdrapi.so.2", f"libgdrapi.so.{library}")

    return change


def nvshmem_copy(version: str, **named: object) -> Change:
    """The one NVSHMEM of the host, torch's own, of this version."""

    def change(tree: Tree) -> None:
        tree.remove("opt/epfleet/nvshmem")
        tree.remove(f"{VENV}/nvidia")
        tree.nvshmem(f"{VENV}/nvidia/nvshmem", version, **named)
        major = named.get("major", 13)
        pin = f"Requires-Dist: nvidia-nvshmem-cu{major}=={version}\n"
        tree.files[f"{VENV}/torch-2.13.0.dist-info/METADATA"] = pin

    return change


def renamed(prefix: str) -> Change:
    """The RDMA devices under other names."""

    def change(tree: Tree) -> None:
        for names in (tree.files, tree.links):
            for name in [name for name in names if "/infiniband/mlx5_" in name]:
                content = names.pop(name)
                if isinstance(content, str):
                    content = content.replace("/infiniband/mlx5_", f"/infiniband/{prefix}")
                names[name.replace("/infiniband/mlx5_", f"/infiniband/{prefix}")] = content

    return change


def kernel_release(release: str) -> Change:
    """Another running kernel, with modules, image and configuration of its own."""

    def change(tree: Tree) -> None:
        tree.line("proc/sys/kernel/osrelease", release)
        tree.files[f"boot/vmlinuz-{release}"] = "kernel\n"
        tree.files[f"boot/config-{release}"] = tree.files[f"boot/config-{tree.layout.kernel}"]
        tree.files[f"lib/modules/{release}/modules.order"] = ""
        tree.modules(release)
        tree.images[release] = OUR_LINE
        tree.line("etc/default/grub", f'GRUB_DEFAULT="Linux {release}"')

    return change


def dkms_log(module: str, kernel: str, *lines: str) -> Change:
    """A build that DKMS could not finish."""
    return file(
        f"var/lib/dkms/{module}/build/make.log",
        "\n".join((f"DKMS make.log for {module} for kernel {kernel} (x86_64)", *lines)) + "\n",
    )


def at(address_of: str, i: int, place: str) -> Change:
    """Move a device elsewhere on the bus."""

    def change(tree: Tree) -> None:
        address = (tree.gpus if address_of == "gpu" else tree.nics)[i]
        old, new = tree.place(address), f"{place}/{address}"
        parts = place.split("/")
        for end in range(2, len(parts) + 1):
            tree.bridge("/".join(parts[:end]))
        for names in (tree.files, tree.links):
            for name in [name for name in names if f"/{old}/" in name]:
                names[name.replace(old, new)] = names.pop(name)
        for name, target in [*tree.links.items()]:
            tree.links[name] = target.replace(old, new)

    return change


def with_older_driver_first(tree: Tree) -> None:
    """A newer kernel than the driver's modules are built for."""
    tree.without_module(tree.layout.kernel, "nvidia")
    tree.without_module(tree.layout.kernel, "nvidia-peermem")
