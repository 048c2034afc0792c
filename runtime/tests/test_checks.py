"""Refusals of one rank: the kind of error, the argument's name, and both numbers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ep_runtime
import pytest
import torch
import torch.distributed as dist
from ep_runtime import Buffer, EventHandle, EventOverlap
from ep_runtime.checks import layout_of
from one_rank import SIZE, E, H, K, M, T, as_before, combine, dispatch, make

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def keep_environment() -> Iterator[None]:
    yield from as_before()


@pytest.fixture(scope="module")
def buffer() -> Iterator[Buffer]:
    buffer = make()
    yield buffer
    buffer.destroy()


BAD_DISPATCH: list[tuple[dict[str, Any], str]] = [
    ({"x": torch.zeros(H, dtype=torch.bfloat16)}, "x must have 2 dimensions, got 1"),
    ({"x": torch.zeros(T, H)}, "x must be torch.bfloat16, got torch.float32"),
    ({"x": torch.zeros(H, T, dtype=torch.bfloat16).t()}, "x must be contiguous"),
    ({"x": torch.zeros(T, 100, dtype=torch.bfloat16)}, "hidden must be from 128 to 16384, got 100"),
    ({"x": torch.zeros(T, 200, dtype=torch.bfloat16)}, "hidden must be a multiple of 128, got 200"),
    (
        {"x": torch.zeros(T, 1024, dtype=torch.bfloat16)},
        rf"num_rdma_bytes is {SIZE}, but .*hidden=1024.* need \d+ bytes",
    ),
    (
        {
            "x": torch.zeros(M + 1, H, dtype=torch.bfloat16),
            "topk_idx": torch.zeros(M + 1, K, dtype=torch.int64),
        },
        "num_max_dispatch_tokens_per_rank is 8, but there are 9 tokens",
    ),
    ({"topk_idx": torch.zeros(T, dtype=torch.int64)}, "topk_idx must have 2 dimensions, got 1"),
    ({"topk_idx": torch.zeros(T, K, dtype=torch.int32)}, "topk_idx must be torch.int64"),
    ({"topk_idx": torch.zeros(K, T, dtype=torch.int64).t()}, "topk_idx must be contiguous"),
    ({"topk_idx": torch.zeros(5, K, dtype=torch.int64)}, "each of the 6 tokens, got 5"),
    ({"topk_idx": torch.zeros(T, 5, dtype=torch.int64)}, "= 4 columns, got 5"),
    ({"topk_idx": torch.full((T, K), 4)}, r"topk_idx\[0, 0\] is 4, but experts are .* 0 to 3"),
    ({"topk_idx": torch.full((T, K), -2)}, r"topk_idx\[0, 0\] is -2"),
    ({"topk_idx": torch.full((T, K), 3)}, "selects expert 3 12 times, more than .*=8"),
    ({"num_experts": 0}, "num_experts must be from 1 to"),
    (
        {"cumulative_local_expert_recv_stats": torch.zeros(E)},
        "cumulative_local_expert_recv_stats must be torch.int32, got torch.float32",
    ),
    (
        {"cumulative_local_expert_recv_stats": torch.zeros(3, dtype=torch.int32)},
        r"cumulative_local_expert_recv_stats must have shape \[4\], got \[3\]",
    ),
    (
        {"dispatch_wait_recv_cost_stats": torch.zeros(1, 1, dtype=torch.int64)},
        r"dispatch_wait_recv_cost_stats must have shape \[1\], got \[1, 1\]",
    ),
    ({"async_finish": True, "return_recv_hook": True}, "exclude each other"),
    ({"use_ue8m0": True}, "use_ue8m0 needs round_scale=True"),
    ({"use_ue8m0": True, "round_scale": True, "use_fp8": False}, "use_ue8m0 needs use_fp8=True"),
    (
        {
            "use_ue8m0": True,
            "round_scale": True,
            "x": torch.zeros(T, 384, dtype=torch.bfloat16),
        },
        "use_ue8m0 needs hidden % 512 == 0, got hidden 384",
    ),
    ({"timeout_us": 0}, "timeout_us must be positive, got 0"),
    ({"num_sms": -1}, "num_sms must not be negative, got -1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_DISPATCH, ids=[m for _, m in BAD_DISPATCH])
def test_bad_dispatch(buffer: Buffer, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        dispatch(buffer, **changes)


BAD_COMBINE: list[tuple[dict[str, Any], str]] = [
    (
        {"x": torch.zeros(E, M, H).to(torch.float8_e4m3fn)},
        "must be torch.bfloat16, got torch.float8_e4m3fn: FP8 rows",
    ),
    ({"x": torch.zeros(E, M, H)}, "x must be torch.bfloat16, got torch.float32"),
    ({"x": torch.zeros(E, 7, H).bfloat16()}, r"x must have shape \[4, 8, 512\], got \[4, 7, 512\]"),
    ({"x": torch.zeros(M, E, H).bfloat16().transpose(0, 1)}, "x must be contiguous"),
    ({"topk_weights": torch.ones(T, K).double()}, "topk_weights must be torch.float32"),
    ({"topk_weights": torch.ones(T, 3)}, r"topk_weights must have shape \[6, 2\], got \[6, 3\]"),
    ({"topk_idx": torch.zeros(5, K, dtype=torch.int64)}, "each of the 6 tokens, got 5"),
    ({"topk_idx": torch.full((T, K), 3)}, "got no row from rank 0 for token 0, top-k place 0"),
    ({"topk_idx": torch.full((T, K), 9)}, r"topk_idx\[0, 0\] is 9, but experts are .* 0 to 3"),
    ({"out": torch.zeros(T, H)}, "out must be torch.bfloat16"),
    ({"out": torch.zeros(5, H).bfloat16()}, r"out must have shape \[6, 512\], got \[5, 512\]"),
    ({"zero_copy": True, "use_logfmt": True}, "zero_copy and use_logfmt exclude each other"),
    ({"zero_copy": True}, "zero_copy needs the rows in get_next_low_latency_combine_buffer"),
    ({"handle": (1, 2, 3)}, "handle must be the 5-tuple"),
    (
        {"combine_wait_recv_cost_stats": torch.zeros(1, dtype=torch.int32)},
        "combine_wait_recv_cost_stats must be torch.int64",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_COMBINE, ids=[m for _, m in BAD_COMBINE])
def test_bad_combine(buffer: Buffer, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        combine(buffer, **changes)


def test_copied_src_info_is_refused(buffer: Buffer) -> None:
    src_info, *rest = dispatch(buffer)[2]
    with pytest.raises(RuntimeError, match="src_info in the handle must be the tensor that"):
        combine(buffer, handle=(src_info.clone(), *rest))


def test_handle_is_a_plain_tuple(buffer: Buffer) -> None:
    handle = dispatch(buffer)[2]
    assert type(handle) is tuple
    assert handle[2:] == (M, H, E)


BAD_BUFFER: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"group_size": None}, ValueError, "Either 'group' or 'comm' must be provided"),
    ({"rank": 1}, ValueError, "rank must be from 0 to group_size - 1 = 0, got 1"),
    ({"group_size": 2}, ValueError, "differ from the default process group, .* rank 0 of 1"),
    ({"num_rdma_bytes": 100}, RuntimeError, "num_rdma_bytes must be a multiple of 128.* got 100"),
    ({"num_nvl_bytes": -128}, RuntimeError, "num_nvl_bytes must be a multiple of 128.* got -128"),
    ({"low_latency_mode": False}, RuntimeError, "needs low_latency_mode=True or more than 8 ranks"),
    ({"num_qps_per_rank": 0}, AssertionError, "num_qps_per_rank must be positive, got 0"),
    (
        {"backend": "nccl"},
        ValueError,
        "backend must be one of auto, reference, peer, nvshmem, got 'nccl'",
    ),
    ({"timeout_us": 0}, ValueError, "timeout_us must be an integer >= 1, got 0"),
    ({"num_sms": -1}, ValueError, "num_sms must be an integer >= 0, got -1"),
]


@pytest.mark.parametrize(
    ("options", "kind", "message"), BAD_BUFFER, ids=[message for *_, message in BAD_BUFFER]
)
def test_bad_buffer(
    buffer: Buffer, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(**options)


def test_group_and_numbers_must_agree(buffer: Buffer) -> None:
    with pytest.raises(ValueError, match="group_size is 2, but the group given says 1"):
        make(group=dist.group.WORLD, group_size=2)


def test_peer_backend_says_why_not(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="backend 'peer' can't be used: rank 0: "):
        make(backend="peer")


def test_auto_falls_back_loudly(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with caplog.at_level(logging.WARNING):
        auto = make(backend="auto")
    assert "uses the slow reference backend on all ranks: rank 0: " in caplog.text
    assert auto.transport_report()["backend"] == "reference"
    auto.destroy()


def test_environment_chooses_for_auto(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EP_RUNTIME_BACKEND", "referense")
    with pytest.raises(ValueError, match=r"EP_RUNTIME_BACKEND must be one of .*, got 'referense'"):
        make(backend="auto")
    monkeypatch.setenv("EP_RUNTIME_BACKEND", "reference")
    make(backend="auto").destroy()


def test_every_keyword_of_every_version(buffer: Buffer) -> None:
    every = make(
        group=dist.group.WORLD,
        rank=None,
        group_size=None,
        num_nvl_bytes=1 << 30,
        allow_nvlink_for_low_latency_mode=False,
        allow_mnnvl=True,
        use_fabric=True,
        enable_shrink=True,
        comm=None,
    )
    assert (every.rank, every.group_size, every.group) == (0, 1, dist.group.WORLD)
    assert (every.num_nvl_bytes, every.num_rdma_bytes) == (1 << 30, SIZE)
    assert every.low_latency_mode
    assert every.explicitly_destroy
    assert every.enable_shrink
    assert every.nvshmem_qp_depth >= 1024
    every.destroy()


def test_destroy(buffer: Buffer) -> None:
    with pytest.raises(AssertionError, match="`explicitly_destroy` flag must be set"):
        make(explicitly_destroy=False).destroy()
    once = make()
    once.destroy()
    with pytest.raises(RuntimeError, match="was destroyed before"):
        once.destroy()
    with pytest.raises(RuntimeError, match="this buffer was destroyed"):
        dispatch(once)


def test_forgotten_destroy_is_told(buffer: Buffer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        forgotten = make()
        del forgotten
    assert "destroy() was not called before a Buffer was collected" in caplog.text
    caplog.clear()
    collected = make(explicitly_destroy=False)
    del collected
    assert not caplog.records


def test_other_mode_has_no_low_latency_calls(buffer: Buffer) -> None:
    other = make(low_latency_mode=False, num_rdma_bytes=0)
    for call in (
        lambda: dispatch(other),
        lambda: other.clean_low_latency_buffer(M, H, E),
        lambda: other.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True),
    ):
        with pytest.raises(RuntimeError, match="low_latency_mode is False"):
            call()
    other.destroy()


def test_masks_need_shrinking(buffer: Buffer) -> None:
    status = torch.zeros(1, dtype=torch.int32)
    for call in (
        lambda: buffer.low_latency_update_mask_buffer(0, True),
        lambda: buffer.low_latency_query_mask_buffer(status),
        buffer.low_latency_clean_mask_buffer,
    ):
        with pytest.raises(RuntimeError, match="Shrink mode must be enabled"):
            call()
    shrinking = make(enable_shrink=True)
    with pytest.raises(RuntimeError, match="rank_to_mask must be from 0 to 0, got 1"):
        shrinking.low_latency_update_mask_buffer(1, True)
    with pytest.raises(RuntimeError, match=r"must be torch.int32 with 1 elements, got torch.int64"):
        shrinking.low_latency_query_mask_buffer(status.long())
    shrinking.destroy()


def test_local_memory_views(buffer: Buffer) -> None:
    whole = buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
    assert whole.shape == (SIZE,)
    whole.zero_()
    part = buffer.get_local_buffer_tensor(torch.int32, torch.Size((2, 3)), 8, use_rdma_buffer=True)
    part.fill_(-1)
    assert whole.nonzero().flatten().tolist() == list(range(8, 8 + 24))
    rest = buffer.get_local_buffer_tensor(torch.bfloat16, offset=SIZE - 6, use_rdma_buffer=True)
    assert rest.shape == (3,)
    with pytest.raises(RuntimeError, match=r"offset must be a multiple of 4 .* got 2"):
        buffer.get_local_buffer_tensor(torch.int32, offset=2, use_rdma_buffer=True)
    with pytest.raises(RuntimeError, match=rf"has {SIZE + 1} elements, but {SIZE} fit"):
        buffer.get_local_buffer_tensor(torch.int8, torch.Size((SIZE + 1,)), use_rdma_buffer=True)
    with pytest.raises(RuntimeError, match="use_rdma_buffer=True"):
        buffer.get_local_buffer_tensor(torch.int8)


def test_streams_and_events_without_a_gpu(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="get_comm_stream: torch finds no usable GPU"):
        buffer.get_comm_stream()
    captured = Buffer.capture()
    assert isinstance(captured, EventOverlap)
    assert isinstance(captured.event, EventHandle)
    captured.current_stream_wait()
    nothing = EventOverlap()
    with nothing as same:
        assert same is nothing
    with pytest.raises(AssertionError, match="event is None"):
        nothing.current_stream_wait()


def test_layout_errors_are_not_cached_away() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hidden must be a multiple of 128, got 200"):
            layout_of(1, 200, 1, 1)


def test_build_info_is_for_json() -> None:
    info = ep_runtime.build_info()
    assert info["version"] == ep_runtime.__version__ == "0.1.0"
    assert isinstance(info["cuda"], bool)
    assert bool(info["cuda_architectures"]) == info["cuda"] == (info["cuda_version"] is not None)
    assert Buffer.is_sm90_compiled() == any("90" in arch for arch in info["cuda_architectures"])


def test_import_touches_nothing() -> None:
    program = (
        "import os, torch; before = dict(os.environ); import ep_runtime; "
        "import torch.distributed as dist; "
        "assert os.environ == before and not dist.is_initialized(); "
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_group_of_several_needs_an_address() -> None:
    program = (
        "from ep_runtime import Buffer\n"
        "try: Buffer(rank=0, group_size=2)\n"
        "except ValueError as error: print(error)"
    )
    environment = {n: v for n, v in os.environ.items() if not n.startswith("MASTER_")}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, env=environment, text=True
    )
    assert "needs MASTER_ADDR and MASTER_PORT in the environment" in done.stdout
