"""Which backend serves a buffer, agreed on by all its ranks."""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ep_runtime.backends.peer_exchange import host_identity
from ep_runtime.backends.reference import ReferenceBackend
from ep_runtime.environment import BACKEND_VARIABLE

if TYPE_CHECKING:
    from ep_runtime.backends.base import Backend
    from ep_runtime.group import RankGroup

_log = logging.getLogger(__name__)
_NAMES = ("auto", "reference", "peer")


@dataclass(frozen=True)
class _Wish:
    """What a rank says before the choice; ``obstacle`` is why it can't use the peer backend."""

    wanted: str
    num_bytes: int
    host: str
    obstacle: str | None


def _wanted(backend: str) -> str:
    source = "backend"
    if backend == "auto" and os.environ.get(BACKEND_VARIABLE):
        source, backend = BACKEND_VARIABLE, os.environ[BACKEND_VARIABLE]
    if backend not in _NAMES:
        raise ValueError(f"{source} must be one of {', '.join(_NAMES)}, got {backend!r}.")
    return backend


def _obstacle() -> str | None:
    if importlib.util.find_spec("ep_runtime._cuda") is None:
        return "this build of ep_runtime holds no CUDA kernels"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU"
    return None


def _choose(wishes: list[_Wish]) -> tuple[str, str]:
    """Find the name that all ranks arrive at, and why it is not "peer" (or "")."""
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
    for rank, wish in enumerate(wishes):
        obstacle = wish.obstacle
        if obstacle is None and wish.host != first.host:
            obstacle = f"it is on another host than rank 0 ({wish.host.split('/')[0]})"
        if obstacle is None:
            continue
        if first.wanted == "peer":
            raise RuntimeError(f"backend 'peer' can't be used: rank {rank}: {obstacle}.")
        return "reference", f"rank {rank}: {obstacle}"
    return "peer", ""


def make_backend(
    ranks: RankGroup, num_bytes: int, *, backend: str, enable_shrink: bool, num_sms: int
) -> Backend:
    """Make the backend that was asked for, or the best that all ranks can use. Collective.

    "auto" obeys EP_RUNTIME_BACKEND; else it takes "peer" where all ranks are on one host with
    GPUs and this build has kernels, and "reference" otherwise, with a warning in the log.
    """
    wish = _Wish(_wanted(backend), num_bytes, host_identity(), _obstacle())
    name, reason = _choose(ranks.all_gather_object(wish))
    if name == "peer":
        from ep_runtime.backends.peer import PeerBackend  # noqa: PLC0415 - needs _cuda

        device = torch.device("cuda", torch.cuda.current_device())
        return PeerBackend(
            ranks, num_bytes, enable_shrink=enable_shrink, device=device, num_sms=num_sms
        )
    if reason and ranks.rank == 0:
        _log.warning("ep_runtime uses the slow reference backend on all ranks: %s.", reason)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    return ReferenceBackend(ranks, num_bytes, enable_shrink=enable_shrink, device=device)
