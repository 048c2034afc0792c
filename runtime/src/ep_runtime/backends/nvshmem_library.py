"""Which copy of NVSHMEM a process uses: found, compared with this build, and loaded once.

torch's venv holds a copy of its own, which torch maps by its path when it is imported, and a newer
one may lie elsewhere. Copies do not share their state, so this package never maps a second one. The
loader binds modules to the copy that was mapped first, which is the one that counts here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from ep_runtime import _core
from ep_runtime.doctor.host.nvshmem import header_version

_log = logging.getLogger(__name__)

NAME = "libnvshmem_host.so.3"
PREFIX_VARIABLES = ("NVSHMEM_DIR", "NVSHMEM_HOME")


@dataclass(frozen=True)
class Library:
    """The copy that is loaded: its file, and its version such as (3, 4, 5)."""

    path: str
    version: tuple[int, int, int]


def mapped_copies(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Give the files of NVSHMEM's host library that this process has mapped, each once."""
    files = []
    for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and Path(path[0]).name.startswith("libnvshmem_host.so") and path[0] not in files:
            files.append(path[0])
    return files


def candidates() -> list[str]:
    """Give what would be loaded, best first: named prefixes, the wheel, the loader's own choice."""
    prefixes = [os.environ[name] for name in PREFIX_VARIABLES if os.environ.get(name)]
    package = importlib.util.find_spec("nvidia")
    if package is not None:
        prefixes += [f"{place}/nvshmem" for place in package.submodule_search_locations or []]
    files = [str(Path(prefix, "lib", NAME)) for prefix in prefixes]
    return [file for file in files if Path(file).is_file()] + [NAME]


def _cuda_major_of(path: str) -> int | None:
    """CUDA major version of a copy from a wheel, told by the wheel's name; None elsewhere."""
    site = Path(path).resolve().parents
    if len(site) < 4:
        return None
    for info in site[3].glob("nvidia_nvshmem_cu*.dist-info"):
        digits = info.name[len("nvidia_nvshmem_cu") :].split("-")[0]
        if digits.isdecimal():
            return int(digits)
    return None


class _SymbolInfo(ctypes.Structure):
    """``Dl_info`` of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _describe(handle: ctypes.CDLL) -> Library:
    report = handle.nvshmemx_vendor_get_version_info
    numbers = [ctypes.c_int() for _ in range(3)]
    report(*(ctypes.byref(number) for number in numbers))
    info = _SymbolInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(report, ctypes.c_void_p), ctypes.byref(info))
    path = info.file.decode() if info.file else NAME
    return Library(path, (numbers[0].value, numbers[1].value, numbers[2].value))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)


def compiled_version() -> tuple[int, int, int]:
    """Version of NVSHMEM's device code in this build. Needs a build with it."""
    major, minor, patch = (int(number) for number in _core.NVSHMEM_VERSION.split("."))
    return major, minor, patch


def problem_of(library: Library, cuda_major: int, compiled: tuple[int, int, int]) -> str | None:
    """Say in one sentence why this build can't run on ``library``, or None."""
    major = _cuda_major_of(library.path)
    if major is not None and major != cuda_major:
        return (
            f"{library.path} is NVSHMEM for CUDA {major}, but this build of ep_runtime is for CUDA "
            f"{cuda_major}: install nvidia-nvshmem-cu{cuda_major} in its place or name its prefix "
            f"in NVSHMEM_DIR."
        )
    if library.version[0] != compiled[0] or library.version < compiled:
        return (
            f"{library.path} is NVSHMEM {_dotted(library.version)}, but this build of ep_runtime "
            f"needs {_dotted(compiled)} or a newer {compiled[0]}.x: start the program with "
            f"LD_PRELOAD set to such a {NAME} (torch loads its own copy otherwise), or build "
            f"ep_runtime against {_dotted(library.version)}."
        )
    return None


def problem_before_loading(cuda_major: int, compiled: tuple[int, int, int]) -> str | None:
    """Say, by files alone, why this build can't run on the copy that it would take, or None.

    A copy without its headers beside it can only be asked once it is loaded.
    """
    path = Path((mapped_copies() or candidates())[0])
    try:
        header = path.resolve().parents[1] / "include" / "non_abi" / "nvshmem_version.h"
        version = header_version(header.read_text(encoding="utf-8", errors="replace"))
    except (OSError, IndexError):
        return None
    if version is None:
        return None
    major, minor, patch = (int(number) for number in version.split("."))
    return problem_of(Library(str(path), (major, minor, patch)), cuda_major, compiled)


def load(cuda_major: int) -> Library:
    """Load NVSHMEM's host library, or find the copy that modules are bound to already.

    Raises RuntimeError with the fix when there is none or it does not fit this build.
    """
    # By its bare name the loader gives the copy that was mapped first, whatever its path.
    name = NAME if mapped_copies() else candidates()[0]
    try:
        handle = ctypes.CDLL(name)
    except OSError as error:
        raise RuntimeError(
            f"no NVSHMEM was found ({error}): install nvidia-nvshmem-cu{cuda_major} or name its "
            "prefix in NVSHMEM_DIR."
        ) from None
    library = _describe(handle)
    problem = problem_of(library, cuda_major, compiled_version())
    if problem is not None:
        raise RuntimeError(problem)
    others = [path for path in mapped_copies() if path != library.path]
    if others:
        _log.warning("NVSHMEM is %s; %s is mapped too, unused.", library.path, " and ".join(others))
    return library
