"""Environment variables: those we read, and those of NVSHMEM that a low-latency buffer sets."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from ep_runtime import _core

BACKEND_VARIABLE = "EP_RUNTIME_BACKEND"
TIMEOUT_VARIABLE = "EP_RUNTIME_TIMEOUT_US"
NUM_SMS_VARIABLE = "EP_RUNTIME_NUM_SMS"
QP_DEPTH_VARIABLE = "NVSHMEM_QP_DEPTH"
DEFAULT_TIMEOUT_US = 100_000_000


@dataclass(frozen=True)
class EnvironmentChange:
    """One variable of this process that was given another value; ``before`` is None if unset."""

    name: str
    before: str | None
    after: str


def integer_setting(argument: str, value: int | None, variable: str, default: int) -> int:
    """``value``, else the environment ``variable``, else ``default``.

    Raises ValueError naming the argument or the variable unless the number is >= 0.
    """
    if value is not None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{argument} must be an integer >= 0, got {value!r}.")
        return value
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{variable} must be an integer >= 0, got {text!r}.")
    return int(text)


def _wanted_qp_depth() -> int:
    text = os.environ.get(QP_DEPTH_VARIABLE, "")
    if not text:
        return _core.DEFAULT_QP_DEPTH
    if not text.isdecimal() or not 0 < int(text) <= _core.MAX_QP_DEPTH:
        raise ValueError(
            f"{QP_DEPTH_VARIABLE} must be an integer from 1 to {_core.MAX_QP_DEPTH}, got {text!r}."
        )
    if int(text) < _core.DEFAULT_QP_DEPTH:
        warnings.warn(
            f"{QP_DEPTH_VARIABLE} was {text} and is raised to {_core.DEFAULT_QP_DEPTH}: "
            "a smaller queue can lose messages.",
            stacklevel=4,
        )
    return max(int(text), _core.DEFAULT_QP_DEPTH)


def apply_nvshmem_environment(
    *, num_qps_per_rank: int, allow_nvlink: bool, allow_mnnvl: bool
) -> tuple[int, tuple[EnvironmentChange, ...]]:
    """Set the NVSHMEM variables of a low-latency buffer, before NVSHMEM starts.

    Returns the queue-pair depth and what was changed. Values of the user are overwritten, except
    a depth of 1024 or more. Raises ValueError for a depth that NVSHMEM would refuse.
    """
    depth = _wanted_qp_depth()
    wanted = {
        "NVSHMEM_DISABLE_P2P": "0" if allow_nvlink else "1",
        "NVSHMEM_IB_ENABLE_IBGDA": "1",
        "NVSHMEM_IBGDA_NUM_RC_PER_PE": str(num_qps_per_rank),
        QP_DEPTH_VARIABLE: str(depth),
        "NVSHMEM_MAX_TEAMS": "7",  # six of its own and one of ours
        "NVSHMEM_DISABLE_NVLS": "1",
        "NVSHMEM_CUMEM_GRANULARITY": str(2**29),
    }
    if not allow_mnnvl:
        wanted["NVSHMEM_DISABLE_MNNVL"] = "1"
    changes = []
    for name, value in wanted.items():
        before = os.environ.get(name)
        if before != value:
            os.environ[name] = value
            changes.append(EnvironmentChange(name, before, value))
    return depth, tuple(changes)


def queue_pair_problem(
    *,
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    num_ranks: int,
    num_qps_per_rank: int,
    qp_depth: int,
) -> str | None:
    """One sentence saying why these queue pairs can't carry such a dispatch over RDMA, or None."""
    required = 2 * (num_max_dispatch_tokens_per_rank + 1)
    if qp_depth < required:
        return (
            f"{QP_DEPTH_VARIABLE} is {qp_depth}, but num_max_dispatch_tokens_per_rank="
            f"{num_max_dispatch_tokens_per_rank} needs 2 * (tokens + 1) = {required}."
        )
    if num_qps_per_rank < num_experts // num_ranks:
        return (
            f"num_qps_per_rank is {num_qps_per_rank}, but each of the "
            f"{num_experts // num_ranks} experts of a rank needs a queue pair of its own."
        )
    return None
