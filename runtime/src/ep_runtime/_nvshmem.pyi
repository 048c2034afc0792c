"""Kernels over NVSHMEM; built where nvcc and NVSHMEM were found, loadable once the library is."""

from ep_runtime._cuda import Engine

ARCHITECTURES: str
CUDA_VERSION: int
COMPILED_VERSION: tuple[int, int, int]
EXPLICIT_QUEUE_PAIRS: bool

def loaded_version() -> tuple[int, int, int]: ...
def unique_id() -> bytes: ...
def join(unique_id: bytes, rank: int, num_ranks: int, device: int, /) -> None: ...
def allocate(num_bytes: int, /) -> int: ...
def zero(address: int, num_bytes: int, /) -> None: ...
def free(address: int, /) -> None: ...
def mapped(address: int, rank: int, /) -> int: ...
def create_queue_pairs(count: int, /) -> list[int]: ...

class NvshmemEngine(Engine):
    """An engine over blocks of NVSHMEM's symmetric memory, which stay the caller's."""

    def __init__(
        self,
        address: int,
        num_bytes: int,
        mirror: int,
        queue_pairs: list[int],
        only_puts: bool,
        break_order: bool,
        device: int,
        rank: int,
        num_ranks: int,
        enable_shrink: bool,
    ) -> None: ...
