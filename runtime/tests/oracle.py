"""What every rank must get, computed in one process from all ranks' inputs, row by row in numpy.

Written from the definition of the operations; nothing here uses ep_runtime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

GROUP = 128


@dataclass(frozen=True)
class Shape:
    size: int
    hidden: int
    topk: int
    experts: int
    max_tokens: int
    tokens: tuple[int, ...]  # of each rank
    routing: str = "random"

    @property
    def local(self) -> int:
        return self.experts // self.size

    def __str__(self) -> str:
        return (
            f"r{self.size}-h{self.hidden}-k{self.topk}-e{self.experts}-m{self.max_tokens}"
            f"-t{'_'.join(map(str, self.tokens))}-{self.routing}"
        )


@dataclass(frozen=True)
class Inputs:
    """Of one rank: BF16 values as float32 [T, H], indices int64 and weights float32 [T, K]."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 or float64 to BF16, nearest even; the result is float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def make_inputs(shape: Shape, seed: int, rank: int) -> Inputs:
    draw = np.random.default_rng([seed, rank])
    tokens = shape.tokens[rank]
    x = draw.normal(size=(tokens, shape.hidden)) * np.exp2(draw.integers(-6, 4, size=(tokens, 1)))
    if tokens > 1:
        x[0] = 0  # a row of nothing, and one beyond the range of FP8
        x[1, :: shape.hidden // 8] *= 1e4
    topk_idx = np.full((tokens, shape.topk), -1, dtype=np.int64)
    for token in range(tokens):
        if shape.routing == "one_expert":
            topk_idx[token, -1] = shape.experts - 1
        elif shape.routing == "duplicates":
            # Each expert at most twice in all, so that no expert gets more than max_tokens rows.
            topk_idx[token, :2] = (token + rank) % shape.experts
        elif shape.routing == "random":
            choices = draw.permutation(shape.experts)[: shape.topk]
            topk_idx[token, : choices.size] = choices
            topk_idx[token, draw.random(shape.topk) < 0.2] = -1
    weights = draw.random((tokens, shape.topk)).astype(np.float32)
    return Inputs(to_bf16(x), topk_idx, weights)


def e4m3_values() -> np.ndarray:
    """Value of each FP8 code 0 .. 126 (positive, finite), in rising order."""
    values = []
    for code in range(0x7F):
        exponent, mantissa = code >> 3, code & 7
        if exponent == 0:
            values.append(mantissa * 2.0**-9)
        else:
            values.append((1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.array(values)


_E4M3 = e4m3_values()


def to_e4m3(values: np.ndarray) -> np.ndarray:
    """FP8 codes of float32 values, nearest even, saturating; NaN is 0x7f."""
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    above = np.clip(np.searchsorted(_E4M3, magnitude), 1, 126)
    below = above - 1
    low, high = magnitude - _E4M3[below], _E4M3[above] - magnitude
    up = (high < low) | ((high == low) & (above % 2 == 0))
    codes = np.where(up, above, below).astype(np.uint8)
    codes |= (np.signbit(values).astype(np.uint8)) << 7
    return np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)


def power_of_two_at_least(value: float) -> float:
    if math.isinf(value):
        return value
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def quantize_group(values: np.ndarray, round_scale: bool) -> tuple[np.ndarray, np.float32]:
    """FP8 codes [128] and inverse scale of one group of values.

    NaN has no part in the scale. An infinity makes it infinite: its own code is NaN, others zero.
    """
    amax = np.maximum(np.fmax.reduce(np.abs(values), initial=0), np.float32(1e-4))
    inverse = amax / np.float32(448)
    if round_scale:
        inverse = np.float32(power_of_two_at_least(float(inverse)))
        scale = np.float32(1) / inverse
    else:
        scale = np.float32(448) / amax
    return to_e4m3(values * scale), inverse


@dataclass(frozen=True)
class Row:
    """A row that an expert gets. ``data`` holds FP8 codes, or BF16 values as float32."""

    source: int
    token: int
    place: int
    data: np.ndarray
    scales: np.ndarray | None


def expected_rows(
    shape: Shape, inputs: list[Inputs], rank: int, fp8: bool, round_scale: bool
) -> list[list[Row]]:
    """Rows of each local expert of ``rank``, in order."""
    experts: list[list[Row]] = [[] for _ in range(shape.local)]
    for source, given in enumerate(inputs):
        for token, choices in enumerate(given.topk_idx):
            data, scales = given.x[token], None
            if fp8:
                groups = [quantize_group(g, round_scale) for g in data.reshape(-1, GROUP)]
                data = np.concatenate([codes for codes, _ in groups])
                scales = np.array([inverse for _, inverse in groups], dtype=np.float32)
            for place, expert in enumerate(choices):
                if expert >= 0 and expert // shape.local == rank:
                    row = Row(source, token, place, data, scales)
                    experts[expert % shape.local].append(row)
    return experts


def expert_gain(expert: int) -> float:
    """What an expert multiplies its rows with; exact in BF16."""
    return 0.25 + (expert % 7) * 0.125


def expert_answer(row: np.ndarray, expert: int, place: int) -> np.ndarray:
    """An expert's answer in BF16 to a row that came from top-k place ``place``.

    It depends on the place, so that mixed up duplicates show.
    """
    return to_bf16(row * np.float32(expert_gain(expert)) + np.float32(place * 0.5))


def expected_combine(
    shape: Shape, given: Inputs, masked: tuple[int, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The exact weighted sums in float64 [T, H], and the sums of the terms' magnitudes."""
    total = np.zeros(given.x.shape)
    magnitude = np.zeros(given.x.shape)
    for token, choices in enumerate(given.topk_idx):
        for place, expert in enumerate(choices):
            if expert < 0 or expert // shape.local in masked:
                continue
            answer = expert_answer(given.x[token], int(expert), place).astype(np.float64)
            term = answer * float(given.topk_weights[token, place])
            total[token] += term
            magnitude[token] += np.abs(term)
    return total, magnitude
