# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The key of a wheel: hosts with the same key share one build."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# Where the cache keeps the drop-in deep_ep that was built with a key's runtime.
DROP_IN_SUFFIX = "-deep-ep"
KEY_FIELDS = ("source", "machine", "libc", "python", "cuda")


def key_inputs(source: str, host: dict[str, Any], cuda: dict[str, Any] | None) -> dict[str, Any]:
    """Return what a wheel's content depends on, from the source digest and a host's facts.

    ``host`` is the ``python`` part of ``ep_runtime_info``: ``machine``, ``libc`` and ``abi``.
    ``cuda`` is None for a host-only build, else ``major``, ``version`` (of nvcc, wherever it comes
    from: its pins are in the source), ``architectures`` and ``nvshmem`` (None, or a copy with its
    ``version``).
    """
    return {
        "source": source,
        "machine": host["machine"],
        "libc": host["libc"],
        "python": host["abi"],
        "cuda": None
        if not cuda
        else {
            "major": str(cuda["major"]),
            "compiler": cuda["version"],
            "architectures": sorted(str(item) for item in cuda["architectures"]),
            "nvshmem": cuda["nvshmem"]["version"] if cuda.get("nvshmem") else None,
        },
    }


def wheel_key(inputs: dict[str, Any]) -> str:
    """Return the key of ``inputs``: readable at its head, unique by its tail."""
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    flavour = "cpu" if inputs["cuda"] is None else "cu{}".format(inputs["cuda"]["major"])
    head = "-".join((inputs["machine"], inputs["python"], flavour))
    safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in head)
    return f"{safe}-{digest[:20]}"
