"""``Config``: sizes worked out by hand, the tuned tables, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ep_runtime import Buffer, Config
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

# 8 bytes of source, 128 indices of 8, weights of 4 and scales of 4.
EXTRA = 8 + 128 * 8 + 128 * 4 + 128 * 4


@pytest.fixture
def default_sms() -> Iterator[None]:
    yield
    Buffer.set_num_sms(20)


def test_sizes_worked_out_by_hand() -> None:
    config = Config(24, 8, 256)
    # 12 channels, 8 ranks, (2 + 3) counters of 4 bytes, 256 rows of 14336 + 2056 bytes.
    assert config.get_nvl_buffer_size_hint(14336, 8) == 12 * 8 * (20 + 256 * 16392)
    assert config.get_rdma_buffer_size_hint(14336, 8) == 0
    # 2 nodes: 7 counters; for RDMA 18 * 2 counters, and 128 rows each way with 16 bytes more.
    config = Config(20, 36, 288, 20, 128)
    nvl = 10 * 8 * (28 + 288 * 16392)
    assert config.get_nvl_buffer_size_hint(14336, 16) == -(-nvl // 128) * 128
    rdma = 10 * 2 * (144 + 140 * 2 * 16408)  # 128 is rounded up to seven chunks of 20
    assert config.get_rdma_buffer_size_hint(14336, 16) == -(-rdma // 128) * 128


@given(
    num_sms=st.integers(1, 66),
    ranks=st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64, 160]),
    hidden_bytes=st.integers(16, 32768),
)
def test_hints_are_aligned_and_grow(num_sms: int, ranks: int, hidden_bytes: int) -> None:
    config = Config(2 * num_sms, 6, 256, 6, 128)
    for hint in (config.get_nvl_buffer_size_hint, config.get_rdma_buffer_size_hint):
        assert hint(hidden_bytes, ranks) % 128 == 0
        assert hint(hidden_bytes, ranks) <= hint(hidden_bytes + EXTRA, ranks)
    rows = num_sms * min(ranks, 8) * 256 * (hidden_bytes + EXTRA)
    assert rows < config.get_nvl_buffer_size_hint(hidden_bytes, ranks)
    assert (config.get_rdma_buffer_size_hint(hidden_bytes, ranks) > 0) == (ranks > 8)


@pytest.mark.usefixtures("default_sms")
def test_tuned_configurations_use_the_sms_set() -> None:
    assert Buffer.num_sms == 20
    Buffer.set_num_sms(36)
    assert Buffer.num_sms == 36
    for ranks in (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160):
        for config in (Buffer.get_dispatch_config(ranks), Buffer.get_combine_config(ranks)):
            assert config.num_sms == 36
            assert config.num_max_rdma_chunked_recv_tokens >= 128
    assert Buffer.get_dispatch_config(16).num_max_nvl_chunked_send_tokens == 36
    assert Buffer.get_combine_config(160).num_max_nvl_chunked_recv_tokens == 720


@pytest.mark.parametrize("ranks", [1, 3, 12, 161])
def test_other_numbers_of_ranks_have_no_tuned_configuration(ranks: int) -> None:
    for tuned in (Buffer.get_dispatch_config, Buffer.get_combine_config):
        with pytest.raises(AssertionError, match=f"Unsupported number of EP ranks: {ranks}"):
            tuned(ranks)


def test_odd_sms_are_refused() -> None:
    with pytest.raises(AssertionError, match="The SM count must be even"):
        Buffer.set_num_sms(21)
    assert Buffer.num_sms == 20


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-2,), "num_sms"),
        ((20, 0), "num_max_nvl_chunked_send_tokens"),
        ((20, 256, 256), "num_max_nvl_chunked_send_tokens"),
        ((20, 6, 256, 0), "num_max_rdma_chunked_send_tokens"),
        ((20, 6, 256, 128, 128), "num_max_rdma_chunked_send_tokens"),
    ],
)
def test_queues_that_hold_no_chunk_are_refused(arguments: tuple[int, ...], name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        Config(*arguments)


def test_sizes_between_nodes_need_whole_channels() -> None:
    assert Config(21).get_rdma_buffer_size_hint(14336, 8) == 0
    with pytest.raises(RuntimeError, match="num_sms must be even"):
        Config(21).get_rdma_buffer_size_hint(14336, 16)
