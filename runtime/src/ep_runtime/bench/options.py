"""What a run is asked to do, and the refusal of what cannot be done.

Everything here is checked before a process group exists: a rank that stops later leaves its
peers waiting for it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ep_runtime.bench import patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = ("fp8", "bf16")
COMBINE_DTYPES = ("bf16", "logfmt")
BACKENDS = ("auto", "reference", "peer", "nvshmem")

SWEPT = ("num_tokens", "hidden", "num_experts", "num_topk")
Sweep = tuple[tuple[str, tuple[int, ...]], ...]

HIDDEN_MULTIPLE = 128  # channels that share one FP8 scale
MAX_TOPK = 32


class OptionError(ValueError):
    """An option or environment variable that cannot be honoured; the text names it."""


@dataclass(frozen=True)
class Parameters:
    """The size and shape of one low-latency benchmark; the same on every rank.

    ``num_tokens`` is per rank, and is also the ``num_max_dispatch_tokens_per_rank`` of the
    buffer. ``timeout_s`` bounds the whole run in seconds. ``routing`` is a pattern as
    ``patterns.parse`` reads it. ``iters`` and ``warmup`` are the least there will be; rounds are
    added until the p99 is known ``p99_within`` percent, unless that is 0. ``full``: measure the
    other kinds of time and compare with torch's all_to_all. ``sweep``: fields, and values that
    each takes one after another while the others stay.
    """

    num_tokens: int
    hidden: int
    num_experts: int
    num_topk: int
    dtype: str
    iters: int
    warmup: int
    seed: int
    backend: str
    timeout_s: float
    pairwise: int = 0
    combine_dtype: str = "bf16"
    routing: str = "uniform"
    p99_within: float = 0.0
    full: bool = False
    sweep: Sweep = ()

    @property
    def use_fp8(self) -> bool:
        """Whether tokens travel as FP8 with one scale per 128 channels."""
        return self.dtype == "fp8"

    @property
    def use_logfmt(self) -> bool:
        """Whether expert outputs travel in 10 bits a channel where their values allow it."""
        return self.combine_dtype == "logfmt"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON and for comparison between ranks."""
        return {**asdict(self), "sweep": {name: list(values) for name, values in self.sweep}}

    def points(self) -> list[tuple[str, Parameters]]:
        """Give what the sweep runs, in order, with the field that is swept."""
        alone = replace(self, sweep=(), full=False, p99_within=0.0)
        found = []
        for name, values in self.sweep:
            for value in values:
                change: dict[str, Any] = {name: value}
                found.append((name, replace(alone, **change)))
        return found


def check(parameters: Parameters, world_size: int) -> None:
    """Raise ``OptionError`` for the first parameter that no run of ``world_size`` can have."""
    p = parameters
    rules = (
        (p.num_tokens >= 1, f"--num-tokens must be at least 1, not {p.num_tokens}"),
        (
            p.hidden >= HIDDEN_MULTIPLE and p.hidden % HIDDEN_MULTIPLE == 0,
            f"--hidden must be a positive multiple of {HIDDEN_MULTIPLE}, not {p.hidden}",
        ),
        (p.num_experts >= 1, f"--num-experts must be at least 1, not {p.num_experts}"),
        (
            p.num_experts % world_size == 0,
            f"--num-experts must be divisible by the number of ranks, "
            f"and {p.num_experts} is not by {world_size}",
        ),
        (
            1 <= p.num_topk <= MAX_TOPK,
            f"--num-topk must be between 1 and {MAX_TOPK}, not {p.num_topk}",
        ),
        (
            p.num_topk <= p.num_experts,
            f"--num-topk must not exceed --num-experts, "
            f"and {p.num_topk} is more than {p.num_experts}",
        ),
        (p.dtype in DTYPES, f"--dtype must be one of {', '.join(DTYPES)}, not {p.dtype}"),
        (
            p.combine_dtype in COMBINE_DTYPES,
            f"--combine-dtype must be one of {', '.join(COMBINE_DTYPES)}, not {p.combine_dtype}",
        ),
        (
            p.backend in BACKENDS,
            f"--backend must be one of {', '.join(BACKENDS)}, not {p.backend}",
        ),
        (p.iters >= 1, f"--iters must be at least 1, not {p.iters}"),
        (p.pairwise >= 0, f"--pairwise must not be negative, and {p.pairwise} is"),
        (p.warmup >= 0, f"--warmup must not be negative, and {p.warmup} is"),
        (p.seed >= 0, f"--seed must not be negative, and {p.seed} is"),
        (p.p99_within >= 0, f"--p99-within must not be negative, and {p.p99_within:g} is"),
        (p.timeout_s > 0, f"--timeout must be more than 0 seconds, not {p.timeout_s:g}"),
    )
    for holds, sentence in rules:
        if not holds:
            raise OptionError(f"{sentence}.")
    try:
        shape = patterns.Shape(p.num_tokens, p.num_experts, p.num_topk)
        patterns.parse(p.routing).draw(shape, 0, p.seed)
    except patterns.PatternError as error:
        raise OptionError(f"--routing: {error}.") from None
    for name, point in p.points():
        try:
            check(point, world_size)
        except OptionError as error:
            option = name.replace("_", "-")
            raise OptionError(f"--sweep {option}={getattr(point, name)}: {error}") from None


def read_sweep(texts: Sequence[str]) -> Sweep:
    """Read axes as the command line has them, ``num-tokens=1,8,64``.

    Raises ``OptionError`` naming the one that is none.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        field = name.replace("-", "_")
        try:
            if field not in SWEPT or field in axes:
                raise ValueError(name)
            axes[field] = tuple(sorted({int(value) for value in values.split(",")}))
        except ValueError:
            names = ", ".join(known.replace("_", "-") for known in SWEPT)
            raise OptionError(
                f"--sweep must be NAME=N,N,... with a NAME of its own out of {names}, not {text!r}."
            ) from None
    return tuple(axes.items())
