"""scikit-build-core's backend, which first refuses to build for an environment that has a deep_ep.

pip has no way to say that two distributions exclude each other, and lets the second overwrite the
files of the first. An installation from source builds with the interpreter it installs for, so
here is where it can be stopped. A wheel made elsewhere is checked when it is imported.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from scikit_build_core import build as _backend
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build, or raise RuntimeError with the name of the other distribution."""
    file = Path(__file__).parents[1] / "src" / "deep_ep" / "_others.py"
    spec = importlib.util.spec_from_file_location("_others", file)
    assert spec is not None and spec.loader is not None
    others = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(others)
    site_packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    reason = others.refusal(site_packages)
    if reason is not None:
        raise RuntimeError(reason)
    return _backend.build_wheel(wheel_directory, config_settings, metadata_directory)
