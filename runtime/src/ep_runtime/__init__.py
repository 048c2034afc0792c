"""Low-latency expert-parallel dispatch and combine.

Importing has no side effects: no process group, no GPU and no NVSHMEM is touched.
"""

from __future__ import annotations

from ep_runtime._core import VERSION as __version__

__all__ = ["__version__"]
