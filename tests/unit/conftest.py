"""Makes ``ansible_collections.epfleet.expert_parallel`` importable from the checkout."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


# Gone at exit with the object.
_FOLDER = tempfile.TemporaryDirectory(prefix="epfleet-collections-")
COLLECTIONS = Path(_FOLDER.name)
_NAMESPACE = COLLECTIONS / "ansible_collections" / "epfleet"
_NAMESPACE.mkdir(parents=True)
(_NAMESPACE / "expert_parallel").symlink_to(CHECKOUT, target_is_directory=True)
sys.path.insert(0, str(COLLECTIONS))
