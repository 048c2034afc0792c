"""Number formats of dispatch and combine, in plain torch: the bits every backend must give.

FP8 rows carry one scale per 128 channels (a group). LogFMT-10 rows carry a sign and a 9-bit
logarithm per channel, between the least and the greatest magnitude of their group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 128
FP8_MAX = 448.0
AMAX_FLOOR = 1e-4
LOGFMT_CODES = 511  # 1 .. 511 are magnitudes, 0 is zero
LOGFMT_OCTAVES = 32.0  # magnitudes below amax * 2**-32 are not told apart
_FP8_NAN = 0x7F


def _in_groups(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // GROUP, GROUP)


def _grouped(rows: torch.Tensor) -> torch.Tensor:
    if rows.shape[-1] % GROUP != 0:
        raise ValueError(f"hidden must be a multiple of {GROUP}, got {rows.shape[-1]}.")
    return _in_groups(rows.to(torch.float32))


def _power_of_two_at_least(values: torch.Tensor) -> torch.Tensor:
    """Biased exponent (int32) of the least power of two >= each positive normal float32."""
    bits = values.view(torch.int32)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def quantize_fp8(
    rows: torch.Tensor, round_scale: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cast ``rows`` [..., H] to FP8 with one scale per 128 channels.

    Returns ``(data, inverse)``: float8_e4m3fn [..., H] and float32 [..., H/128], so that
    ``data * inverse`` approximates ``rows``. Per group ``amax`` (NaN ignored, at least 1e-4) gives
    ``scale = 448 / amax`` and ``inverse = amax / 448``; with ``round_scale`` ``inverse`` is rounded
    up to a power of two and ``scale`` is its reciprocal. ``x * scale`` is clamped to +-448, then
    rounded to nearest even; every NaN becomes 0x7f. Raises ValueError unless 128 divides H.
    """
    values = _grouped(rows)
    amax = values.abs().nan_to_num(nan=0.0, posinf=float("inf")).amax(-1, keepdim=True)
    amax = amax.clamp_min(AMAX_FLOOR)
    inverse = amax / FP8_MAX
    if round_scale:
        exponent = _power_of_two_at_least(inverse)
        inverse = (exponent << 23).view(torch.float32)
        # An infinite amax has exponent 255: like the unrounded scale, its reciprocal is zero.
        scale = ((254 - exponent).clamp_min(0) << 23).view(torch.float32)
    else:
        # Not `FP8_MAX / amax`: torch turns that into a reciprocal and a product, two roundings.
        scale = torch.full_like(amax, FP8_MAX) / amax
    scaled = (values * scale).clamp(-FP8_MAX, FP8_MAX)
    data = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    data = data.masked_fill(scaled.isnan(), _FP8_NAN).view(torch.float8_e4m3fn)
    return data.flatten(-2), inverse.squeeze(-1)


def pack_ue8m0(inverse: torch.Tensor) -> torch.Tensor:
    """Exponent bytes of power-of-two scales float32 [..., G], four to an int32: [..., G/4].

    Byte ``e`` of word ``p`` belongs to group ``4 * p + e``. Raises ValueError unless 4 divides G.
    """
    if inverse.shape[-1] % 4 != 0:
        raise ValueError(f"UE8M0 packs 4 scales at a time, got {inverse.shape[-1]} of them.")
    exponent = (inverse.contiguous().view(torch.int32) >> 23).to(torch.uint8)
    return exponent.contiguous().view(torch.int32)


def unpack_ue8m0(words: torch.Tensor) -> torch.Tensor:
    """Unpack float32 scales [..., 4 * G] from what ``pack_ue8m0`` gave, int32 [..., G]."""
    exponent = words.contiguous().view(torch.uint8).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def dequantize_fp8(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [..., H] from FP8 ``data`` [..., H] and its float32 or UE8M0 int32 ``scales``."""
    inverse = unpack_ue8m0(scales) if scales.dtype == torch.int32 else scales
    return (_grouped(data) * inverse.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True)
class LogfmtRows:
    """Rows in LogFMT-10, G = H/128 groups of 128 channels, each encoded or not by itself.

    ``words`` int16 [N, G, 128]: in an encoded group ``sign << 9 | code``, else the BF16 bits;
    ``extremes`` bfloat16 [N, G, 2]: greatest and least magnitude of the group;
    ``encoded`` bool [N, G].
    """

    words: torch.Tensor
    extremes: torch.Tensor
    encoded: torch.Tensor


def _log_range(extremes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log2 of the greatest magnitude of each group, and of the one that code 1 stands for."""
    logs = extremes.to(torch.float32).log2()
    high = logs[..., 0]
    return high, torch.maximum(logs[..., 1], high - LOGFMT_OCTAVES)


def encode_logfmt(rows: torch.Tensor) -> LogfmtRows:
    """Encode bfloat16 ``rows`` [N, H] to LogFMT-10.

    A group is encoded when its greatest magnitude is below 1 and above the least one, which is
    taken as ``amax * 2**-32`` if lower; otherwise (also with NaN or infinity) it stays BF16. Code
    ``c`` stands for ``2**(low + (c - 1) * step)``, ``step = (high - low) / 510``; of two codes the
    nearer in value (not in logarithm) is taken. Code 0 is zero, and takes what lies below the
    middle of ``2**(low - step)`` and ``2**low``. Subnormal magnitudes may count as zero.
    """
    grouped = _in_groups(rows.contiguous())
    magnitude = grouped.abs()
    extremes = torch.stack((magnitude.amax(-1), magnitude.amin(-1)), dim=-1)
    high, low = _log_range(extremes)
    encoded = (high < 0) & (low < high)
    step = torch.where(encoded, (high - low) / (LOGFMT_CODES - 1), torch.ones_like(high))
    low = torch.where(encoded, low, torch.zeros_like(low))
    # Halfway in value between two codes lies log2((1 + 2**step) / 2) above the lower one.
    rounding = 2.0 - ((1.0 + step.exp2()) * 0.5).log2() / step
    position = (magnitude.to(torch.float32).log2() - low.unsqueeze(-1)) / step.unsqueeze(-1)
    code = (position + rounding.unsqueeze(-1)).floor().clamp(0, LOGFMT_CODES)
    code = code.nan_to_num(nan=0.0).to(torch.int16)
    words = code | (grouped.signbit().to(torch.int16) << 9)
    words = torch.where(encoded.unsqueeze(-1), words, grouped.view(torch.int16))
    return LogfmtRows(words, extremes, encoded)


def decode_logfmt(rows: LogfmtRows) -> torch.Tensor:
    """float32 [N, H] from LogFMT-10 rows."""
    high, low = _log_range(rows.extremes)
    step = (high - low) / (LOGFMT_CODES - 1)
    code = (rows.words & 0x1FF).to(torch.float32)
    values = ((code - 1.0) * step.unsqueeze(-1) + low.unsqueeze(-1)).exp2()
    values = torch.where(code == 0, torch.zeros_like(values), values)
    values = torch.where((rows.words >> 9) & 1 != 0, -values, values)
    plain = rows.words.view(torch.bfloat16).to(torch.float32)
    return torch.where(rows.encoded.unsqueeze(-1), values, plain).flatten(-2)
