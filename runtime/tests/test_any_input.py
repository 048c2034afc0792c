"""Whatever is given to the public API: an error in Python before any work, or the defined result.

Each property draws one call with arguments that may be of the wrong type, dtype, shape, stride or
device, or out of range. Where nothing is raised, the result must be the oracle's, and the buffer
must work on after each. EP_TEST_EXAMPLES says how many calls a property draws.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from ep_runtime import Buffer, Config
from ep_runtime.environment import integer_setting
from hypothesis import given, settings
from hypothesis import strategies as st
from one_rank import SIZE, E, H, K, M, T, as_before, combine, dispatch, make
from oracle import Inputs, Shape, expected_rows
from rank_tasks import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

# What callers of DeepEP get for wrong arguments; others would be errors of our own.
REFUSALS = (RuntimeError, ValueError, AssertionError, TypeError, AttributeError)
ONE_RANK = Shape(1, H, K, E, M, (T,))
LARGE = 2**70

some = settings(max_examples=int(os.environ.get("EP_TEST_EXAMPLES", "25")))


@pytest.fixture(scope="module", autouse=True)
def keep_environment() -> Iterator[None]:
    yield from as_before()


@pytest.fixture(scope="module")
def buffer() -> Iterator[Buffer]:
    buffer = make(enable_shrink=True)
    yield buffer
    buffer.destroy()


# -- arguments that may be wrong

numbers = st.one_of(
    st.integers(-3, 3), st.sampled_from([M, E, 65535, 65536, -(2**31), 2**31, 2**63, LARGE])
)
not_tensors = st.sampled_from([None, 3, "x", [1.0], (), {}])
dtypes = st.sampled_from(
    [
        torch.bfloat16,
        torch.float16,
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.complex64,
        torch.float8_e4m3fn,
    ]
)
sides = st.sampled_from([0, 1, K, T, T + 1, M, M + 1, E, 33, 128, H - 1, H, H + 128])
shapes = st.lists(sides, max_size=4).filter(lambda shape: math.prod(shape) < 1 << 18)


@st.composite
def any_tensor(draw: Any) -> Any:
    """A tensor of any dtype, shape, stride and device, mostly not the one that is wanted."""
    tensor = torch.zeros(draw(shapes), dtype=torch.uint8).to(draw(dtypes))
    how = draw(st.sampled_from(["plain", "strided", "transposed", "meta", "sparse", "expanded"]))
    if how == "strided" and tensor.dim():
        return torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)[..., ::2]
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1)
    if how == "meta":
        return tensor.to("meta")
    if how == "sparse" and tensor.dtype in (torch.float32, torch.bfloat16):
        return tensor.to_sparse()
    if how == "expanded" and tensor.dim():
        return tensor[:1].expand(tensor.shape) if tensor.shape[0] else tensor
    return tensor


anything = st.one_of(any_tensor(), not_tensors)
flags = st.booleans()


def still_works(buffer: Buffer) -> None:
    buffer._launcher.forget()
    _, count, handle, _, _ = dispatch(buffer, use_fp8=False)
    assert int(count.sum()) == T * K
    combined, _, _ = combine(buffer, handle=handle, x=torch.ones(E, M, H, dtype=torch.bfloat16))
    assert bool((combined == K).all())


def refused(call: Any) -> bool:
    """Whether the call was refused as callers expect; what it gave is forgotten."""
    try:
        call()
    except REFUSALS as error:
        assert str(error)
        return True
    return False


@some
@given(
    wrong=st.dictionaries(
        st.sampled_from(
            ["x", "topk_idx", "cumulative_local_expert_recv_stats", "dispatch_wait_recv_cost_stats"]
        ),
        anything,
        max_size=2,
    ),
    odd=st.dictionaries(
        st.sampled_from(
            ["num_max_dispatch_tokens_per_rank", "num_experts", "timeout_us", "num_sms"]
        ),
        numbers,
        max_size=1,
    ),
    modes=st.fixed_dictionaries(
        dict.fromkeys(
            ("use_fp8", "round_scale", "use_ue8m0", "async_finish", "return_recv_hook"), flags
        )
    ),
)
def test_dispatch(buffer: Buffer, wrong: Any, odd: Any, modes: dict[str, bool]) -> None:
    done = not refused(lambda: dispatch(buffer, **wrong, **odd, **modes))
    if done:
        x = wrong.get("x", torch.zeros(T, H, dtype=torch.bfloat16))
        assert x.dtype == torch.bfloat16
        assert x.dim() == 2
        assert x.device.type == "cpu"
        assert not (modes["async_finish"] and modes["return_recv_hook"])
        assert modes["use_fp8"] or not modes["use_ue8m0"]
    still_works(buffer)


@some
@given(
    wrong=st.dictionaries(
        st.sampled_from(
            ["x", "topk_idx", "topk_weights", "handle", "out", "combine_wait_recv_cost_stats"]
        ),
        anything,
        min_size=1,
        max_size=2,
    ),
    modes=st.fixed_dictionaries(
        dict.fromkeys(("use_logfmt", "zero_copy", "async_finish", "return_recv_hook"), flags)
    ),
)
def test_combine(buffer: Buffer, wrong: Any, modes: dict[str, bool]) -> None:
    if "handle" not in wrong:
        wrong["handle"] = dispatch(buffer)[2]
    if not refused(lambda: combine(buffer, **wrong, **modes)):
        assert not (modes["zero_copy"] or (modes["async_finish"] and modes["return_recv_hook"]))
    still_works(buffer)


@some
@given(place=st.integers(0, 4), value=st.one_of(anything, numbers))
def test_a_handle_with_one_part_exchanged(buffer: Buffer, place: int, value: Any) -> None:
    handle = list(dispatch(buffer)[2])
    good, handle[place] = handle[place], value
    same = isinstance(value, int) and not isinstance(good, torch.Tensor) and value == good
    assert refused(lambda: combine(buffer, handle=tuple(handle))) or same
    still_works(buffer)


@some
@given(st.data())
def test_any_selection(buffer: Buffer, data: Any) -> None:
    """In range the rows are the oracle's, out of it the first wrong entry is named."""
    entry = st.one_of(st.integers(-1, E - 1), st.sampled_from([-2, E, 2**31, 2**62, -(2**63)]))
    rows = data.draw(st.lists(st.lists(entry, min_size=K, max_size=K), min_size=T, max_size=T))
    topk_idx = torch.tensor(rows)
    counts = torch.bincount(topk_idx[(topk_idx >= 0) & (topk_idx < E)], minlength=E)
    wrong = bool(((topk_idx < -1) | (topk_idx >= E)).any())
    if wrong or int(counts.max()) > M:
        with pytest.raises(RuntimeError, match=r"topk_idx\[\d+, \d+\] is|topk_idx selects expert"):
            dispatch(buffer, topk_idx=topk_idx)
    else:
        assert dispatch(buffer, topk_idx=topk_idx)[1].tolist() == counts.tolist()
    still_works(buffer)


any_bf16 = st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=64)
special = st.lists(
    st.sampled_from([0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F7F, 0x0001, 0x8000, 0x3F80, 0x43E0]),
    min_size=1,
    max_size=64,
)


def rows_of(bits: list[int]) -> torch.Tensor:
    """bfloat16 [T, H] that repeats the given bit patterns."""
    pattern = np.resize(np.array(bits, dtype=np.uint16), (T, H))
    return torch.from_numpy(pattern.view(np.int16)).view(torch.bfloat16)


@some
@given(bits=st.one_of(any_bf16, special), form=st.sampled_from(list(FORMATS)))
def test_any_value_arrives_as_defined(buffer: Buffer, bits: list[int], form: str) -> None:
    """NaN, infinities, denormals and what saturates FP8 too, bit for bit."""
    x = rows_of(bits)
    topk_idx = np.zeros((T, K), np.int64) + np.arange(K)
    given_rows = Inputs(x.float().numpy(), topk_idx, np.ones((T, K), np.float32))
    options = FORMATS[form]
    with np.errstate(all="ignore"):
        (expected, *_) = expected_rows(
            ONE_RANK,
            [given_rows],
            0,
            fp8=options["use_fp8"],
            round_scale=options.get("round_scale", False),
        )
    recv_x, count, *_ = dispatch(buffer, x=x, topk_idx=torch.from_numpy(topk_idx), **options)
    assert count.tolist() == [T, T, 0, 0]
    data = recv_x[0] if isinstance(recv_x, tuple) else recv_x
    for row, want in zip(data[0, :T], expected):
        if options["use_fp8"]:
            assert row.view(torch.uint8).tolist() == want.data.tolist()
        else:
            assert row.view(torch.int16).tolist() == x[want.token].view(torch.int16).tolist()
    if form == "fp8":
        want_scales = np.stack([row.scales for row in expected])
        assert np.array_equal(recv_x[1][0, :T].numpy(), want_scales, equal_nan=True)


@some
@given(bits=special, weight=st.sampled_from([0.0, -1.0, 1.0, math.inf, math.nan, 3e38]))
def test_a_sum_hides_no_nan_and_no_infinity(buffer: Buffer, bits: list[int], weight: float) -> None:
    handle = dispatch(buffer)[2]
    rows = rows_of(bits)
    x = torch.zeros(E, M, H, dtype=torch.bfloat16)
    x[0, :T] = rows  # expert 0 has each token's row, expert 1 answers nothing
    weights = torch.full((T, K), weight)
    with np.errstate(all="ignore"):
        want = rows.float() * weight + torch.zeros(T, H) * weight
    combined, _, _ = combine(buffer, x=x, topk_weights=weights, handle=handle)
    assert torch.equal(combined.isnan(), want.isnan())
    assert torch.equal(combined.nan_to_num(1.0), want.to(torch.bfloat16).nan_to_num(1.0))


def test_a_row_that_requires_a_gradient_is_only_data(buffer: Buffer) -> None:
    x = torch.ones(T, H, dtype=torch.bfloat16, requires_grad=True)
    for form in FORMATS.values():
        recv_x, count, *_ = dispatch(buffer, x=x, **form)
        data = recv_x[0] if isinstance(recv_x, tuple) else recv_x
        assert int(count.sum()) == T * K
        assert not data.requires_grad


# -- the other methods

numbers_or_not = st.one_of(numbers, st.sampled_from([None, "8", 1.5, [8]]))


@some
@given(st.lists(numbers_or_not, min_size=4, max_size=4))
def test_size_hint(arguments: list[Any]) -> None:
    try:
        size = Buffer.get_low_latency_rdma_size_hint(*arguments)
    except (ValueError, TypeError):
        return
    tokens, hidden, ranks, experts = arguments
    assert size % 128 == 0
    assert size > 2 * tokens * hidden * ranks
    assert experts % ranks == 0


@some
@given(st.lists(numbers_or_not, min_size=5, max_size=5), numbers, numbers)
def test_config(arguments: list[Any], hidden_bytes: int, ranks: int) -> None:
    def use() -> None:
        config = Config(*arguments)
        for hint in (config.get_nvl_buffer_size_hint, config.get_rdma_buffer_size_hint):
            size = hint(hidden_bytes, ranks)
            assert size >= 0
            assert size % 128 == 0

    try:
        use()
    except (RuntimeError, TypeError):
        return


@some
@given(
    options=st.dictionaries(
        st.sampled_from(
            [
                "num_nvl_bytes",
                "num_rdma_bytes",
                "num_qps_per_rank",
                "timeout_us",
                "num_sms",
                "rank",
                "group_size",
                "backend",
            ]
        ),
        numbers_or_not.filter(lambda value: not isinstance(value, int) or abs(value) < 1 << 20),
        min_size=1,
        max_size=2,
    )
)
def test_buffer(buffer: Buffer, options: dict[str, Any]) -> None:
    try:
        made = make(**options)
    except REFUSALS as error:
        assert str(error)
        return
    made.destroy()


@some
@given(rank=numbers_or_not, mask=st.booleans(), status=anything)
def test_masks(buffer: Buffer, rank: Any, mask: bool, status: Any) -> None:
    wanted = isinstance(rank, int) and rank == 0
    assert refused(lambda: buffer.low_latency_update_mask_buffer(rank, mask)) != wanted
    buffer.low_latency_clean_mask_buffer()
    if not refused(lambda: buffer.low_latency_query_mask_buffer(status)):
        assert status.dtype == torch.int32
        assert status.numel() == 1
        assert status.device.type == "cpu"
    still_works(buffer)


@some
@given(
    dtype=dtypes,
    size=st.one_of(st.none(), shapes.map(torch.Size), st.just(torch.Size((-1, -2)))),
    offset=st.one_of(numbers, st.sampled_from([SIZE - 2, SIZE, SIZE + 128])),
)
def test_views_of_memory_stay_inside(buffer: Buffer, dtype: Any, size: Any, offset: int) -> None:
    whole = buffer.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)

    def look() -> None:
        view = buffer.get_local_buffer_tensor(dtype, size, offset, use_rdma_buffer=True)
        if view.numel():
            begin = view.data_ptr() - whole.data_ptr()
            assert begin >= 0
            assert begin + view.numel() * dtype.itemsize <= SIZE

    refused(look)


@some
@given(wrong=st.dictionaries(st.sampled_from(["x", "topk_idx", "topk_weights"]), anything))
def test_high_throughput(buffer: Buffer, wrong: Any) -> None:
    def use() -> None:
        topk_idx = wrong.get("topk_idx", torch.zeros(T, K, dtype=torch.int64) + torch.arange(K))
        per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, E)
        recv_x, _, weights, _, handle, _ = buffer.dispatch(
            wrong.get("x", torch.ones(T, H, dtype=torch.bfloat16)),
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_node,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            topk_idx=topk_idx,
            topk_weights=wrong.get("topk_weights", torch.ones(T, K)),
        )
        combined, _, _ = buffer.combine(recv_x, handle, topk_weights=weights)
        assert combined.shape == recv_x.shape

    if not wrong:
        use()
    refused(use)


@some
@given(value=numbers_or_not, least=st.integers(0, 1))
def test_settings_are_integers(value: Any, least: int) -> None:
    try:
        got = integer_setting("timeout_us", value, "EP_RUNTIME_NOT_SET", default=7, least=least)
    except ValueError as error:
        assert "timeout_us must be an integer" in str(error)
        return
    assert got == (7 if value is None else int(value)) >= least
