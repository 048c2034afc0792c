"""The whole picture, and that no content of any file gives a traceback."""

from __future__ import annotations

import json
import os

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import decisions
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import KERNEL, OUR_FILE, OUR_LINE, gpu, image, kernel, loaded, write

PREFIX = "/opt/epfleet/nvshmem"
VERSION_HEADER = "opt/epfleet/nvshmem/3.4.5/nvidia/nvshmem/include/non_abi/nvshmem_version.h"


def whole_host() -> dict:
    return {
        **gpu(),
        **kernel(),
        **loaded(),
        OUR_FILE: OUR_LINE + "\n",
        "etc/modprobe.d/nvidia.conf": 'options nvidia NVreg_RegistryDwords="RMForce=1"\n',
        "usr/lib/modprobe.d/nvidia.conf": "blacklist nouveau\n",
        "etc/os-release": "ID=debian\nVERSION_ID=12\n",
        f"boot/initrd.img-{KERNEL}": image(True, None),
        "proc/cmdline": "quiet\n",
        "proc/stat": "btime 1\n",
        "proc/devices": "510 gdrdrv\n",
        "proc/sys/kernel/random/boot_id": "abc\n",
        "proc/sys/kernel/osrelease": KERNEL + "\n",
        "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: NVIDIA H200\n",
        "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\0",
        "usr/local/cuda/version.json": '{"cuda": {"version": "13.0.1"}}',
        "usr/local/cuda/include/cuda.h": "#define CUDA_VERSION 13000\n",
        "usr/local/cuda/bin/nvcc": "",
        "var/lib/epfleet/changes.json": '{"boot_id": "abc"}\n',
        VERSION_HEADER: "#define NVSHMEM_VENDOR_MAJOR_VERSION 3\n",
    }


def test_a_whole_host(tmp_path):
    write(tmp_path, whole_host())
    found = facts.gather(str(tmp_path), False, PREFIX)
    assert found["nvidia"]["gpu_count"] == 1
    assert found["nvidia"]["module_loaded"] is True
    assert found["nvidia"]["flavour"] == "open"
    assert found["nvidia"]["modprobe"]["own"] == OUR_LINE + "\n"
    assert found["nvidia"]["modprobe"]["conflicts"] == [
        {
            "parameter": "NVreg_RegistryDwords",
            "value": "PeerMappingOverride=1;",
            "source": "/etc/modprobe.d/zz-epfleet-nvidia.conf",
            "overrides": [
                {"value": "RMForce=1", "source": "/etc/modprobe.d/nvidia.conf", "line": 1}
            ],
        }
    ]
    assert {
        "path": "/usr/lib/modprobe.d/nvidia.conf",
        "masked_by": "/etc/modprobe.d/nvidia.conf",
    } in found["nvidia"]["modprobe"]["files"]
    assert found["initramfs"][0]["state"] == "stale"
    assert found["kernel"]["release"] == KERNEL
    assert found["kernel"]["cmdline"] == "quiet"
    assert found["kernel"]["installed"] == [KERNEL]
    assert found["cuda"]["major"] == 13
    assert found["changes"] == {"boot_id": "abc"}
    json.dumps(found)


def test_an_empty_host(tmp_path):
    found = facts.gather(str(tmp_path), False, PREFIX)
    assert found["nvidia"]["gpu_count"] == 0
    assert found["nvidia"]["params"] is None
    assert found["initramfs"] == []
    assert found["changes"] is None
    json.dumps(found)


def test_names_and_content_that_are_no_utf8(tmp_path):
    write(tmp_path, {"etc/modprobe.d/x.conf": b"options nvidia \xff\xfe=\x80 a=\0\n"})
    (tmp_path / "etc/modprobe.d" / os.fsdecode(b"\xff.conf")).write_text("options nvidia a=1\n")
    found = facts.gather(str(tmp_path), False, PREFIX)
    assert found["nvidia"]["modprobe"]["options"]["a"] == "1"
    json.dumps(found, ensure_ascii=False).encode("utf-8")


def test_this_machine_gives_facts():
    json.dumps(facts.gather("/", False, PREFIX))


def exercise(root) -> None:
    """Everything that is decided from facts, too: none of it may stumble over them."""
    found = facts.gather(str(root), True, PREFIX)
    json.dumps(found)
    decisions.driver_plan(found, {"EnableStreamMemOPs": 1}, {"PeerMappingOverride": 1}, True)
    decisions.reboot_need(found, "gpu", "always")
    decisions.resolve_mode(found, "auto", "never", 2)
    decisions.stale_images(found)


@given(data=st.data())
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_content_gives_a_traceback(tmp_path, data):
    files = whole_host()
    victims = data.draw(st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=4))
    for name in victims:
        original = files[name]
        original = original if isinstance(original, bytes) else original.encode()
        cut = data.draw(st.integers(0, len(original)))
        files[name] = data.draw(
            st.one_of(st.binary(max_size=300), st.just(original[:cut]), st.just(original * 2))
        )
    write(tmp_path, files)
    exercise(tmp_path)


@given(data=st.data())
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_directories_and_links_in_place_of_files_give_no_traceback(tmp_path, data):
    root = tmp_path / str(len(os.listdir(tmp_path)))  # noqa: PTH208 - a count, not the paths
    files = whole_host()
    victims = data.draw(
        st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=3, unique=True)
    )
    write(root, {name: content for name, content in files.items() if name not in victims})
    for name in victims:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = data.draw(st.sampled_from(["directory", "loop", "dangling", "null"]))
        if kind == "directory":
            path.mkdir()
        else:
            path.symlink_to({"loop": path.name, "dangling": "gone", "null": "/dev/null"}[kind])
    exercise(root)
