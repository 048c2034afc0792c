"""Environment variables: those we read, and those of NVSHMEM that a low-latency buffer sets."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass

from ep_runtime import _core

_log = logging.getLogger(__name__)

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


def integer_setting(
    argument: str, value: int | None, variable: str, *, default: int, least: int
) -> int:
    """``value``, else the environment ``variable``, else ``default``.

    Raises ValueError naming the argument or the variable unless it is an integer >= ``least``.
    """
    if value is not None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{argument} must be an integer >= {least}, got {value!r}.")
        return value
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{variable} must be an integer >= {least}, got {text!r}.")
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


# What this process's buffers have set: a value that is still there is not the user's.
_set_here: dict[str, str] = {}

# NVSHMEM's spelling of "yes"; everything else is "no".
_TRUE = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True)
class NvshmemEnvironment:
    """What was decided for NVSHMEM.

    ``depth`` is the queue-pair depth; ``changes`` what was set; ``contradictions`` one sentence for
    each value of the user that the arguments rule out: NVSHMEM must not be started with these.
    """

    depth: int
    changes: tuple[EnvironmentChange, ...]
    contradictions: tuple[str, ...]


def _contradiction(name: str, users: str, wanted: str, num_qps_per_rank: int) -> str | None:
    """Say why the user's value can't stand; None where it may."""
    users_yes, wanted_yes = users.lower() in _TRUE, wanted == "1"
    if name == "NVSHMEM_DISABLE_P2P" and users_yes != wanted_yes:
        return (
            f"NVSHMEM_DISABLE_P2P is {users!r} in the environment, but "
            f"allow_nvlink_for_low_latency_mode={not wanted_yes} needs {wanted!r}: unset one."
        )
    if name == "NVSHMEM_IB_ENABLE_IBGDA" and not users_yes:
        return (
            f"NVSHMEM_IB_ENABLE_IBGDA is {users!r} in the environment, but the kernels post RDMA "
            "themselves, which needs '1': unset it."
        )
    too_few = users.isdecimal() and int(users) < num_qps_per_rank
    if name == "NVSHMEM_IBGDA_NUM_RC_PER_PE" and too_few:
        return (
            f"NVSHMEM_IBGDA_NUM_RC_PER_PE is {users!r} in the environment, but "
            f"num_qps_per_rank={num_qps_per_rank} needs at least as many: unset it or raise it."
        )
    return None


def apply_nvshmem_environment(
    *, num_qps_per_rank: int, allow_nvlink: bool, allow_mnnvl: bool
) -> NvshmemEnvironment:
    """Set the NVSHMEM variables of a low-latency buffer, before NVSHMEM starts.

    Values of the user are kept, but for a depth under 1024, which is raised with a warning. Raises
    ValueError for a depth that NVSHMEM would refuse.
    """
    wanted = {
        "NVSHMEM_DISABLE_P2P": "0" if allow_nvlink else "1",
        "NVSHMEM_IB_ENABLE_IBGDA": "1",
        "NVSHMEM_IBGDA_NUM_RC_PER_PE": str(num_qps_per_rank),
        "NVSHMEM_MAX_TEAMS": "7",  # six of its own and one of ours
        "NVSHMEM_DISABLE_NVLS": "1",
        "NVSHMEM_CUMEM_GRANULARITY": str(2**29),
    }
    if not allow_mnnvl:
        wanted["NVSHMEM_DISABLE_MNNVL"] = "1"
    depth = _wanted_qp_depth()
    changes, contradictions = [], []
    for name, value in {**wanted, QP_DEPTH_VARIABLE: str(depth)}.items():
        before = os.environ.get(name)
        if before == value:
            continue
        if before is not None and before != _set_here.get(name) and name != QP_DEPTH_VARIABLE:
            sentence = _contradiction(name, before, value, num_qps_per_rank)
            contradictions += [sentence] if sentence else []
            continue
        os.environ[name] = _set_here[name] = value
        changes.append(EnvironmentChange(name, before, value))
    return NvshmemEnvironment(depth, tuple(changes), tuple(contradictions))


class QueuePairs:
    """The RDMA queue pairs to each rank: how many, and how many messages each can hold."""

    def __init__(self, per_rank: int, depth: int) -> None:
        self.per_rank = per_rank
        self.depth = depth
        self._told = False

    def problem(self, layout: _core.LowLatencyLayout) -> str | None:
        """Say in one sentence why they can't carry this layout's operations, or None."""
        required = 2 * (layout.max_tokens + 1)
        if self.depth < required:
            return (
                f"{QP_DEPTH_VARIABLE} is {self.depth}, but num_max_dispatch_tokens_per_rank="
                f"{layout.max_tokens} needs 2 * (tokens + 1) = {required}."
            )
        if self.per_rank < layout.local_experts:
            return (
                f"num_qps_per_rank is {self.per_rank}, but each of the {layout.local_experts} "
                "experts of a rank needs a queue pair of its own."
            )
        return None

    def check(self, layout: _core.LowLatencyLayout, *, rdma_peers: bool) -> None:
        """AssertionError with the problem where peers are reached over RDMA, else one warning."""
        problem = self.problem(layout)
        if problem is None:
            return
        assert not rdma_peers, problem
        if not self._told:
            _log.warning("%s No peer is reached over RDMA, so this goes on.", problem)
            self._told = True
