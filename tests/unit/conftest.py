"""Makes ``ansible_collections.epfleet.expert_parallel`` importable from the checkout."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def _install_collection_path() -> None:
    base = Path(tempfile.mkdtemp(prefix="epfleet-collections-"))
    namespace = base / "ansible_collections" / "epfleet"
    namespace.mkdir(parents=True)
    (namespace / "expert_parallel").symlink_to(CHECKOUT, target_is_directory=True)
    sys.path.insert(0, str(base))


_install_collection_path()
