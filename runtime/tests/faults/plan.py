"""What a round does: which fault, in which rank, at which point."""

from __future__ import annotations

from dataclasses import dataclass

# The steps of a round, in order. A fault strikes just before one of them, or within it.
STEPS = (
    "create",
    "dispatch send",
    "dispatch receive",
    "combine send",
    "combine receive",
    "clean",
    "destroy",
)
SENDS = ("dispatch send", "combine send", "clean")

# All ranks must be right, as without any.
HARMLESS = ("none", "delay", "duplicate")
# The rank's process ends; with a restart another one comes in its place.
KILLS = ("kill", "restart")


@dataclass(frozen=True)
class Plan:
    """One round. ``within`` a step: in the middle of its messages."""

    fault: str
    step: str
    victim: int
    size: int = 3
    shrink: bool = False
    hooks: bool = True
    within: bool = False
    seed: int = 0
    timeout_s: float = 3.0
    backend: str = "reference"

    @property
    def slow(self) -> int:
        """The rank whose clock is slow, in a round with that fault."""
        return (self.victim + 1) % self.size

    def __str__(self) -> str:
        place = "within" if self.within else "before"
        mode = "shrink" if self.shrink else "raise"
        hooks = "hooks" if self.hooks else "fused"
        return f"{self.fault}-{place}-{self.step}-{mode}-{hooks}-rank{self.victim}".replace(
            " ", "_"
        )


def kinds_of(backend: str) -> list[tuple[str, str, bool]]:
    """Every (fault, step, within) that a backend can be given.

    Only the reference backend has messages; those of the others are stores of a GPU, which no
    test can hold back one by one.
    """
    kinds = [(fault, step, False) for fault in ("kill", "stop", "late", "delay") for step in STEPS]
    kinds += [("restart", step, False) for step in STEPS[1:-1]]
    if backend == "reference":
        kinds += [(fault, step, True) for fault in ("kill", "stop") for step in ("create", *SENDS)]
        kinds += [("slow clock", step, False) for step in STEPS[1:-1]]
        kinds += [
            (fault, step, False) for fault in ("silence", "drop", "duplicate") for step in SENDS
        ]
        kinds += [("corrupt head", step, False) for step in SENDS]
        kinds += [("corrupt rows", step, False) for step in SENDS[:2]]
    return kinds
