"""What each rank does in the matrix tests: kernels against the reference backend and exact sums."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from cases import Inputs, Shape, exact_combine, expert_answers, make_inputs
from ep_runtime import numerics
from ep_runtime._core import low_latency_layout
from ep_runtime.backends.base import (
    RECEIVE,
    SEND,
    SEND_AND_RECEIVE,
    CombineRequest,
    DispatchRequest,
    DispatchResult,
)
from ep_runtime.backends.device import DeviceBackend
from ep_runtime.backends.reference import ReferenceBackend
from ep_runtime.group import resolve_group

if TYPE_CHECKING:
    from pool import Rank

TIMEOUT_US = 20_000_000
FORMATS = {
    "bf16": {"use_fp8": False, "round_scale": False, "use_ue8m0": False},
    "fp8": {"use_fp8": True, "round_scale": False, "use_ue8m0": False},
    "fp8-round": {"use_fp8": True, "round_scale": True, "use_ue8m0": False},
    "ue8m0": {"use_fp8": True, "round_scale": True, "use_ue8m0": True},
}


def reference_of(me: Rank) -> ReferenceBackend:
    """One for the life of the process: it holds no memory, and making one costs a rendezvous."""
    if "reference" not in me.kept:
        ranks = resolve_group(dist.group.WORLD, None, None, None)
        me.kept["reference"] = ReferenceBackend(
            ranks, 0, enable_shrink=False, device=torch.device("cpu")
        )
    return me.kept["reference"]


def backend_for(me: Rank, shape: Shape, num_sms: int = 0) -> DeviceBackend:
    """A fresh one for this shape, of the kind that EP_TEST_BACKEND names; to be destroyed."""
    ranks = resolve_group(dist.group.WORLD, None, None, None)
    layout = low_latency_layout(shape.max_tokens, shape.hidden, me.size, shape.num_experts)
    options = {"enable_shrink": False, "device": me.device, "num_sms": num_sms}
    if os.environ.get("EP_TEST_BACKEND", "peer") == "peer":
        from ep_runtime.backends.peer import PeerBackend

        return PeerBackend(ranks, layout.total_bytes, **options)
    from ep_runtime.backends.nvshmem import NvshmemBackend

    return NvshmemBackend(ranks, layout.total_bytes, num_queue_pairs=8, **options)


def dispatch_request(
    shape: Shape, inputs: Inputs, device: Any, size: int, form: str, num_sms: int = 0
) -> DispatchRequest:
    local = shape.num_experts // size
    return DispatchRequest(
        x=inputs.x.to(device),
        topk_idx=inputs.topk_idx.to(device),
        max_tokens_per_rank=shape.max_tokens,
        num_experts=shape.num_experts,
        cumulative_stats=torch.full((local,), 5, dtype=torch.int32, device=device),
        wait_stats=torch.zeros(size, dtype=torch.int64, device=device),
        timeout_us=TIMEOUT_US,
        num_sms=num_sms,
        **FORMATS[form],
    )


def poison(result: DispatchResult) -> None:
    """Outputs start as garbage that no right answer contains."""
    for tensor in (result.recv_x, result.scales):
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xFF) if tensor.dtype.itemsize == 1 else tensor.fill_(-1)
    for tensor in (result.recv_count, result.src_info, result.layout_range):
        tensor.fill_(-77)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.dtype.itemsize])


def assert_same_dispatch(peer: DispatchResult, reference: DispatchResult, where: str) -> None:
    """Bit for bit, over the rows that are valid."""
    for name in ("recv_count", "layout_range"):
        got, want = getattr(peer, name).cpu(), getattr(reference, name)
        assert torch.equal(got, want), f"{where}: {name} is {got}, the reference says {want}"
    for expert, count in enumerate(reference.recv_count.tolist()):
        for name in ("src_info", "recv_x", "scales"):
            got, want = getattr(peer, name), getattr(reference, name)
            if want is None:
                assert got is None
                continue
            got_bits, want_bits = bits(got[expert, :count].cpu()), bits(want[expert, :count])
            assert torch.equal(got_bits, want_bits), (
                f"{where}: {name} of local expert {expert} differs in rows "
                f"{(got_bits != want_bits).reshape(count, -1).any(1).nonzero()[:8].flatten()}"
            )


def combine_request(
    shape: Shape, inputs: Inputs, rows: torch.Tensor, result: DispatchResult, logfmt: bool, out: Any
) -> CombineRequest:
    device = rows.device
    return CombineRequest(
        x=rows,
        topk_idx=inputs.topk_idx.to(device),
        topk_weights=inputs.topk_weights.to(device),
        src_info=result.src_info,
        layout_range=result.layout_range,
        max_tokens_per_rank=shape.max_tokens,
        num_experts=shape.num_experts,
        use_logfmt=logfmt,
        zero_copy=False,
        out=out,
        wait_stats=None,
        timeout_us=TIMEOUT_US,
        num_sms=0,
    )


def assert_within_one_rounding(
    got: torch.Tensor, exact: torch.Tensor, magnitude: torch.Tensor, num_topk: int, where: str
) -> None:
    """BF16 ``got`` is a float32 sum of ``exact``'s terms, rounded once."""
    ulp = torch.exp2(exact.abs().clamp_min(1e-38).log2().floor() - 7)
    allowed = 0.5 * ulp * 1.01 + magnitude * num_topk * 2.0**-23
    error = (got.double() - exact).abs()
    assert not got.isnan().any(), f"{where}: NaN in the result"
    worst = (error - allowed).argmax() if error.numel() else 0
    assert bool((error <= allowed).all()), (
        f"{where}: error {error.flatten()[worst]} above {allowed.flatten()[worst]}"
    )


def check_shape(me: Rank, shape: Shape, seed: int, num_sms: int = 0, rounds: int = 2) -> int:
    """All formats and phase splits, round after round on one buffer with no clean between."""
    peer, reference = backend_for(me, shape, num_sms), reference_of(me)
    checked = 0
    try:
        splits = itertools.cycle([(SEND_AND_RECEIVE,), (SEND, RECEIVE)])
        for number, form in itertools.product(range(rounds), FORMATS):
            if form == "ue8m0" and shape.hidden % 512 != 0:
                continue
            round_seed = seed + 7919 * checked
            inputs = make_inputs(shape, round_seed, me.rank, me.size)
            where = f"rank {me.rank}/{me.size} {shape} {form} round {number} seed {round_seed}"
            want = reference.dispatch(dispatch_request(shape, inputs, "cpu", me.size, form))
            want.run(SEND_AND_RECEIVE)
            request = dispatch_request(shape, inputs, me.device, me.size, form)
            got = peer.dispatch(request)
            poison(got.result)
            for phases in next(splits):
                got.run(phases)
            torch.cuda.synchronize()
            peer.check()
            assert_same_dispatch(got.result, want.result, where)
            stats = request.cumulative_stats.cpu() - 5
            assert torch.equal(stats, want.result.recv_count), f"{where}: cumulative statistics"
            assert bool((request.wait_stats >= 0).all())
            check_combine(me, peer, shape, inputs, round_seed, got.result, next(splits), where)
            checked += 1
    finally:
        torch.cuda.synchronize()
        peer.destroy()
    return checked


def check_combine(
    me: Rank,
    peer: DeviceBackend,
    shape: Shape,
    inputs: Inputs,
    seed: int,
    result: DispatchResult,
    split: tuple[int, ...],
    where: str,
) -> None:
    rows = expert_answers(
        shape, seed, me.rank, me.size, result.src_info.cpu(), result.layout_range.cpu()
    ).to(me.device)
    exact, magnitude = exact_combine(shape, inputs)
    for logfmt in (False, True):
        out = torch.full_like(inputs.x, float("nan"), device=me.device)
        operation = peer.combine(combine_request(shape, inputs, rows, result, logfmt, out))
        for phases in split:
            operation.run(phases)
        torch.cuda.synchronize()
        peer.check()
        got = out.cpu()
        if not logfmt:
            assert_within_one_rounding(got, exact, magnitude, shape.num_topk, f"{where} combine")
        else:
            # The codes are at most 32 octaves / 510 apart.
            error = (got.double() - exact).abs()
            allowed = magnitude * (2 ** (numerics.LOGFMT_OCTAVES / 510) - 1) + 1e-6
            assert not got.isnan().any(), f"{where} logfmt: NaN in the result"
            assert bool((error <= allowed + exact.abs() * 2**-8).all()), f"{where} logfmt"
