"""What NVSHMEM says of itself: which NIC handler runs, and why it did not start.

No interface tells these; its log does. Its plugins write theirs to the standard streams, at a level
that also fills them with every step of the bootstrap, so the streams are taken while NVSHMEM talks.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# In the order in which NVSHMEM tries them.
_HANDLERS = (
    (r"NIC handler will be GPU\b", "gpu"),
    (
        r"NIC handler will be CPU with (gdrcopy|the selected GPU CPU mapping) backend",
        "cpu-gdrcopy",
    ),
    (r"NIC handler will be CPU with host memory backend", "cpu-host-memory"),
    (r"NIC handler will be CPU\b", "cpu-gdrcopy"),
)
_EXPLANATIONS = (
    (
        r"out of memory|cuMemCreate.*failed|CUDA_ERROR_OUT_OF_MEMORY",
        "the GPU has no memory left for NVSHMEM's heap: free some, or ask for fewer bytes",
    ),
    (
        r"transport\. nvshmem_transport_\w+\.so\S*: cannot open shared object",
        "a transport plugin is missing beside NVSHMEM's library: install all of NVSHMEM again, or "
        "put the folder of its plugins on LD_LIBRARY_PATH",
    ),
    (
        r"libmlx5\.so|libibverbs\.so",
        "the RDMA libraries are missing: install rdma-core (libibverbs1, ibverbs-providers)",
    ),
    (
        r"ibv_reg_mr|mem registration failed|dmabuf|nvidia[-_]peermem",
        "the NIC can't register GPU memory: load nvidia_peermem, or use the open kernel modules "
        "with a kernel of 5.12 or newer for DMA-BUF",
    ),
    (
        r"init failed for transport: IBGDA|Unable to initialize any transports|detect topo failed",
        "no RDMA transport could start: check the driver options for IBGDA, the NICs "
        "(NVSHMEM_HCA_LIST) and their permissions",
    ),
    (
        r"[Vv]ersion.*(mismatch|not compatible|incompatible)",
        "the NVSHMEM libraries are of different versions: keep one installation",
    ),
    (
        r"bootstrap.*(failed|error)|socket.*(failed|refused|timed out)",
        "the ranks did not meet: name an interface that all hosts share in "
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
    ),
)


# Lines of NVSHMEM and its plugins; others belong to the program and are passed on.
_NVSHMEMS_OWN = re.compile(r"nvshmem|NVSHMEM|GDRCopy|^\s*$|nranks \d+|- (ENTER|DONE)")


class StartLog:
    """All that NVSHMEM has said in this process so far."""

    def __init__(self) -> None:
        self.text = ""

    @property
    def nic_handler(self) -> str | None:
        """One of "gpu", "cpu-gdrcopy", "cpu-host-memory"; None: the log names none."""
        for pattern, name in _HANDLERS:
            if re.search(pattern, self.text):
                return name
        return None

    @property
    def devices(self) -> list[str]:
        """RDMA devices that the log names, such as ["mlx5_0"]."""
        return sorted(set(re.findall(r"\bmlx5_\w+", self.text)))

    def explain(self) -> str:
        """Say what went wrong and what to do, from the first line that tells; "" if none does."""
        for pattern, meaning in _EXPLANATIONS:
            match = re.search(rf"^.*(?:{pattern}).*$", self.text, re.MULTILINE)
            if match:
                return f"{meaning} (NVSHMEM: {match[0].strip()[:200]})"
        return ""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep what NVSHMEM says inside the block.

        The user sees it too where NVSHMEM_DEBUG is set; what others print meanwhile comes after.
        """
        users = bool(os.environ.get("NVSHMEM_DEBUG"))
        if not users:
            os.environ["NVSHMEM_DEBUG"] = "INFO"
        try:
            with _taken_streams() as said:
                yield
        finally:
            if not users:
                del os.environ["NVSHMEM_DEBUG"]
            for number, text in enumerate(said, start=1):
                self.text += text
                for line in text.splitlines(keepends=True):
                    if users or not _NVSHMEMS_OWN.search(line):
                        os.write(number, line.encode(errors="replace"))


@contextmanager
def _taken_streams() -> Iterator[list[str]]:
    """Send the file descriptors 1 and 2 elsewhere; the list holds what was written in the end."""
    said: list[str] = []
    _flush()
    kept = [os.dup(number) for number in (1, 2)]
    sinks = [tempfile.TemporaryFile() for _ in kept]  # noqa: SIM115 - closed below
    try:
        for number, sink in enumerate(sinks, start=1):
            os.dup2(sink.fileno(), number)
        yield said
    finally:
        _flush()
        for number, (original, sink) in enumerate(zip(kept, sinks), start=1):
            os.dup2(original, number)
            os.close(original)
            with sink:
                sink.seek(0)
                said.append(sink.read().decode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
