"""The API of DeepEP V1, served by ep_runtime.

Raises ImportError, and nothing else, when another ``deep_ep`` is installed or ep_runtime can't be
used here: callers take that as "not available".
"""

from __future__ import annotations

import sys

from deep_ep._others import refusal

_reason = refusal(sys.path)
if _reason is not None:
    raise ImportError(_reason)

try:
    from ep_runtime import Config, EventHandle, EventOverlap, topk_idx_t
except ImportError:
    raise
except Exception as error:
    raise ImportError(f"ep_runtime, which serves deep_ep, can't be imported: {error}") from error

from deep_ep.buffer import Buffer, get_buffer  # noqa: E402 - not before the refusals

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "get_buffer", "topk_idx_t"]
