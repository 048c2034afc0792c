"""Expert-parallel dispatch and combine, with the API of DeepEP V1.

Importing has no side effects: no process group, no GPU and no NVSHMEM is touched. torch is imported
with the first name that needs it, so that ``ep-doctor`` runs where there is none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ep_runtime import _core
    from ep_runtime.buffer import Buffer
    from ep_runtime.build import build_info
    from ep_runtime.config import Config
    from ep_runtime.errors import EPDamagedError, EPError, EPPeerLostError, EPTimeoutError
    from ep_runtime.events import EventHandle, EventOverlap
    from ep_runtime.shared_buffer import get_buffer

    __version__ = _core.VERSION
    topk_idx_t = torch.int64

# Public name: the module it is in, and its name there.
_PLACES = {
    "Buffer": ("ep_runtime.buffer", "Buffer"),
    "Config": ("ep_runtime.config", "Config"),
    "EPDamagedError": ("ep_runtime.errors", "EPDamagedError"),
    "EPError": ("ep_runtime.errors", "EPError"),
    "EPPeerLostError": ("ep_runtime.errors", "EPPeerLostError"),
    "EPTimeoutError": ("ep_runtime.errors", "EPTimeoutError"),
    "EventHandle": ("ep_runtime.events", "EventHandle"),
    "EventOverlap": ("ep_runtime.events", "EventOverlap"),
    "__version__": ("ep_runtime._core", "VERSION"),
    "build_info": ("ep_runtime.build", "build_info"),
    "get_buffer": ("ep_runtime.shared_buffer", "get_buffer"),
    "topk_idx_t": ("torch", "int64"),
}

__all__ = [
    "Buffer",
    "Config",
    "EPDamagedError",
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


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
