"""Which backend serves a buffer, agreed on by all its ranks."""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import torch

from ep_runtime.backends.peer_exchange import host_identity
from ep_runtime.backends.reference import ReferenceBackend
from ep_runtime.environment import BACKEND_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ep_runtime.backends.base import Backend
    from ep_runtime.group import RankGroup

_log = logging.getLogger(__name__)
_NAMES = ("auto", "reference", "peer", "nvshmem")


@dataclass(frozen=True)
class _Wish:
    """What a rank says before the choice; the last two say why it can't use a backend, or None."""

    wanted: str
    num_bytes: int
    host: str
    no_peer: str | None
    no_nvshmem: str | None


def _wanted(backend: str) -> str:
    source = "backend"
    if backend == "auto" and os.environ.get(BACKEND_VARIABLE):
        source, backend = BACKEND_VARIABLE, os.environ[BACKEND_VARIABLE]
    if backend not in _NAMES:
        raise ValueError(f"{source} must be one of {', '.join(_NAMES)}, got {backend!r}.")
    return backend


def _no_peer() -> str | None:
    if importlib.util.find_spec("ep_runtime._cuda") is None:
        return "this build of ep_runtime holds no CUDA kernels"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU"
    return None


def _no_nvshmem(contradictions: tuple[str, ...]) -> str | None:
    if importlib.util.find_spec("ep_runtime._nvshmem") is None:
        return "this build of ep_runtime holds no kernels over NVSHMEM"
    if contradictions:
        return contradictions[0]
    return _no_peer()


def _choose(wishes: list[_Wish]) -> tuple[str, str]:
    """Find the name that all ranks arrive at, and why it is only "reference" (or "")."""
    first = wishes[0]
    for rank, wish in enumerate(wishes):
        if wish.wanted != first.wanted:
            raise ValueError(
                f"backend must be the same on all ranks: rank 0 wants {first.wanted!r}, rank "
                f"{rank} {wish.wanted!r}."
            )
        if wish.num_bytes != first.num_bytes:
            raise ValueError(
                f"num_rdma_bytes must be the same on all ranks: rank 0 has {first.num_bytes}, "
                f"rank {rank} {wish.num_bytes}."
            )
    if first.wanted == "reference":
        return "reference", ""
    problem = _several_hosts(wishes) or _first(wish.no_peer for wish in wishes)
    if first.wanted != "nvshmem" and problem is None:
        return "peer", ""
    if first.wanted == "peer":
        raise RuntimeError(f"backend 'peer' can't be used: {problem}.")
    if first.wanted == "nvshmem" or _several_hosts(wishes) is not None:
        no_nvshmem = _first(wish.no_nvshmem for wish in wishes)
        if no_nvshmem is None:
            return "nvshmem", ""
        if first.wanted == "nvshmem":
            raise RuntimeError(f"backend 'nvshmem' can't be used: {no_nvshmem.rstrip('.')}.")
        return "reference", f"{problem}; {no_nvshmem.rstrip('.')}"
    return "reference", problem or ""


def _first(problems: Iterable[str | None]) -> str | None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            return f"rank {rank}: {problem}"
    return None


def _several_hosts(wishes: list[_Wish]) -> str | None:
    return _first(
        None
        if wish.host == wishes[0].host
        else f"it is on another host than rank 0 ({wish.host.split('/')[0]})"
        for wish in wishes
    )


def make_backend(
    ranks: RankGroup,
    num_bytes: int,
    *,
    backend: str,
    enable_shrink: bool,
    num_sms: int,
    num_queue_pairs: int,
    contradictions: tuple[str, ...],
) -> Backend:
    """Make the backend that was asked for, or the best that all ranks can use. Collective.

    "auto" obeys EP_RUNTIME_BACKEND; else it takes "peer" where all ranks are on one host with
    GPUs and this build has kernels, "nvshmem" where they are on several, and "reference" where
    neither can be used, with a warning in the log. ``contradictions`` speak against NVSHMEM.
    """
    wish = _Wish(
        _wanted(backend), num_bytes, host_identity(), _no_peer(), _no_nvshmem(contradictions)
    )
    said = ranks.gather(astuple(wish), "choice of a backend")
    name, reason = _choose([_Wish(*fields) for fields in said])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if name == "peer":
        from ep_runtime.backends.peer import PeerBackend  # noqa: PLC0415 - needs _cuda

        return PeerBackend(
            ranks, num_bytes, enable_shrink=enable_shrink, device=device, num_sms=num_sms
        )
    if name == "nvshmem":
        from ep_runtime.backends.nvshmem import NvshmemBackend  # noqa: PLC0415

        return NvshmemBackend(
            ranks,
            num_bytes,
            enable_shrink=enable_shrink,
            device=device,
            num_queue_pairs=num_queue_pairs,
            num_sms=num_sms,
        )
    if reason and ranks.rank == 0:
        _log.warning("ep_runtime uses the slow reference backend on all ranks: %s.", reason)
    return ReferenceBackend(ranks, num_bytes, enable_shrink=enable_shrink, device=device)
