"""Which rank this process is, as the variables of its launcher say: torchrun, srun or mpirun.

``WORLD_SIZE`` counts processes, not hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ep_runtime.bench.options import OptionError

HOST_VARIABLE = "EP_BENCH_HOST"
# NAME=OWN,...: the hosts' names in results and the names that they have themselves, in rank order.
# For launchers that give all ranks the same variables.
HOSTS_VARIABLE = "EP_BENCH_HOSTS"

_MEETING = ("MASTER_ADDR", "MASTER_PORT")
# Rank, number of ranks, and rank on the host, by launcher. A batch script of Slurm has SLURM_PROCID
# as well, so the others than torchrun's count only where it is also said where the ranks meet.
_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


@dataclass(frozen=True)
class World:
    """A process's place among all ranks. ``launched`` is False without a launcher."""

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


def _launcher(environment: Mapping[str, str]) -> str:
    """Name the launcher whose variables are there; "" without any."""
    if "RANK" in environment or "WORLD_SIZE" in environment:
        return "torchrun"
    if all(environment.get(name) for name in _MEETING):
        for launcher, (rank, size, _) in _VARIABLES.items():
            if rank in environment and size in environment:
                return launcher
    return ""


def world_from(environment: Mapping[str, str]) -> World:
    """Read the launcher's variables; none of them at all means a world of one process.

    Raises ``OptionError`` naming the variable that is missing or out of range.
    """
    launcher = _launcher(environment)
    if not launcher:
        return World(rank=0, size=1, local_rank=0, host=_host(environment, 0, 1), launched=False)
    rank_name, size_name, local_name = _VARIABLES[launcher]
    needed = (rank_name, size_name, *_MEETING)
    missing = [name for name in needed if not environment.get(name)]
    if missing:
        raise OptionError(
            f"{missing[0]} is not set although the environment looks like {launcher}'s; "
            f"all of {', '.join(needed)} are needed."
        )
    rank, size = _integer(environment, rank_name), _integer(environment, size_name)
    if not 0 <= rank < size:
        raise OptionError(
            f"{rank_name} must be between 0 and {size_name} - 1 = {size - 1}, not {rank}."
        )
    local_rank = _integer(environment, local_name) if local_name in environment else rank
    host = _host(environment, rank, size)
    return World(rank=rank, size=size, local_rank=local_rank, host=host, launched=True)


def _host(environment: Mapping[str, str], rank: int, size: int) -> str:
    """Name this host: as it was told, else as the list of all hosts has it, else by itself."""
    own = socket.gethostname()
    told = environment.get(HOST_VARIABLE)
    if told:
        return told
    listed = [item.partition("=") for item in environment.get(HOSTS_VARIABLE, "").split(",")]
    mine = [name for name, _, known in listed if known and known == own]
    # Hosts of one name (several in one machine) are told apart by their order.
    in_order = listed[rank * len(listed) // size]
    if len(mine) > 1 and in_order[2] == own:
        return in_order[0]
    return mine[0] if mine else own
