"""Which copy of NVSHMEM is taken, why one is refused, and what its log tells. No GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ep_runtime import _core
from ep_runtime.backends import nvshmem_library, nvshmem_log
from ep_runtime.backends.nvshmem_library import Library

COMPILED = (3, 5, 21)


def library(version: tuple[int, int, int], path: str = "/opt/nvshmem/lib/libnvshmem_host.so.3"):
    return Library(path, version)


@pytest.mark.parametrize("version", [(3, 5, 21), (3, 5, 22), (3, 8, 0)])
def test_the_same_or_a_newer_copy_serves(version: tuple[int, int, int]) -> None:
    assert nvshmem_library.problem_of(library(version), 13, COMPILED) is None


@pytest.mark.parametrize("version", [(3, 5, 20), (3, 4, 5), (4, 0, 0), (2, 11, 0)])
def test_an_older_copy_or_another_major_is_refused(version: tuple[int, int, int]) -> None:
    problem = nvshmem_library.problem_of(library(version), 13, COMPILED)
    assert problem is not None
    dotted = ".".join(map(str, version))
    assert f"is NVSHMEM {dotted}, but this build of ep_runtime needs 3.5.21" in problem
    assert "LD_PRELOAD" in problem


def test_another_cuda_major_is_told_by_the_wheel(tmp_path: Path) -> None:
    lib = tmp_path / "nvidia/nvshmem/lib"
    lib.mkdir(parents=True)
    (tmp_path / "nvidia_nvshmem_cu12-3.8.0.dist-info").mkdir()
    file = lib / nvshmem_library.NAME
    file.touch()
    found = library((3, 8, 0), str(file))
    problem = nvshmem_library.problem_of(found, 13, COMPILED)
    assert problem is not None
    assert "is NVSHMEM for CUDA 12, but this build of ep_runtime is for CUDA 13" in problem
    assert nvshmem_library.problem_of(found, 12, COMPILED) is None


def test_mapped_copies_are_found_once_each(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 00:1f 123 {}\n"
    copies = ["/a b/libnvshmem_host.so.3", "/opt/libnvshmem_host.so.3.4.5"]
    files = [copies[0], "/usr/lib/libc.so.6", copies[1], copies[0]]
    maps.write_text("".join(line.format(file) for file in files) + "7f00-7f01 rw-p 0 00:00 0\n")
    assert nvshmem_library.mapped_copies(maps) == copies


def test_a_named_prefix_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for variable in nvshmem_library.PREFIX_VARIABLES:
        lib = tmp_path / variable / "lib"
        lib.mkdir(parents=True)
        (lib / nvshmem_library.NAME).touch()
        files.append(str(lib / nvshmem_library.NAME))
        monkeypatch.setenv(variable, str(tmp_path / variable))
    found = nvshmem_library.candidates()
    assert found[: len(files)] == files
    assert found[-1] == nvshmem_library.NAME
    monkeypatch.setenv("NVSHMEM_DIR", str(tmp_path / "nowhere"))
    assert nvshmem_library.candidates()[0] == files[1]


def test_without_any_copy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvshmem_library, "candidates", lambda: ["libnvshmem_host.so.none"])
    monkeypatch.setattr(nvshmem_library, "mapped_copies", list)
    with pytest.raises(RuntimeError, match=r"no NVSHMEM was found .* install nvidia-nvshmem-cu13"):
        nvshmem_library.load(13)


def make_copy(folder: Path, patch: int) -> Path:
    """A library that only tells its version, under NVSHMEM's name."""
    folder.mkdir()
    source = folder / "copy.c"
    source.write_text(
        "void nvshmemx_vendor_get_version_info(int *a, int *b, int *c)"
        f"{{ *a = 3; *b = 9; *c = {patch}; }}\n"
    )
    file = folder / nvshmem_library.NAME
    soname = f"-Wl,-soname,{nvshmem_library.NAME}"
    subprocess.run(["cc", "-shared", "-fPIC", soname, "-o", file, source], check=True)
    return file


LOADING = """
import ctypes, logging, sys
logging.basicConfig()
ctypes.CDLL(sys.argv[1])  # as torch maps its own copy: by path
from ep_runtime.backends import nvshmem_library
nvshmem_library.compiled_version = lambda: (3, 9, 1)
try:
    found = nvshmem_library.load(13)
    print(found.path, found.version)
except RuntimeError as error:
    print("refused:", error)
print(len(nvshmem_library.mapped_copies()))
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_the_copy_that_was_mapped_first_counts(tmp_path: Path, preloaded: bool) -> None:
    torchs, newer = make_copy(tmp_path / "torch", 0), make_copy(tmp_path / "newer", 2)
    environment = {**os.environ, "NVSHMEM_DIR": str(tmp_path)}
    if preloaded:
        environment["LD_PRELOAD"] = str(newer)
    run = subprocess.run(
        [sys.executable, "-c", LOADING, str(torchs)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    answer, copies = run.stdout.splitlines()
    if preloaded:
        assert answer == f"{newer} (3, 9, 2)"
        assert f"NVSHMEM is {newer}; {torchs} is mapped too, unused." in run.stderr
        assert copies == "2"
    else:
        assert answer.startswith(f"refused: {torchs} is NVSHMEM 3.9.0, but this build")
        assert copies == "1"


HANDLERS = {
    "src/transport_ibgda.cpp 3821 NIC handler will be GPU.": "gpu",
    "x.cpp 1 NIC handler will be CPU with gdrcopy backend.": "cpu-gdrcopy",
    "x.cpp 1 NIC handler will be CPU with the selected GPU CPU mapping backend.": "cpu-gdrcopy",
    "x.cpp 1 NIC handler will be CPU with host memory backend.": "cpu-host-memory",
    "GDRCopy library not found. disabling GDRCopy.": None,
}


@pytest.mark.parametrize(("line", "handler"), HANDLERS.items())
def test_nic_handler(line: str, handler: str | None) -> None:
    log = nvshmem_log.StartLog()
    log.text = f"before\n{line}\nafter"
    assert log.nic_handler == handler


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("init failed for transport: IBGDA", "NVSHMEM has no IBGDA transport"),
        (
            "Unable to open the nvshmem_transport_ibgda.so.7 transport. "
            "nvshmem_transport_ibgda.so.7: cannot open shared object file: No such file",
            "A transport plugin of NVSHMEM is missing",
        ),
        (
            "Unable to open the nvshmem_transport_ibgda.so.7 transport. "
            "libmlx5.so.1: cannot open shared object file: No such file",
            "Install rdma-core",
        ),
        (
            "neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
            "modprobe nvidia-peermem",
        ),
        ("NULL value mem registration failed", "memlock"),
        ("non-zero status: 1 cuMemCreate failed", "GPU memory for the symmetric heap"),
        (
            "socketStartConnect: Connect to 10.0.0.4<41233> failed : Connection refused",
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
        ),
        (
            "NVSHMEM device library version (3.4.5) does not match with NVSHMEM host library "
            "version (3.8.0)",
            "one NVSHMEM only",
        ),
    ],
)
def test_a_failed_start_is_explained(line: str, advice: str) -> None:
    log = nvshmem_log.StartLog()
    log.text = f"some.cpp 12 all is well\nsome.cpp 13 {line}\n"
    assert advice in log.explain()
    assert line in log.explain()
    # What follows from it does not hide it.
    log.text = f"x.cpp 9 init failed for transport: IBGDA\n{log.text}"
    assert advice in log.explain() or "IBGDA transport" in advice
    log.text = "nothing to see"
    assert log.explain() == ""


PROGRAM = """
import os, sys
from ep_runtime.backends.nvshmem_log import StartLog
log = StartLog()
print("before")
with log.recording():
    assert os.environ["NVSHMEM_DEBUG"]
    os.write(1, b"bootstrap rank 0 nranks 2 tag 1 - DONE\\nfrom a library\\n")
    os.write(2, b"x.cpp 12 NIC handler will be GPU. (NVSHMEM)\\n")
print("after", log.nic_handler, os.environ.get("NVSHMEM_DEBUG"))
"""


@pytest.mark.parametrize("level", [None, "TRACE"])
def test_only_nvshmems_own_lines_are_kept_back(level: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "NVSHMEM_DEBUG"}
    if level is not None:
        environment["NVSHMEM_DEBUG"] = level
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert [lines[0], lines[-1]] == ["before", f"after gpu {level}"]
    assert "from a library" in lines
    assert ("NIC handler" in run.stderr) == (level is not None)
    assert ("nranks" in run.stdout) == (level is not None)


def test_the_build_tells_its_version() -> None:
    version = _core.NVSHMEM_VERSION
    assert version == "" or nvshmem_library.compiled_version() >= (3, 3, 9)
