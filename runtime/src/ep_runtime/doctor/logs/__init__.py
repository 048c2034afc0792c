# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What lines of a log mean: NVSHMEM's, NCCL's, DeepEP's, and those of vLLM and SGLang around them.

Importing this registers all messages in ``message.MESSAGES``.
"""

from . import assertions, build, deep_ep, engine, nvshmem, timeouts
from .message import explain

__all__ = ["SUBJECTS", "explain"]

SUBJECTS = (nvshmem, deep_ep, timeouts, assertions, build, engine)
