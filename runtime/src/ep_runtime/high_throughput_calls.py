"""The high-throughput calls of ``Buffer``, with the API of DeepEP V1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Union

import torch

from ep_runtime import config as configs
from ep_runtime.backends.high_throughput import (
    CombineTokens,
    DispatchTokens,
    HighThroughput,
    token_layout,
)
from ep_runtime.checks import check_tensor, require
from ep_runtime.config import RANKS_PER_NODE, Config
from ep_runtime.events import EventHandle, EventOverlap

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_runtime.backends.token_handle import TokenHandle

Event = Union[EventOverlap, EventHandle]
_ROW_ALIGNMENT = 16


class HighThroughputCalls:
    """Part of ``Buffer``: dispatch and combine of many tokens, each sent once to each rank.

    Letters: T tokens here, H channels, K selections, R ranks, E experts, L = E / R, N rows
    received. Events: an operation starts after ``previous_event``, else after what the current
    stream holds; with ``async_finish`` it gives an event to wait for. ``allocate_on_comm_stream``
    needs both. For now these calls run on the CPU and are done when they return, so CUDA graphs
    can't hold them. Wrong arguments are RuntimeErrors, or AssertionErrors where an argument is
    missing; a peer that does not come is an EPTimeoutError.
    """

    num_sms: ClassVar[int] = 20
    rank: int
    group_size: int
    _high_throughput: HighThroughput | None

    @classmethod
    def set_num_sms(cls, new_num_sms: int) -> None:
        """Set the SMs of the high-throughput kernels, an even number, for all buffers."""
        assert new_num_sms % 2 == 0, "The SM count must be even"
        cls.num_sms = new_num_sms

    @classmethod
    def get_dispatch_config(cls, num_ranks: int) -> Config:
        """Give the tuned configuration; AssertionError for a number of ranks without one."""
        return configs.dispatch_config(cls.num_sms, num_ranks)

    @classmethod
    def get_combine_config(cls, num_ranks: int) -> Config:
        """Give the tuned configuration; AssertionError for a number of ranks without one."""
        return configs.combine_config(cls.num_sms, num_ranks)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """Count where tokens go. Not collective.

        Arguments:
            topk_idx: int64 [T, K], -1 for no expert.
            num_experts: E, a multiple of R.
            previous_event: see the class.
            async_finish: see the class.
            allocate_on_comm_stream: see the class.

        Returns ``(num_tokens_per_rank int32 [R], num_tokens_per_rdma_rank int32 [R/8] or None up
        to 8 ranks, num_tokens_per_expert int32 [E], is_token_in_rank bool [T, R], event)``. A
        token counts once for a rank.

        """
        self._calls()
        require(topk_idx.dim() == 2, f"topk_idx must have 2 dimensions, got {topk_idx.dim()}.")
        check_tensor("topk_idx", topk_idx, torch.int64, topk_idx.shape, topk_idx.device)
        require(
            num_experts > 0 and num_experts % self.group_size == 0,
            f"num_experts must be a multiple of the {self.group_size} ranks, got {num_experts}.",
        )
        _begin(previous_event, async_finish, allocate_on_comm_stream)
        layout = token_layout(topk_idx, num_experts, self.rank, self.group_size)
        return (*layout, _end(async_finish, topk_idx, *layout))

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: TokenHandle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        torch.Tensor | None,
        torch.Tensor | None,
        list[int] | None,
        TokenHandle | None,
        EventOverlap,
    ]:
        """Send each token to the ranks of its experts, once to each. Collective.

        Arguments:
            x: [T, H], rows of whole 16 bytes, or (one byte a channel [T, H], scales float32 or
                int32 [T, S]).
            handle: of an earlier dispatch, to send to the same places again; then none of the next
                six arguments is given.
            num_tokens_per_rank: as all that follows up to ``num_tokens_per_expert``, from
                ``get_dispatch_layout``.
            num_tokens_per_rdma_rank: needed for more than 8 ranks.
            is_token_in_rank: bool [T, R].
            num_tokens_per_expert: int32 [E].
            topk_idx: int64 [T, K].
            topk_weights: float32 [T, K]; both or none.
            expert_alignment: counts of rows per expert are rounded up to a multiple of it.
            num_worst_tokens: rows of all outputs, if given; at least N.
            config: whose ``num_sms`` sets the channels; a tuned one by default.
            previous_event: see the class.
            async_finish: see the class.
            allocate_on_comm_stream: see the class.

        Returns ``(recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list,
        handle, event)``. ``recv_x`` [N, H], or a pair with scales [N, S], is ordered by source
        rank, then token. ``recv_topk_idx`` int64 [N, K] has experts as this rank numbers them, 0
        to L - 1, and -1 for others'; ``recv_topk_weights`` float32 [N, K] 0 for these. The list
        has the rows of each local expert, and is empty with ``num_worst_tokens``; rows after N
        then have -1 in ``recv_topk_idx``. Given a handle all but ``recv_x`` and the event is None.
        The handle is a tuple of tensors: see ``backends/token_handle.py``.

        """
        return self._dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
            internode=self.group_size > RANKS_PER_NODE,
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: TokenHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Bring rows back and add them up per token, without weights. Collective.

        Arguments:
            x: bfloat16 [N, H], a row for each that the dispatch gave.
            handle: of that dispatch.
            topk_weights: float32 [N, K], to be added up, too.
            bias: bfloat16 [T, H], or two of them, added to the sums.
            config: with the ``num_sms`` of the dispatch.
            previous_event: see the class.
            async_finish: see the class.
            allocate_on_comm_stream: see the class.

        Returns ``(combined bfloat16 [T, H], weights float32 [T, K] or None, event)``. Sums are in
        float32, the biases first, then ranks in order, and are rounded once.

        """
        calls = self._calls()
        require(x.dim() == 2, f"x must have 2 dimensions, got {x.dim()}.")
        check_tensor("x", x, torch.bfloat16, x.shape, x.device)
        _check_row(x)
        if topk_weights is not None:
            shape = torch.Size((x.shape[0], topk_weights.shape[-1]))
            check_tensor("topk_weights", topk_weights, torch.float32, shape, x.device)
        config = config or self._config(configs.combine_config)
        _check_channels(config)
        biases = () if bias is None else bias if isinstance(bias, tuple) else (bias,)
        require(len(biases) <= 2, f"bias must be one tensor or two, got {len(biases)}.")
        _begin(previous_event, async_finish, allocate_on_comm_stream)
        given = CombineTokens(x, topk_weights, biases, handle, config.num_channels)
        combined, weights = calls.combine(given)
        extra = (x, topk_weights, combined, weights, *biases, *handle)
        return combined, weights, _end(async_finish, *extra)

    def internode_dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: TokenHandle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[
        torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        torch.Tensor | None,
        torch.Tensor | None,
        list[int] | None,
        TokenHandle | None,
        EventOverlap,
    ]:
        """Dispatch with a handle of the kind between nodes; ``dispatch`` does so by itself."""
        assert config is not None, "internode_dispatch needs a config."
        return self._dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            num_worst_tokens,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
            internode=True,
        )

    def internode_combine(
        self,
        x: torch.Tensor,
        handle: TokenHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None = None,
        config: Config | None = None,
        previous_event: Event | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Combine; ``combine`` itself takes handles of either kind."""
        assert config is not None, "internode_combine needs a config."
        return self.combine(
            x,
            handle,
            topk_weights,
            bias,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    def _dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: TokenHandle | None,
        num_tokens_per_rank: torch.Tensor | None,
        num_tokens_per_rdma_rank: torch.Tensor | None,
        is_token_in_rank: torch.Tensor | None,
        num_tokens_per_expert: torch.Tensor | None,
        topk_idx: torch.Tensor | None,
        topk_weights: torch.Tensor | None,
        expert_alignment: int,
        num_worst_tokens: int,
        config: Config | None,
        previous_event: Event | None,
        async_finish: bool,
        allocate_on_comm_stream: bool,
        *,
        internode: bool,
    ) -> tuple[Any, Any, Any, Any, Any, EventOverlap]:
        calls = self._calls()
        data, scales = x if isinstance(x, tuple) else (x, None)
        _check_rows(data, scales)
        config = config or self._config(configs.dispatch_config)
        _check_channels(config)
        if handle is not None:
            assert topk_idx is None and topk_weights is None, (
                "topk_idx and topk_weights can't be given with a handle."
            )
        else:
            assert num_tokens_per_rank is not None, "num_tokens_per_rank is missing."
            assert is_token_in_rank is not None, "is_token_in_rank is missing."
            assert num_tokens_per_expert is not None, "num_tokens_per_expert is missing."
            if self.group_size > RANKS_PER_NODE:
                assert num_tokens_per_rdma_rank is not None, "num_tokens_per_rdma_rank is missing."
            self._check_layout(data, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
            _check_topk(data, topk_idx, topk_weights, num_worst_tokens)
        require(expert_alignment > 0, f"expert_alignment must be positive, got {expert_alignment}.")
        _begin(previous_event, async_finish, allocate_on_comm_stream)
        given = DispatchTokens(
            data,
            scales,
            topk_idx,
            topk_weights,
            is_token_in_rank if handle is None else None,
            num_tokens_per_expert if handle is None else None,
            handle,
            internode,
            config.num_channels,
            num_worst_tokens if handle is None else 0,
        )
        done = calls.dispatch(given)
        recv_x = done.x if done.scales is None else (done.x, done.scales)
        extra = (data, scales, topk_idx, topk_weights, done.x, done.scales, *done.handle)
        event = _end(async_finish, *extra)
        if handle is not None:
            return recv_x, None, None, None, None, event
        counts = [-(-n // expert_alignment) * expert_alignment for n in done.per_expert]
        return recv_x, done.topk_idx, done.topk_weights, counts, done.handle, event

    def _calls(self) -> HighThroughput:
        if self._high_throughput is None:
            raise RuntimeError("this buffer was destroyed.")
        return self._high_throughput

    def _config(self, tuned: Callable[[int, int], Config]) -> Config:
        """Give the tuned configuration, or one as good where nothing was tuned for."""
        try:
            return tuned(self.__class__.num_sms, self.group_size)
        except AssertionError:
            return Config(self.__class__.num_sms)

    def _check_layout(
        self,
        x: torch.Tensor,
        per_rank: torch.Tensor,
        in_rank: torch.Tensor,
        per_expert: torch.Tensor,
    ) -> None:
        ranks, device = self.group_size, x.device
        shape = torch.Size((x.shape[0], ranks))
        check_tensor("is_token_in_rank", in_rank, torch.bool, shape, device)
        check_tensor("num_tokens_per_rank", per_rank, torch.int32, torch.Size((ranks,)), device)
        experts = per_expert.numel()
        check_tensor(
            "num_tokens_per_expert", per_expert, torch.int32, torch.Size((experts,)), device
        )
        require(
            experts > 0 and experts % ranks == 0,
            f"num_tokens_per_expert must have a multiple of {ranks} entries, got {experts}.",
        )
        counted = in_rank.sum(0, dtype=torch.int32)
        require(
            bool((counted == per_rank).all()),
            f"num_tokens_per_rank must count is_token_in_rank, which has {counted.tolist()}, got "
            f"{per_rank.tolist()}.",
        )


def _check_rows(x: torch.Tensor, scales: torch.Tensor | None) -> None:
    require(x.dim() == 2, f"x must have 2 dimensions, got {x.dim()}.")
    require(x.is_contiguous(), f"x must be contiguous, got strides {x.stride()}.")
    _check_row(x)
    if scales is None:
        return
    require(x.element_size() == 1, f"x with scales must have one byte a channel, got {x.dtype}.")
    require(
        scales.dtype in (torch.float32, torch.int32),
        f"scales must be torch.float32 or torch.int32, got {scales.dtype}.",
    )
    require(
        scales.dim() == 2 and scales.shape[0] == x.shape[0],
        f"scales must have shape [{x.shape[0]}, scales per token], got {list(scales.shape)}.",
    )


def _check_row(x: torch.Tensor) -> None:
    row_bytes = x.shape[1] * x.element_size()
    require(
        row_bytes > 0 and row_bytes % _ROW_ALIGNMENT == 0,
        f"a row of x must be a multiple of {_ROW_ALIGNMENT} bytes, got {row_bytes}.",
    )


def _check_topk(
    x: torch.Tensor,
    topk_idx: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
    num_worst_tokens: int,
) -> None:
    require(
        (topk_idx is None) == (topk_weights is None),
        "topk_idx and topk_weights must be given both or not at all, got one.",
    )
    require(num_worst_tokens >= 0, f"num_worst_tokens must be >= 0, got {num_worst_tokens}.")
    if topk_idx is None or topk_weights is None:
        require(num_worst_tokens == 0, "num_worst_tokens needs topk_idx and topk_weights.")
        return
    shape = torch.Size((x.shape[0], topk_idx.shape[-1]))
    check_tensor("topk_idx", topk_idx, torch.int64, shape, x.device)
    check_tensor("topk_weights", topk_weights, torch.float32, shape, x.device)


def _check_channels(config: Config) -> None:
    require(
        config.num_sms > 0 and config.num_sms % 2 == 0,
        f"num_sms of config must be even and not 0, got {config.num_sms}.",
    )


def _begin(previous_event: Event | None, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """Let what follows on the current stream wait for ``previous_event``."""
    event = previous_event.event if isinstance(previous_event, EventOverlap) else previous_event
    require(
        not allocate_on_comm_stream or (event is not None and async_finish),
        "allocate_on_comm_stream needs previous_event and async_finish=True.",
    )
    if event is not None:
        event.current_stream_wait()


def _end(async_finish: bool, *tensors: torch.Tensor | None) -> EventOverlap:
    if not async_finish:
        return EventOverlap()
    return EventOverlap(EventHandle(), tuple(t for t in tensors if t is not None))
