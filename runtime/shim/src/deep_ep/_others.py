"""Other distributions of ``deep_ep``, which would overwrite this one's files or be shadowed by it.

Also run by the build backend, where nothing is installed: the standard library only.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

OURS = "ep-runtime-deep-ep"
_FILE = "_others.py"
_MODULES = ("deep_ep", "deep_ep_cpp")
# A line of RECORD (a file in the module's folder, or deep_ep_cpp.abi3.so) or of top_level.txt.
_OWNS = re.compile(r"^(?:{})(?:[/.]|$)".format("|".join(_MODULES)), re.MULTILINE)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def other_distributions(path: list[str]) -> list[str]:
    """Name and version of each other distribution below ``path`` that brings ``deep_ep``."""
    found = set()
    for distribution in importlib.metadata.distributions(path=path):
        name = distribution.metadata["Name"] or ""
        if _normal(name) == OURS:
            continue
        # An editable installation records no file of its own.
        owned = distribution.read_text("RECORD") or distribution.read_text("top_level.txt") or ""
        if _normal(name) == "deep-ep" or _OWNS.search(owned):
            found.add(f"{name} {distribution.version}")
    return sorted(found)


def other_folders(path: list[str]) -> list[str]:
    """Folders of other ``deep_ep`` packages below ``path``, installed or not."""
    folders = (Path(entry) / "deep_ep" for entry in path)
    # Each copy of ours has this very file.
    others = (f for f in folders if (f / "__init__.py").is_file() and not (f / _FILE).is_file())
    return [str(folder) for folder in others]


def refusal(path: list[str]) -> str | None:
    """Say in one sentence why ``deep_ep`` may not be here; None when it is alone."""
    others = other_distributions(path)
    if others:
        return (
            f"{OURS} brings the module deep_ep, and so does {', '.join(others)}: uninstall both, "
            "and then install the one that you want."
        )
    folders = other_folders(path)
    if folders:
        return (
            f"{OURS} brings the module deep_ep, and there is another one in "
            f"{', '.join(folders)}: take that off the path."
        )
    return None
