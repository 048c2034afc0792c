"""The calls of vLLM's low-latency all-to-all: manager, prepare and finalize, recovery from faults.

vLLM gives the CPU (gloo) process group, keeps two handles, one of each micro-batch, and may pass
weights on the input side.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import deep_ep
import torch
from moe import expected, expert_outputs, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed as dist

HIDDEN, TOPK, MAX_TOKENS, EXPERTS_PER_RANK, BLOCK = 2048, 4, 32, 4, 128


@dataclass
class Manager:
    """Gives one buffer for equal arguments, as vLLM's does."""

    cpu_group: dist.ProcessGroup
    backend: dict[str, Any]
    buffers: dict[tuple[Any, ...], deep_ep.Buffer] = field(default_factory=dict)

    def get_handle(self, num_experts: int, fault_tolerance: bool) -> deep_ep.Buffer:
        ranks = self.cpu_group.size()
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=MAX_TOKENS,
            hidden=HIDDEN,
            num_ranks=ranks,
            num_experts=num_experts,
        )
        given = {
            "num_nvl_bytes": 1024 * 1024 * 1024,
            "num_rdma_bytes": hint,
            "low_latency_mode": True,
            "num_qps_per_rank": num_experts // ranks,
            "allow_nvlink_for_low_latency_mode": True,
            "allow_mnnvl": False,
            "explicitly_destroy": True,
            "enable_shrink": fault_tolerance,
        }
        key = tuple(given.items())
        if key not in self.buffers:
            self.buffers[key] = deep_ep.Buffer(group=self.cpu_group, **given, **self.backend)
        return self.buffers[key]

    def destroy(self) -> None:
        for buffer in self.buffers.values():
            buffer.destroy()
        self.buffers.clear()


class PrepareAndFinalize:
    """Dispatches a micro-batch, and later combines it with the handle kept for it."""

    def __init__(self, buffer: deep_ep.Buffer, num_experts: int, use_fp8: bool) -> None:
        self.buffer = buffer
        self.num_experts = num_experts
        self.use_fp8 = use_fp8
        self.handles: list[Any] = [None, None]

    def prepare_async(
        self, micro_batch: int, x: torch.Tensor, topk_ids: torch.Tensor
    ) -> tuple[Callable[[], None], Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
        """A hook that receives, and what gives the experts' input after it."""
        expert_x, counts, self.handles[micro_batch], _event, hook = (
            self.buffer.low_latency_dispatch(
                x,
                topk_ids,
                MAX_TOKENS,
                self.num_experts,
                use_fp8=self.use_fp8,
                round_scale=False,
                use_ue8m0=False,
                async_finish=False,
                return_recv_hook=True,
            )
        )

        def receive() -> tuple[torch.Tensor, torch.Tensor]:
            if not isinstance(expert_x, tuple):
                return expert_x, counts
            data, scales = expert_x
            # Masked grouped GEMMs take the scales as they are: one column after another.
            assert scales.stride() == (data.shape[1] * data.shape[2] // BLOCK, 1, data.shape[1])
            blocks = data.float().unflatten(2, (-1, BLOCK)) * scales.unsqueeze(3)
            return blocks.flatten(2).bfloat16(), counts

        return hook, receive

    def finalize(
        self,
        micro_batch: int,
        output: torch.Tensor,
        fused_expert_output: torch.Tensor,
        topk_ids: torch.Tensor,
        topk_weights: torch.Tensor,
        weights_on_input: bool,
    ) -> Callable[[], None]:
        """A hook after which ``output`` is complete."""
        weights = torch.ones_like(topk_weights) if weights_on_input else topk_weights
        _, _, hook = self.buffer.low_latency_combine(
            fused_expert_output,
            topk_ids,
            weights,
            self.handles[micro_batch],
            async_finish=False,
            zero_copy=False,
            return_recv_hook=True,
            out=output,
        )
        return hook


def two_micro_batches(manager: Manager, device: torch.device, use_fp8: bool) -> None:
    """Both dispatches are under way before the first is received, and both combines."""
    ranks = manager.cpu_group.size()
    num_experts = EXPERTS_PER_RANK * ranks
    buffer = manager.get_handle(num_experts, fault_tolerance=False)
    assert manager.get_handle(num_experts, fault_tolerance=False) is buffer
    work = PrepareAndFinalize(buffer, num_experts, use_fp8)
    rank = manager.cpu_group.rank()
    batches = [
        make_batch(seed, rank, MAX_TOKENS - seed, HIDDEN, TOPK, num_experts, device)
        for seed in (3, 4)
    ]
    under_way = [work.prepare_async(n, b.x, b.topk_idx) for n, b in enumerate(batches)]
    finals = []
    for number, (batch, (hook, receive)) in enumerate(zip(batches, under_way)):
        hook()
        expert_x, counts = receive()
        assert counts.dtype == torch.int32
        output = torch.empty_like(batch.x)
        computed = expert_outputs(expert_x, counts, rank)
        finals.append(
            (
                batch,
                output,
                work.finalize(number, output, computed, batch.topk_idx, batch.topk_weights, False),
            )
        )
    for batch, output, hook in finals:
        hook()
        torch.testing.assert_close(
            output.float(), expected(batch), rtol=0.08 if use_fp8 else 0.02, atol=0.05
        )


def recovery(manager: Manager, device: torch.device) -> None:
    """Query, zero the whole buffer, clean the mask; afterwards everything works again."""
    ranks = manager.cpu_group.size()
    num_experts = EXPERTS_PER_RANK * ranks
    buffer = manager.get_handle(num_experts, fault_tolerance=True)
    last = torch.zeros(ranks, dtype=torch.int32, device=device)
    mask = torch.zeros_like(last)
    buffer.low_latency_query_mask_buffer(mask)
    assert torch.equal(mask, last)
    buffer.low_latency_update_mask_buffer(ranks - 1, mask=True)
    buffer.low_latency_query_mask_buffer(mask)
    assert mask.tolist() == [0] * (ranks - 1) + [1]

    buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
    _synchronize(device)
    buffer.low_latency_clean_mask_buffer()
    _synchronize(device)
    torch.distributed.barrier(manager.cpu_group)
    buffer.low_latency_query_mask_buffer(mask)
    assert torch.equal(mask, last)

    work = PrepareAndFinalize(buffer, num_experts, use_fp8=False)
    rank = manager.cpu_group.rank()
    batch = make_batch(9, rank, MAX_TOKENS, HIDDEN, TOPK, num_experts, device)
    weighted = batch.x * batch.topk_weights[:, :1].bfloat16()
    one = batch.topk_idx.clone()
    one[:, 1:] = -1  # the weight is on the input only where there is one expert
    hook, receive = work.prepare_async(0, weighted, one)
    hook()
    expert_x, counts = receive()
    output = torch.empty_like(batch.x)
    work.finalize(
        0, output, expert_outputs(expert_x, counts, rank), one, batch.topk_weights, True
    )()
    batch.topk_idx.copy_(one)
    torch.testing.assert_close(output.float(), expected(batch), rtol=0.03, atol=0.05)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    manager = Manager(group, backend)
    two_micro_batches(manager, device, use_fp8=True)
    two_micro_batches(manager, device, use_fp8=False)
    recovery(manager, device)
    manager.destroy()
