"""Which experts tokens select: made distributions, or a file of what a model selected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ep_runtime.errors import first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Selections = NDArray[np.int64]

FORMS = "uniform, zipf=EXPONENT, hot=SHARE, group-limited=GROUPS/CHOSEN or replay=FILE"

# Streams of random numbers beside the one of a rank's tokens.
_OF_SELECTIONS = 1
_OF_POPULARITY = 2
# How DeepSeek-V3 scores a group of experts.
_BEST_OF_GROUP = 2


class PatternError(ValueError):
    """A routing that cannot be drawn; the text says why."""


@dataclass(frozen=True)
class Shape:
    """T tokens of one rank, each of which selects K of E experts."""

    num_tokens: int
    num_experts: int
    num_topk: int


class Pattern(Protocol):
    """What draws the experts of a rank's tokens."""

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give distinct experts for each token, int64 [T, K]; -1 is none.

        Raises ``PatternError`` for a shape that this pattern does not have.
        """


class Uniform:
    """Every set of K experts is as likely as any other."""

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give distinct experts for each token, int64 [T, K]."""
        return _best(_scores(shape, rank, seed), shape.num_topk)


@dataclass(frozen=True)
class Zipf:
    """The n-th most popular expert has weight n ** -exponent; which one that is, the seed says."""

    exponent: float = 1.0

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give distinct experts for each token, int64 [T, K]: drawn by weight, none twice."""
        order = np.random.default_rng([seed, 0, _OF_POPULARITY]).permutation(shape.num_experts)
        weights = np.empty(shape.num_experts)
        weights[order] = np.arange(1, shape.num_experts + 1) ** -self.exponent
        # The K least of exponential times over weights are such a draw (Efraimidis, Spirakis).
        uniform = 1.0 - _scores(shape, rank, seed)
        return _best(np.log(uniform) / weights, shape.num_topk)


@dataclass(frozen=True)
class Hot:
    """A share of the tokens selects one and the same expert; all else is uniform."""

    share: float = 1.0

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give distinct experts for each token, int64 [T, K]."""
        popularity = np.random.default_rng([seed, 0, _OF_POPULARITY])
        expert = popularity.integers(shape.num_experts)
        scores = _scores(shape, rank, seed)
        chosen = np.random.default_rng([seed, rank, _OF_POPULARITY]).random(shape.num_tokens)
        scores[:, expert] = np.where(chosen < self.share, 2.0, -1.0)
        return _best(scores, shape.num_topk)


@dataclass(frozen=True)
class GroupLimited:
    """DeepSeek-V3's gate: only experts of the best ``chosen`` of ``groups`` groups are selected.

    A group is as good as the sum of its two best scores.
    """

    groups: int = 8
    chosen: int = 4

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give distinct experts for each token, int64 [T, K].

        Raises ``PatternError`` where the groups don't fit the experts.
        """
        if shape.num_experts % self.groups != 0:
            raise PatternError(
                f"{shape.num_experts} experts are not divisible into {self.groups} groups"
            )
        size = shape.num_experts // self.groups
        if shape.num_topk > self.chosen * size:
            raise PatternError(
                f"{self.chosen} groups of {size} experts hold less than top-{shape.num_topk}"
            )
        scores = _scores(shape, rank, seed).reshape(shape.num_tokens, self.groups, size)
        best = np.sort(scores, axis=2)[:, :, -_BEST_OF_GROUP:].sum(axis=2)
        allowed = np.zeros((shape.num_tokens, self.groups), dtype=bool)
        np.put_along_axis(allowed, _best(best, self.chosen), True, axis=1)
        masked = np.where(allowed[:, :, None], scores, -1.0)
        return _best(masked.reshape(shape.num_tokens, -1), shape.num_topk)


@dataclass(frozen=True)
class Replay:
    """Rows of a file: those of all ranks one after another, from its start again at its end."""

    path: str

    def draw(self, shape: Shape, rank: int, seed: int) -> Selections:
        """Give the experts of each token, int64 [T, K], -1 for none.

        Raises ``PatternError`` for a file that cannot be read or does not fit the shape.
        """
        rows, _ = _file(self.path)
        if rows.shape[1] != shape.num_topk:
            raise PatternError(
                f"{self.path} has {rows.shape[1]} experts a token, not {shape.num_topk}"
            )
        wrong = (rows < -1) | (rows >= shape.num_experts)
        if wrong.any():
            row, place = np.argwhere(wrong)[0]
            raise PatternError(
                f"{self.path} has expert {rows[row, place]} in row {row}, and there are "
                f"{shape.num_experts}"
            )
        first = rank * shape.num_tokens
        return rows[np.arange(first, first + shape.num_tokens) % len(rows)]


def _scores(shape: Shape, rank: int, seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng([seed, rank, _OF_SELECTIONS])
    return generator.random((shape.num_tokens, shape.num_experts))


def _best(scores: NDArray[np.float64], count: int) -> Selections:
    """Give the indices of the highest ``count`` scores of each row, best first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int64)


@lru_cache(maxsize=1)
def _file(path: str) -> tuple[Selections, str]:
    """Read the rows [N, K] of a .npy file, or of a tensor in a .pt file, and their digest."""
    try:
        if Path(path).suffix == ".npy":
            loaded = np.load(path, allow_pickle=False)
        else:
            import torch  # noqa: PLC0415 - slow, and not needed for most runs

            loaded = torch.load(path, map_location="cpu", weights_only=True).numpy()
    except OSError as error:
        raise PatternError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        # Readers of other people's bytes raise whatever they stumble over.
        raise PatternError(
            f"{path} is neither a .npy array nor a tensor that torch.save wrote: "
            f"{first_line(error)}"
        ) from None
    if not np.issubdtype(loaded.dtype, np.integer) or loaded.ndim < 2 or loaded.size == 0:
        raise PatternError(
            f"{path} must hold integers [..., top-k], not {loaded.dtype} {list(loaded.shape)}"
        )
    rows = np.ascontiguousarray(loaded.reshape(-1, loaded.shape[-1]), dtype=np.int64)
    ordered = np.sort(rows, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise PatternError(f"{path} selects an expert twice in row {int(twice.argmax())}")
    return rows, hashlib.sha256(rows.tobytes()).hexdigest()


def digest(text: str) -> str:
    """Give what ranks must share beside the pattern itself: its file's content, as SHA-256."""
    pattern = parse(text)
    return _file(pattern.path)[1] if isinstance(pattern, Replay) else ""


def parse(text: str) -> Pattern:
    """Read a pattern as it is written on the command line.

    Raises ``PatternError`` in one sentence.
    """
    name, _, value = text.partition("=")
    try:
        return _READERS[name](value)
    except (KeyError, ValueError):
        raise PatternError(f"must be {FORMS}, not {text!r}") from None


def _positive(value: str, most: float = float("inf")) -> float:
    number = float(value)
    if not 0 < number <= most:
        raise ValueError(value)
    return number


def _uniform(value: str) -> Uniform:
    if value:
        raise ValueError(value)
    return Uniform()


def _group_limited(value: str) -> GroupLimited:
    if not value:
        return GroupLimited()
    groups, chosen = (int(part) for part in value.split("/"))
    if not 1 <= chosen <= groups:
        raise ValueError(value)
    return GroupLimited(groups, chosen)


def _replay(value: str) -> Replay:
    if not value:
        raise ValueError(value)
    return Replay(value)


_READERS: dict[str, Callable[[str], Pattern]] = {
    "uniform": _uniform,
    "zipf": lambda value: Zipf(_positive(value)) if value else Zipf(),
    "hot": lambda value: Hot(_positive(value, most=1.0)) if value else Hot(),
    "group-limited": _group_limited,
    "replay": _replay,
}
