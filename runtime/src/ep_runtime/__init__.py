"""Expert-parallel dispatch and combine, with the API of DeepEP V1.

Importing has no side effects: no process group, no GPU and no NVSHMEM is touched.
"""

from __future__ import annotations

import torch

from ep_runtime import _core
from ep_runtime.buffer import Buffer
from ep_runtime.build import build_info
from ep_runtime.config import Config
from ep_runtime.errors import EPError, EPPeerLostError, EPTimeoutError
from ep_runtime.events import EventHandle, EventOverlap
from ep_runtime.shared_buffer import get_buffer

__version__ = _core.VERSION
topk_idx_t = torch.int64

__all__ = [
    "Buffer",
    "Config",
    "EPError",
    "EPPeerLostError",
    "EPTimeoutError",
    "EventHandle",
    "EventOverlap",
    "__version__",
    "build_info",
    "get_buffer",
    "topk_idx_t",
]
