# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Load a copy of NVSHMEM and have its uid bootstrap make an id, as a rank does; no GPU is needed.

A library without its plugins, of another C library or architecture, or with settings that name no
network interface fails here and not on the fleet's first job.
"""

from __future__ import annotations

import os
import sys
from typing import Callable, Dict, List, Tuple

# Runs in a process of its own: a library that does not fit may end it.
_PROGRAM = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
numbers = [ctypes.c_int() for _part in range(3)]
library.nvshmemx_vendor_get_version_info(*map(ctypes.byref, numbers))
identity = (ctypes.c_int * 32)((1 << 16) + 128)
code = library.nvshmemx_get_uniqueid(identity)
made = any(identity[1:])
print("version", ".".join(str(number.value) for number in numbers))
sys.exit(0 if code == 0 and made else 1)
"""
_TELLING = ("cannot open", "OSError", "Unable", "unable", "undefined symbol", "No ", "error")
RunCommand = Callable[[List[str], Dict[str, str]], Tuple[int, str, str]]


class BootstrapError(Exception):
    """Why no id was made, in the library's words."""


def settings_environment(settings: Dict[str, object]) -> Dict[str, str]:
    """The variables of settings that are given without their NVSHMEM_ prefix."""
    return {f"NVSHMEM_{name}": str(value) for name, value in settings.items()}


def check(library: str, environment: Dict[str, str], run: RunCommand) -> str:
    """Return the version that the library says it is, once it has made an id.

    ``environment`` is what a rank would have of NVSHMEM's variables. Raises BootstrapError.
    """
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NVSHMEM_", "LD_PRELOAD"))
    }
    code, output, errors = run([sys.executable, "-c", _PROGRAM, library], {**clean, **environment})
    version = next((line[8:] for line in output.splitlines() if line.startswith("version ")), "")
    if code != 0 or not version:
        raise BootstrapError(_telling_line(errors + "\n" + output, code))
    return version


def _telling_line(text: str, code: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for word in _TELLING:
        for line in lines:
            if word in line:
                return line[:300]
    return lines[-1][:300] if lines else f"the library ended its process ({code})"
