"""Kernels and symmetric memory of the peer backend; built where nvcc was found."""

ARCHITECTURES: str
CUDA_VERSION: int

class Engine:
    """One buffer's device side. Addresses and streams are integers; 0 means "not given"."""

    num_sms: int
    num_bytes: int

    def address(self, rank: int) -> int: ...
    def start(self) -> None: ...
    def dispatch(
        self,
        x: int,
        topk_idx: int,
        recv_x: int,
        scales: int,
        recv_count: int,
        src_info: int,
        layout_range: int,
        cumulative_stats: int,
        wait_stats: int,
        op_epoch: int,
        num_tokens: int,
        num_topk: int,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        use_fp8: bool,
        round_scale: bool,
        use_ue8m0: bool,
        phases: int,
        timeout_us: int,
        num_sms: int,
        stream: int,
        /,
    ) -> None: ...
    def combine(
        self,
        x: int,
        x_row_bytes: int,
        src_info: int,
        layout_range: int,
        topk_idx: int,
        topk_weights: int,
        out: int,
        wait_stats: int,
        op_epoch: int,
        num_tokens: int,
        num_topk: int,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        use_logfmt: bool,
        phases: int,
        timeout_us: int,
        num_sms: int,
        stream: int,
        /,
    ) -> None: ...
    def clean(
        self,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        timeout_us: int,
        stream: int,
        /,
    ) -> None: ...
    def set_mask(self, rank: int, masked: bool, stream: int, /) -> None: ...
    def copy_mask(self, out: int, stream: int, /) -> None: ...
    def clear_mask(self, stream: int, /) -> None: ...
    def take_problem(self) -> tuple[int, int, int, int, int, int] | None: ...
    def destroy(self) -> None: ...

class PeerEngine(Engine):
    """An engine over memory that is mapped between the processes of one host."""

    def __init__(
        self, device: int, num_bytes: int, rank: int, num_ranks: int, enable_shrink: bool
    ) -> None: ...
    def export_descriptor(self) -> int: ...
    def import_descriptor(self, peer: int, descriptor: int) -> None: ...
