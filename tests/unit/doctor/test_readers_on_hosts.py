"""The readers on six whole hosts, and on hosts whose files are damaged in every way."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import elf
import pytest
import yaml
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import diagnose
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    facts,
    modinfo,
    nics,
    pci,
    root,
)
from conftest import CHECKOUT
from hosts import DRIVER, NVSHMEM, Tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import DEBIAN_12, DGX_OS, LAYOUTS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

BY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


with tempfile.TemporaryDirectory(prefix="epfleet-healthy-") as _folder:
    HEALTHY = facts.gather(str(Tree(DGX_OS).write(Path(_folder))))


def gather(tree: Tree, path) -> dict:
    found = facts.gather(str(tree.write(path)))
    json.dumps(found)
    return found


@BY_LAYOUT
def test_a_healthy_host(tmp_path, layout):
    found = gather(Tree(layout), tmp_path)
    assert found["kernel"]["next"]["release"] == layout.kernel
    assert found["kernel"]["bootable"] == [layout.older_kernel, layout.kernel]
    assert [image["state"] for image in found["initramfs"]] == ["current", "current"]
    assert [gpu["compute_capability"] for gpu in found["nvidia"]["gpus"]] == ["9.0", "9.0"]
    module = found["modules"]["installed"][layout.kernel]["nvidia"]
    assert (module["version"], module["license"], module["signed"]) == (
        DRIVER,
        "Dual MIT/GPL",
        False,
    )
    assert [item["nearness"] for item in found["affinity"]] == ["PIX", "PIX"]
    assert [item["nics"] for item in found["affinity"]] == [["mlx5_0"], ["mlx5_1"]]
    port = found["nics"][0]["ports"][0]
    assert (port["state"], port["rate_gbps"]) == ("ACTIVE", 400.0)
    assert len(port["gids"]) == (4 if layout.link_layer == "Ethernet" else 1)
    assert found["libraries"]["libcuda.so.1"]["version"] == DRIVER
    assert found["runtime"]["nvshmem_pin"] == {
        "cuda_major": 13,
        "version": "3.5.21" if layout.link_layer == "Ethernet" else "3.4.5",
    }
    assert found["nvshmem"][0]["plugins"]["ibgda"] == [found["nvshmem"][0]["plugin_abi"]]
    assert found["fabric"]["nvswitches"] == layout.nvswitches
    assert found["fabric"]["version"] == (DRIVER if layout.nvswitches else None)
    assert found["gdrdrv"]["device_ok"] is True
    assert found["unread"] == []


@BY_LAYOUT
def test_every_key_is_documented_and_every_documented_key_is_there(tmp_path, layout):
    text = (CHECKOUT / "plugins/modules/host_facts.py").read_text()
    block = re.search(r'RETURN = r"""(.*?)"""', text, re.DOTALL).group(1)
    documented = yaml.safe_load(block)["ansible_facts"]["contains"]["epfleet"]["contains"]
    found = gather(Tree(layout), tmp_path)
    assert set(found) == set(documented)
    kinds = {"dict": (dict, type(None)), "list": list, "bool": (bool, type(None))}
    assert [k for k, v in documented.items() if not isinstance(found[k], kinds[v["type"]])] == []


def test_eight_gpus_and_nics_take_less_than_a_second(tmp_path):
    Tree(DGX_OS, devices=8).write(tmp_path)
    begin = time.process_time()
    found = facts.gather(str(tmp_path))
    # The processor's time: other work on this machine is no slowness of ours.
    assert time.process_time() - begin < 1.0
    assert len(found["nvidia"]["gpus"]) == 8
    assert len(found["nics"]) == 8


def test_the_running_system_takes_less_than_a_second_of_our_own():
    begin = time.process_time()
    facts.gather("/")
    assert time.process_time() - begin < 1.0


def test_what_cannot_be_read_is_told(tmp_path, monkeypatch):
    tree = Tree(UBUNTU_2204)
    tree.write(tmp_path)
    secret = tmp_path / f"boot/config-{UBUNTU_2204.kernel}"
    real = open

    def refuse(path, *rest, **named):
        if str(path) == str(secret):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **named)

    # Not by the file's mode: tests may run as root, who reads everything.
    monkeypatch.setattr("builtins.open", refuse)
    found = facts.gather(str(tmp_path))
    assert found["unread"] == [f"/boot/config-{UBUNTU_2204.kernel}"]
    assert found["kernel"]["config"]["DMA_SHARED_BUFFER"] is None


def test_the_kernel_that_boots_next(tmp_path):
    older = UBUNTU_2404.older_kernel
    tree = Tree(UBUNTU_2404)
    tree.files["etc/default/grub"] = (
        f'GRUB_DEFAULT="Advanced options for Ubuntu>Ubuntu, with Linux {older}"\n'
    )
    found = gather(tree, tmp_path / "a")["kernel"]["next"]
    assert found["release"] == older
    assert found["evidence"].startswith("/etc/default/grub: GRUB_DEFAULT=Advanced")

    tree = Tree(RHEL_9)
    entry = f"0123-{RHEL_9.older_kernel}"
    tree.files["boot/grub2/grubenv"] = f"saved_entry={entry}\n"
    tree.files[f"boot/loader/entries/{entry}.conf"] = f"linux /vmlinuz-{RHEL_9.older_kernel}\n"
    found = gather(tree, tmp_path / "b")["kernel"]["next"]
    assert found["release"] == RHEL_9.older_kernel
    assert found["evidence"] == f"/boot/grub2/grubenv: saved_entry={entry}"

    tree.files["boot/grub2/grubenv"] += f"next_entry=123-{RHEL_9.kernel}\n"
    found = gather(tree, tmp_path / "once")["kernel"]["next"]
    assert found["release"] == RHEL_9.kernel
    assert found["evidence"] == f"/boot/grub2/grubenv: next_entry=123-{RHEL_9.kernel}"
    tree.files["boot/grub2/grubenv"] = "next_entry=2\n"
    found = gather(tree, tmp_path / "number")["kernel"]["next"]
    assert found == {"release": None, "evidence": "/boot/grub2/grubenv: next_entry=2"}

    tree = Tree(DEBIAN_12)
    tree.files["etc/default/grub"] = "GRUB_DEFAULT=4\n"
    assert gather(tree, tmp_path / "c")["kernel"]["next"]["release"] is None


def test_dkms_and_the_first_error_of_its_log(tmp_path):
    tree = Tree(DEBIAN_12)
    log = "var/lib/dkms/nvidia/580.159.04/build/make.log"
    tree.files[log] = (
        "DKMS make.log for nvidia-580.159.04 for kernel 6.12.1-amd64 (x86_64)\n"
        "  CC [M]  nvidia/nv.o\n"
        "/tmp/nv.c:12:10: error: implicit declaration of function 'x'\n"
        "make[1]: *** [nv.o] Error 1\n"
    )
    found = gather(tree, tmp_path)["modules"]["dkms"]
    nvidia = next(item for item in found if item["name"] == "nvidia")
    assert nvidia["built"] == sorted([DEBIAN_12.kernel, DEBIAN_12.older_kernel])
    assert nvidia["failed"] == [
        {
            "kernel": "6.12.1-amd64",
            "log": "/" + log,
            "line": 3,
            "error": "/tmp/nv.c:12:10: error: implicit declaration of function 'x'",
        }
    ]


def test_torchs_own_nvshmem_is_loaded_unless_another_is_preloaded(tmp_path):
    tree = Tree(SLES_15).nvshmem("opt/nvidia/nvshmem", "3.6.5")
    tree.environment(LD_LIBRARY_PATH="/opt/nvidia/nvshmem/lib:/usr/lib64")
    loaded = gather(tree, tmp_path / "a")["nvshmem_loaded"]
    assert loaded["path"].startswith("/opt/epfleet/venv/")
    assert loaded["candidates"][1:] == ["/opt/nvidia/nvshmem/lib/libnvshmem_host.so.3"]
    tree = Tree(SLES_15).nvshmem("opt/nvidia/nvshmem", "3.6.5")
    tree.files["etc/ld.so.preload"] = "/opt/nvidia/nvshmem/lib/libnvshmem_host.so.3\n"
    loaded = gather(tree, tmp_path / "b")["nvshmem_loaded"]
    assert loaded["path"] == "/opt/nvidia/nvshmem/lib/libnvshmem_host.so.3"


def test_without_torchs_own_the_loaders_places_count(tmp_path):
    tree = Tree(SLES_15).nvshmem("opt/nvidia/nvshmem", "3.6.5")
    tree.remove("opt/epfleet/venv")
    tree.environment(LD_LIBRARY_PATH="/opt/nvidia/nvshmem/lib:/usr/lib64")
    loaded = gather(tree, tmp_path)["nvshmem_loaded"]
    assert loaded["path"] == "/opt/nvidia/nvshmem/lib/libnvshmem_host.so.3"


def test_packaged_nvshmem(tmp_path):
    tree = Tree(UBUNTU_2204).nvshmem(NVSHMEM)
    header = tree.files[f"{NVSHMEM}/include/non_abi/nvshmem_version.h"]
    tree.files["usr/include/nvshmem_12/non_abi/nvshmem_version.h"] = header
    tree.files["usr/lib/x86_64-linux-gnu/nvshmem/12/libnvshmem_host.so.3"] = ""
    copies = gather(tree, tmp_path)["nvshmem"]
    packaged = next(item for item in copies if item["path"] == "/usr/include/nvshmem_12")
    assert packaged["cuda_major"] == 12
    assert packaged["library"] == "/usr/lib/x86_64-linux-gnu/nvshmem/12/libnvshmem_host.so.3"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["r", "p", "s", "d1", "x"], ["r", "p", "s", "d2", "y"], "PIX"),
        (["r", "p", "s", "d1", "t", "e", "x"], ["r", "p", "s", "d2", "y"], "PXB"),
        (["r", "p", "x"], ["r", "q", "y"], "PHB"),
        (["r", "x"], ["s", "y"], "NODE"),
        ([], ["s", "y"], "?"),
    ],
)
def test_nearness(first, second, expected):
    assert pci.nearness(first, second, 0, 0) == expected


def test_nearness_over_two_numa_nodes():
    assert pci.nearness(["r", "x"], ["s", "y"], 0, 1) == "SYS"
    assert nics.affinity([{"pci": "g", "path": [], "numa_node": 0}], []) == [
        {"gpu": "g", "nics": [], "nearness": None}
    ]


MODINFO = shutil.which("modinfo", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@pytest.mark.skipif(MODINFO is None, reason="modinfo (Debian package kmod) is missing")
@pytest.mark.parametrize("signed", [False, True])
def test_modules_as_modinfo_reads_them(tmp_path, signed):
    fields = {"version": "2.5.1", "license": "GPL", "depends": "nvidia", "vermagic": "6.1 SMP "}
    path = tmp_path / "gdrdrv.ko"
    path.write_bytes(elf.module(signed, **fields))
    ours = modinfo.describe(root.HostRoot(str(tmp_path)), "/gdrdrv.ko")
    for name in fields:
        run = subprocess.run(
            [MODINFO, "-F", name, str(path)], capture_output=True, text=True, check=True
        )
        assert ours[name] == run.stdout.strip()
    assert ours["signed"] is signed


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_content_gives_a_traceback(tmp_path, data):
    layout = data.draw(st.sampled_from(LAYOUTS))
    tree = Tree(layout)
    place = tmp_path / str(len(os.listdir(tmp_path)))  # noqa: PTH208 - a count, not the paths
    victims = data.draw(
        st.lists(st.sampled_from(sorted(tree.files)), min_size=1, max_size=12, unique=True)
    )
    kinds = {}
    for name in victims:
        original = tree.files[name]
        original = original if isinstance(original, bytes) else original.encode()
        kind = data.draw(st.sampled_from(["empty", "binary", "cut", "twice", "huge", "directory"]))
        kinds[name] = kind
        cut = data.draw(st.integers(0, len(original)))
        tree.files[name] = {
            "empty": b"",
            "binary": data.draw(st.binary(max_size=400)),
            "cut": original[:cut],
            "twice": original * 2,
            "huge": (original or b"x") * (10 * 2**20 // max(1, len(original)) + 1)
            if data.draw(st.integers(0, 9)) == 0
            else original * 40,
            "directory": b"",
        }[kind]
    tree.write(place)
    for name, kind in kinds.items():
        if kind == "directory":
            (place / name).unlink()
            (place / name).mkdir()
    found = facts.gather(str(place))
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    # What no reader stumbles over, no rule may stumble over.
    for mode in ("auto", "gpu", "cpu"):
        json.dumps(diagnose.diagnose_fleet({"a": found, "b": HEALTHY}, {"a": {"mode": mode}}))
    shutil.rmtree(place)


@pytest.mark.parametrize("layout", [UBUNTU_2204, RHEL_9], ids=lambda layout: layout.name)
def test_files_of_ten_megabytes(tmp_path, layout):
    """Each text file grows, all at once, and is still read within a bound."""
    tree = Tree(layout)
    for name, content in tree.files.items():
        if name.startswith(("etc/", "proc/", "var/")) and isinstance(content, str):
            tree.files[name] = content + ("# filler " * 8 + "\n") * (10 * 2**20 // 73)
    tree.write(tmp_path)
    begin = time.process_time()
    found = facts.gather(str(tmp_path))
    assert time.process_time() - begin < 20
    assert found["nvidia"]["gpu_count"] == 2


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("install ok installed", True),
        ("hold ok installed", True),
        ("install ok unpacked", False),
        ("deinstall ok config-files", False),
    ],
)
def test_a_package_counts_once_it_is_installed_held_or_not(tmp_path, status, counts):
    tree = Tree(DGX_OS)
    text = tree.files["var/lib/dpkg/status"].replace("install ok installed", status)
    tree.files["var/lib/dpkg/status"] = text
    found = facts.gather(str(tree.write(tmp_path)))["fabric"]["version"]
    assert found == (DRIVER if counts else None)
