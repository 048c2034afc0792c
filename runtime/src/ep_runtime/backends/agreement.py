"""A backend comes to be on all ranks or on none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ep_runtime.errors import EPError
from ep_runtime.gather import PHASE

if TYPE_CHECKING:
    from ep_runtime.group import RankGroup


def raise_together(ranks: RankGroup, could_not: str, problem: str | None) -> None:
    """Raise EPError on all ranks when one has a problem, so that none waits for it. Collective.

    ``could_not`` is what it then could not do, such as "use NVSHMEM"; the same on all ranks.
    """
    for rank, text in enumerate(ranks.gather(problem, f"chance to {could_not}")):
        if text is not None:
            raise EPError(
                f"rank {rank} could not {could_not}: {text}",
                rank=ranks.rank,
                peer=rank,
                phase=PHASE,
            )
