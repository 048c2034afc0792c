"""The reference backend: the operations in plain torch, rows carried by torch.distributed.

It runs anywhere, without a GPU, and says what is right: the kernels of the other backends are
tested against it. Work is done on the CPU; GPU tensors are copied there and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import numerics
from ep_runtime.backends import routing
from ep_runtime.backends.base import (
    RECEIVE,
    SEND,
    CombineRequest,
    DispatchRequest,
)
from ep_runtime.backends.combine_buffer import CombineBuffer
from ep_runtime.backends.exchange import Call, Exchange, bytes_of, transport_report
from ep_runtime.errors import EPError

if TYPE_CHECKING:
    from ep_runtime.group import RankGroup


def _call(name: str, max_tokens: int, hidden: int, num_experts: int, form: int = 0) -> Call:
    """Describe an operation as the peers compare it; ``form`` tells formats apart."""
    number = {"dispatch": 1, "combine": 2, "clean": 3}[name]
    arguments = {
        "num_max_dispatch_tokens_per_rank": max_tokens,
        "hidden": hidden,
        "num_experts": num_experts,
        "format": form,
    }
    return Call(name, number, arguments)


class ReferenceBackend:
    """Private connections over gloo, and the masks. Creation is collective.

    ``num_bytes`` is only the size of ``local_buffer``: rows never lie there. ``wait_stats`` of the
    operations count nanoseconds, for all peers at once, as the other backends do.
    """

    name = "reference"
    tensor_device: torch.device | None = None  # GPU tensors are copied

    def __init__(
        self,
        ranks: RankGroup,
        num_bytes: int,
        *,
        enable_shrink: bool,
        device: torch.device,
    ) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._device = device
        self._num_bytes = num_bytes
        self._local: torch.Tensor | None = None
        self.combine_buffer = CombineBuffer()
        self.exchange = Exchange(ranks, mask_lost=enable_shrink)

    def dispatch(self, request: DispatchRequest) -> _ReferenceDispatch:
        """Prepare a dispatch."""
        return _ReferenceDispatch(self, request)

    def combine(self, request: CombineRequest) -> _ReferenceCombine:
        """Prepare a combine."""
        return _ReferenceCombine(self, request)

    def next_combine_buffer(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> torch.Tensor:
        """Memory that the next ``zero_copy`` combine reads."""
        rows = self.size * max_tokens_per_rank
        return self.combine_buffer.hand_out(
            num_experts // self.size, rows, hidden, hidden + hidden // 64, self._device
        )

    def local_buffer(self) -> torch.Tensor:
        """Memory of the size asked for; this backend keeps nothing in it."""
        if self._local is None:
            self._local = torch.zeros(self._num_bytes, dtype=torch.uint8, device=self._device)
        return self._local

    def clean(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int, timeout_us: int
    ) -> None:
        """Drop what was not received, and meet all ranks that are not masked, twice.

        The local buffer is zeroed between the meetings.
        """
        self.exchange.drop_unreceived(timeout_us)
        call = _call("clean", max_tokens_per_rank, hidden, num_experts)
        for _ in range(2):
            nothing: dict[int, tuple[torch.Tensor, ...]] = dict.fromkeys(self.exchange.peers(), ())
            sequence = self.exchange.send(call, nothing, timeout_us)
            for _ in self.exchange.receive(sequence, call, timeout_us):
                pass
            if self._local is not None:
                self._local.zero_()

    def set_mask(self, rank: int, masked: bool) -> None:
        """Mask or unmask one rank."""
        self.exchange.masked[rank] = masked

    def query_mask(self, out: torch.Tensor) -> None:
        """Write 0 or 1 per rank."""
        out.view(-1).copy_(torch.tensor(self.exchange.masked, dtype=torch.int32))

    def clear_mask(self) -> None:
        """Unmask all ranks."""
        self.exchange.masked = [False] * self.size

    def check(self) -> None:
        """Return: every phase raises its own errors when it runs."""

    def transport_report(self) -> dict[str, Any]:
        """Name the path to each rank."""
        return transport_report(self.rank, self.size)

    def destroy(self) -> None:
        """Close the private group once peers have fetched what they were sent."""
        self.exchange.close()


class _ReferenceDispatch:
    """One dispatch: its outputs, and the two phases that fill them."""

    def __init__(self, backend: ReferenceBackend, request: DispatchRequest) -> None:
        self._backend = backend
        self._request = request
        self._sequence = 0
        self._hidden = request.x.shape[1]
        self._local_experts = request.num_experts // backend.size
        form = request.use_fp8 + 2 * request.round_scale  # UE8M0 differs only where it is unpacked
        self._call = _call(
            "dispatch", request.max_tokens_per_rank, self._hidden, request.num_experts, form
        )
        self._outputs = self._allocate(request.x.device)
        self.result = self._outputs.result

    def _allocate(self, device: torch.device) -> routing.DispatchOutputs:
        return routing.DispatchOutputs.allocate(
            self._request, self._backend.size, self._local_experts, device
        )

    def run(self, phases: int) -> None:
        """Send, receive, or both, before it returns."""
        if phases & SEND:
            self._send()
        if phases & RECEIVE:
            self._receive()

    def _send(self) -> None:
        request, backend = self._request, self._backend
        routes = routing.plan_routes(
            request.topk_idx.cpu(), request.num_experts, request.max_tokens_per_rank, backend.rank
        )
        x = request.x.cpu()
        if request.use_fp8:
            data, inverse = numerics.quantize_fp8(x, request.round_scale)
            payload = torch.cat((bytes_of(data), bytes_of(inverse)), dim=1)
        else:
            payload = bytes_of(x)
        parts = {}
        for peer in backend.exchange.peers():
            tokens, entries = routes.to_rank(peer, self._local_experts)
            parts[peer] = (bytes_of(entries).view(-1), payload[tokens].view(-1))
        self._sequence = backend.exchange.send(self._call, parts, request.timeout_us)

    def _receive(self) -> None:
        request, backend = self._request, self._backend
        arrived = backend.exchange.receive(
            self._sequence, self._call, request.timeout_us, request.wait_stats
        )
        row_bytes = self._hidden + self._hidden // 32 if request.use_fp8 else 2 * self._hidden
        rows = routing.ReceivedRows.collect(arrived, row_bytes)
        on_cpu = self.result.recv_x.device.type == "cpu"
        outputs = self._outputs if on_cpu else self._allocate(torch.device("cpu"))
        outputs.fill(rows, request, self._hidden)
        if not on_cpu:
            self._outputs.copy_from(outputs)
        if request.cumulative_stats is not None:
            request.cumulative_stats.add_(self.result.recv_count)


class _ReferenceCombine:
    """One combine into ``request.out``."""

    def __init__(self, backend: ReferenceBackend, request: CombineRequest) -> None:
        self._backend = backend
        self._request = request
        self._sequence = 0
        self._source = backend.combine_buffer.take(request) if request.zero_copy else request.x
        self._places = routing.top_k_places(request.src_info)
        self._hidden = request.x.shape[2]
        self._call = _call(
            "combine",
            request.max_tokens_per_rank,
            self._hidden,
            request.num_experts,
            int(request.use_logfmt),
        )

    def run(self, phases: int) -> None:
        """Send, receive, or both, before it returns."""
        if phases & SEND:
            self._send()
        if phases & RECEIVE:
            self._receive()

    def _send(self) -> None:
        request, backend = self._request, self._backend
        source, layout = self._source.cpu(), request.layout_range.cpu()
        tokens, places = request.src_info.cpu(), self._places.cpu()
        parts = {}
        local_experts = layout.shape[0]
        first = backend.rank * local_experts
        experts = torch.arange(first, first + local_experts, dtype=torch.int32)
        columns = (tokens, places, experts.unsqueeze(1).expand_as(tokens))
        for peer in backend.exchange.peers():
            mine = layout[:, peer]
            entries = torch.stack([routing.rows_of_rank(c, mine) for c in columns], dim=1)
            rows = self._encode(routing.rows_of_rank(source, mine))
            parts[peer] = (bytes_of(entries).view(-1), rows.view(-1))
        self._sequence = backend.exchange.send(self._call, parts, request.timeout_us)

    def _encode(self, rows: torch.Tensor) -> torch.Tensor:
        if not self._request.use_logfmt:
            return bytes_of(rows)
        coded = numerics.encode_logfmt(rows)
        return torch.cat([bytes_of(t) for t in (coded.words, coded.extremes, coded.encoded)], dim=1)

    def _decode(self, payload: torch.Tensor) -> torch.Tensor:
        """float32 rows [N, H] from their bytes [N, B]."""
        if not self._request.use_logfmt:
            return payload.view(torch.bfloat16).to(torch.float32)
        groups = self._hidden // numerics.GROUP
        ends = 2 * self._hidden, 2 * self._hidden + 4 * groups
        words = routing.columns_as(payload, 0, ends[0], torch.int16)
        extremes = routing.columns_as(payload, *ends, torch.bfloat16)
        coded = numerics.LogfmtRows(
            words.view(-1, groups, numerics.GROUP),
            extremes.view(-1, groups, 2),
            routing.columns_as(payload, ends[1], None, torch.bool),
        )
        return numerics.decode_logfmt(coded)

    def _receive(self) -> None:
        request, backend = self._request, self._backend
        groups = self._hidden // numerics.GROUP
        row_bytes = 2 * self._hidden + (5 * groups if request.use_logfmt else 0)
        arrived = backend.exchange.receive(
            self._sequence, self._call, request.timeout_us, request.wait_stats
        )
        entries = [torch.empty((0, 3), dtype=torch.int64)]
        payloads = [torch.empty((0, row_bytes), dtype=torch.uint8)]
        for _, (entry, payload) in arrived:
            entries.append(entry.view(torch.int32).view(-1, 3).long())
            payloads.append(payload.view(-1, row_bytes))
        topk_idx, weights = request.topk_idx.cpu(), request.topk_weights.cpu()
        routing.check_experts(topk_idx, request.num_experts, backend.rank)
        row_of = routing.rows_by_choice(torch.cat(entries), topk_idx)
        owners = topk_idx.div(request.num_experts // backend.size, rounding_mode="floor")
        wanted = (topk_idx >= 0) & ~torch.tensor(backend.exchange.masked)[owners.clamp_min(0)]
        self._require_all(wanted & (row_of < 0), owners)
        payload = torch.cat(payloads)
        total = torch.zeros(request.out.shape, dtype=torch.float32)
        for k in range(topk_idx.shape[1]):
            tokens = wanted[:, k].nonzero().squeeze(1)
            rows = self._decode(payload.index_select(0, row_of[tokens, k]))
            total.index_add_(0, tokens, rows * weights[tokens, k].unsqueeze(1))
        request.out.copy_(total.to(torch.bfloat16))

    def _require_all(self, missing: torch.Tensor, owners: torch.Tensor) -> None:
        if not bool(missing.any()):
            return
        token, k = missing.nonzero()[0].tolist()
        peer = int(owners[token, k])
        raise EPError(
            f"rank {self._backend.rank}: combine got no row from rank {peer} for token {token}, "
            f"top-k place {k}: topk_idx must be the one that was dispatched.",
            rank=self._backend.rank,
            peer=peer,
            phase="combine receive",
        )
