"""``Config``: how the high-throughput calls divide their work, and what memory that takes.

The sizes are those of DeepEP V1's kernels, so that a program that asks for them gets the numbers
it was tuned with.
"""

from __future__ import annotations

from ep_runtime.checks import require

RANKS_PER_NODE = 8
_MAX_TOPK = 128
_MAX_SCALES = 128
_ALIGNMENT = 128


def nodes_of(num_ranks: int) -> int:
    """How many nodes hold so many ranks, at eight to a node."""
    return -(-num_ranks // RANKS_PER_NODE)


class Config:
    """SMs and queue lengths (in tokens) of the high-throughput kernels.

    Half of the ``num_sms`` send and half receive: each pair is a channel. Raises RuntimeError for
    queues that could not hold one chunk.
    """

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        require(num_sms >= 0, f"num_sms must not be negative, got {num_sms}.")
        queues = {
            "num_max_nvl_chunked_send_tokens": num_max_nvl_chunked_send_tokens,
            "num_max_nvl_chunked_recv_tokens": num_max_nvl_chunked_recv_tokens,
            "num_max_rdma_chunked_send_tokens": num_max_rdma_chunked_send_tokens,
            "num_max_rdma_chunked_recv_tokens": num_max_rdma_chunked_recv_tokens,
        }
        for name, value in queues.items():
            require(value > 0, f"{name} must be positive, got {value}.")
        require(
            num_max_nvl_chunked_send_tokens < num_max_nvl_chunked_recv_tokens,
            "num_max_nvl_chunked_send_tokens must be less than num_max_nvl_chunked_recv_tokens = "
            f"{num_max_nvl_chunked_recv_tokens}, got {num_max_nvl_chunked_send_tokens}.",
        )
        chunks = -(-num_max_rdma_chunked_recv_tokens // num_max_rdma_chunked_send_tokens)
        require(
            chunks >= 2,
            "num_max_rdma_chunked_send_tokens must be at most half of "
            f"num_max_rdma_chunked_recv_tokens = {num_max_rdma_chunked_recv_tokens}, got "
            f"{num_max_rdma_chunked_send_tokens}.",
        )
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        # Whole chunks, so that none wraps around the end of the queue.
        self.num_max_rdma_chunked_recv_tokens = chunks * num_max_rdma_chunked_send_tokens

    @property
    def num_channels(self) -> int:
        """Channels that the tokens are divided among."""
        return self.num_sms // 2

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """``num_nvl_bytes`` for rows of ``hidden_bytes`` among ``num_ranks``.

        Raises RuntimeError for a row or a number of ranks that is not positive.
        """
        _check_hint(hidden_bytes, num_ranks)
        counters = (2 * nodes_of(num_ranks) + 3) * 4
        rows = self.num_max_nvl_chunked_recv_tokens * _row_bytes(hidden_bytes)
        per_node = min(num_ranks, RANKS_PER_NODE)
        return _aligned(self.num_channels * per_node * (counters + rows))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """``num_rdma_bytes``, as above; 0 for ranks of one node."""
        _check_hint(hidden_bytes, num_ranks)
        if num_ranks <= RANKS_PER_NODE:
            return 0
        require(self.num_sms % 2 == 0, f"num_sms must be even, got {self.num_sms}.")
        counters = (RANKS_PER_NODE * 2 + 2) * 2 * 4
        rows = self.num_max_rdma_chunked_recv_tokens * (_row_bytes(hidden_bytes) + 16) * 2
        return _aligned(self.num_channels * nodes_of(num_ranks) * (counters + rows))


def _check_hint(hidden_bytes: int, num_ranks: int) -> None:
    require(hidden_bytes > 0, f"hidden_bytes must be positive, got {hidden_bytes}.")
    require(num_ranks > 0, f"num_ranks must be positive, got {num_ranks}.")


def _row_bytes(hidden_bytes: int) -> int:
    """Count a token in a queue: its row, where it came from, room for any top-k and scales."""
    source = 8
    return hidden_bytes + source + _MAX_TOPK * 8 + _MAX_TOPK * 4 + _MAX_SCALES * 4


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


# Queue lengths by number of ranks, in Config's order: (of a dispatch, of a combine).
_TUNED = {
    2: ((24, 256, 6, 128), (10, 256, 6, 128)),
    4: ((6, 256, 6, 128), (9, 256, 6, 128)),
    8: ((6, 256, 6, 128), (4, 256, 6, 128)),
    16: ((36, 288, 20, 128), (4, 288, 12, 128)),
    24: ((32, 288, 8, 128), (1, 288, 8, 128)),
    32: ((32, 288, 8, 128), (1, 288, 8, 128)),
    48: ((32, 288, 8, 128), (1, 288, 8, 128)),
    64: ((32, 288, 8, 128), (1, 288, 8, 128)),
    96: ((20, 480, 12, 128), (1, 480, 8, 128)),
    128: ((20, 560, 12, 128), (1, 560, 8, 128)),
    144: ((32, 720, 12, 128), (2, 720, 8, 128)),
    160: ((28, 720, 12, 128), (2, 720, 8, 128)),
}


def dispatch_config(num_sms: int, num_ranks: int) -> Config:
    """Give the tuned configuration of a dispatch. AssertionError for other numbers of ranks."""
    assert num_ranks in _TUNED, f"Unsupported number of EP ranks: {num_ranks}"
    return Config(num_sms, *_TUNED[num_ranks][0])


def combine_config(num_sms: int, num_ranks: int) -> Config:
    """Give the tuned configuration of a combine. AssertionError for other numbers of ranks."""
    assert num_ranks in _TUNED, f"Unsupported number of EP ranks: {num_ranks}"
    return Config(num_sms, *_TUNED[num_ranks][1])
