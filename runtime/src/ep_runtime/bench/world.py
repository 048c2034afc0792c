"""Which rank this process is, as torchrun's variables say.

``WORLD_SIZE`` counts processes, not hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ep_runtime.bench.options import OptionError

HOST_VARIABLE = "EP_BENCH_HOST"


@dataclass(frozen=True)
class World:
    """A process's place among all ranks. ``launched`` is False without torchrun."""

    rank: int
    size: int
    local_rank: int
    host: str
    launched: bool

    @property
    def name(self) -> str:
        """How messages name this process."""
        return f"rank {self.rank} on {self.host}"


def _integer(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be an integer, not {text!r}.") from None


def world_from(environment: Mapping[str, str]) -> World:
    """Read torchrun's variables; none of them at all means a world of one process.

    Raises ``OptionError`` naming the variable that is missing or out of range.
    """
    host = environment.get(HOST_VARIABLE) or socket.gethostname()
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return World(rank=0, size=1, local_rank=0, host=host, launched=False)
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise OptionError(
            f"{missing[0]} is not set although the environment looks like torchrun's; "
            f"all of {', '.join(needed)} are needed."
        )
    rank, size = _integer(environment, "RANK"), _integer(environment, "WORLD_SIZE")
    if not 0 <= rank < size:
        raise OptionError(f"RANK must be between 0 and WORLD_SIZE - 1 = {size - 1}, not {rank}.")
    local_rank = _integer(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
    return World(rank=rank, size=size, local_rank=local_rank, host=host, launched=True)
