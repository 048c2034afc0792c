# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""On the controller: where the wheels of a host come from, and what they hold.

They are built once and kept in the cache, or given as a file, or come from an index that pip asks.
"""

from __future__ import annotations

import glob
import hashlib
import os
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_cache import lookup
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_key import (
    DROP_IN_SUFFIX,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    read_wheel,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    DISTRIBUTION,
    DROP_IN,
)


def given_key(wheel: str, version: str) -> str:
    """Return the key of a wheel that is not built here: a file's digest, or an index's version.

    Raises ``OSError`` when the file cannot be read.
    """
    if not wheel:
        return f"index-{version}"
    with open(wheel, "rb") as stream:
        return f"prebuilt-{hashlib.sha256(stream.read()).hexdigest()[:20]}"


def find_wheel(
    cache: str, key: str, prebuilt: str, drop_in: bool
) -> tuple[dict[str, Any] | None, str]:
    """Return ``path`` and ``payload`` of the runtime's wheel, or its drop-in's, and why not.

    ``prebuilt`` is the runtime's wheel when it was given as a file: the drop-in's lies beside it.
    Raises ``PayloadError`` for a damaged file.
    """
    if not prebuilt:
        return lookup(cache, key + DROP_IN_SUFFIX if drop_in else key)
    path, wanted = prebuilt, DISTRIBUTION
    if drop_in:
        wanted = DROP_IN
        pattern = os.path.join(glob.escape(os.path.dirname(prebuilt)), "ep_runtime_deep_ep-*.whl")
        found = sorted(glob.glob(pattern))
        if len(found) != 1:
            return None, f"beside {prebuilt} there are {len(found)} wheels of {DROP_IN}"
        path = found[0]
    about = read_wheel(path)
    if about["name"].replace("_", "-").lower() != wanted:
        return None, f"{path} is a wheel of {about['name']}, not of {wanted}"
    return {"path": path, "payload": about["payload"]}, ""
