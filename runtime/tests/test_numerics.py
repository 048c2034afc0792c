"""FP8, UE8M0 and LogFMT against definitions written out value by value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ep_runtime import numerics
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import e4m3_values, power_of_two_at_least, quantize_group, to_e4m3

GROUP = 128


def bf16_rows(bits: list[int]) -> torch.Tensor:
    """[1, 128] bfloat16 that repeats the given bit patterns."""
    pattern = np.resize(np.array(bits, dtype=np.uint16), GROUP)
    return torch.from_numpy(pattern.view(np.int16)).view(torch.bfloat16).unsqueeze(0)


any_bits = st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=GROUP)


def finite(bits: int) -> bool:
    return bits & 0x7F80 != 0x7F80


finite_bits = st.lists(st.integers(0, 0xFFFF).filter(finite), min_size=1, max_size=GROUP)


def test_oracle_knows_all_fp8_codes() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert codes.tolist() == e4m3_values().tolist()
    assert to_e4m3(codes.numpy()).tolist() == list(range(0x7F))


@settings(max_examples=300)
@given(finite_bits, st.booleans())
def test_fp8_is_the_definition_bit_for_bit(bits: list[int], round_scale: bool) -> None:
    rows = bf16_rows(bits)
    data, inverse = numerics.quantize_fp8(rows, round_scale)
    codes, scale = quantize_group(rows[0].float().numpy(), round_scale)
    assert data.view(torch.uint8)[0].tolist() == codes.tolist()
    assert inverse.tolist() == [[scale]]


@given(finite_bits)
def test_fp8_error_is_within_a_rounding(bits: list[int]) -> None:
    rows = bf16_rows(bits)
    data, inverse = numerics.quantize_fp8(rows)
    values = rows.double()
    error = (numerics.dequantize_fp8(data, inverse).double() - values).abs()
    allowed = values.abs() * 2.0**-4 * 1.001 + inverse.double() * 2.0**-10 * 1.001
    assert bool((error <= allowed).all())


@given(finite_bits)
def test_rounded_scales_are_the_next_power_of_two(bits: list[int]) -> None:
    _, exact = numerics.quantize_fp8(bf16_rows(bits))
    _, rounded = numerics.quantize_fp8(bf16_rows(bits), round_scale=True)
    assert rounded.item() == power_of_two_at_least(exact.item())
    words = numerics.pack_ue8m0(rounded.expand(1, 4))
    assert numerics.unpack_ue8m0(words).tolist() == rounded.expand(1, 4).tolist()
    exponent = int(math.log2(rounded.item())) + 127
    assert words.item() & 0xFF == exponent
    assert (words.item() >> 8) & 0xFF == exponent


def test_ue8m0_byte_order() -> None:
    words = numerics.pack_ue8m0(torch.tensor([[2.0**-3, 1.0, 2.0, 2.0**5]]))
    assert words.view(torch.uint8).tolist() == [[124, 127, 128, 132]]


@pytest.mark.parametrize("round_scale", [False, True])
def test_fp8_of_not_quite_numbers(round_scale: bool) -> None:
    rows = torch.zeros(4, GROUP, dtype=torch.bfloat16)
    rows[1, :3] = torch.tensor([float("nan"), -2.0, 448.0])
    rows[1, 3] = -float("nan")
    rows[2, :3] = torch.tensor([float("inf"), 1.0, -float("inf")])
    rows[3] = float("nan")
    data, inverse = numerics.quantize_fp8(rows, round_scale)
    codes = data.view(torch.uint8)
    floor = np.float32(1e-4) / np.float32(448)
    floor = power_of_two_at_least(float(floor)) if round_scale else floor
    assert codes[0].tolist() == [0] * GROUP
    assert inverse[0].item() == floor  # zero rows have a scale, too
    assert codes[1, :4].tolist() == [0x7F, 0xC0, 0x7E, 0x7F]  # NaN does not count for the scale
    assert inverse[1].item() == 1.0
    assert codes[2, :4].tolist() == [0x7F, 0, 0x7F, 0]  # infinity can't be scaled
    assert inverse[2].item() == float("inf")
    assert codes[3].tolist() == [0x7F] * GROUP
    assert inverse[3].item() == floor


def test_hidden_must_be_whole_groups() -> None:
    with pytest.raises(ValueError, match="hidden must be a multiple of 128, got 100"):
        numerics.quantize_fp8(torch.zeros(1, 100, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="4 scales at a time, got 3"):
        numerics.pack_ue8m0(torch.ones(1, 3))


def log_range(values: np.ndarray) -> tuple[float, float] | None:
    """What LogFMT works between, or None if the group stays BF16."""
    magnitudes = [abs(float(v)) for v in values]
    if not all(map(math.isfinite, magnitudes)) or max(magnitudes) == 0:
        return None
    high = math.log2(max(magnitudes))
    low = math.log2(min(magnitudes)) if min(magnitudes) > 0 else -math.inf
    low = max(low, high - 32)
    return (high, low) if high < 0 and low < high else None


@settings(max_examples=300)
@given(any_bits)
def test_logfmt_keeps_what_it_can_not_encode(bits: list[int]) -> None:
    rows = bf16_rows(bits)
    coded = numerics.encode_logfmt(rows)
    assert bool(coded.encoded.item()) == (log_range(rows[0].float().numpy()) is not None)
    if not coded.encoded.item():
        kept = numerics.decode_logfmt(coded).bfloat16()
        same = kept.view(torch.int16) == rows.view(torch.int16)
        assert bool((same | (kept.isnan() & rows.isnan())).all())


# Below 1 and not subnormal, for torch may flush those in logarithms; zeros are among them.
small_magnitudes = st.one_of(st.just(0), st.integers(0x80, 0x3F7F))
small_bits = st.lists(
    st.builds(lambda sign, rest: sign << 15 | rest, st.integers(0, 1), small_magnitudes),
    min_size=2,
    max_size=GROUP,
)


@settings(max_examples=300)
@given(small_bits)
def test_logfmt_takes_the_nearer_code(bits: list[int]) -> None:
    rows = bf16_rows(bits)
    values = rows[0].float().numpy()
    between = log_range(values)
    if between is None:
        return
    high, low = between
    step = (high - low) / 510
    decoded = numerics.decode_logfmt(numerics.encode_logfmt(rows))[0].numpy()
    codes = [2.0 ** (low + i * step) for i in range(511)]
    middle = (codes[0] + 2.0 ** (low - step)) / 2  # what lies below becomes zero
    for value, got in zip(values.astype(np.float64), decoded.astype(np.float64)):
        assert got == 0 or math.copysign(1, got) == math.copysign(1, value)
        if abs(value) < middle * 0.9999:
            assert got == 0
        else:
            # float32 logarithms are off by a few 2^-23 of up to 150 octaves.
            nearest = min(abs(abs(value) - code) for code in codes)
            border = abs(value) <= middle * 1.0001
            assert abs(abs(value) - abs(got)) <= nearest + abs(value) * 4e-5 or border


def test_groups_are_encoded_one_by_one() -> None:
    draw = torch.Generator().manual_seed(7)
    rows = (torch.rand(1, 3 * GROUP, generator=draw) * 0.9 + 0.01).bfloat16()
    rows[0, GROUP] = 3.0
    coded = numerics.encode_logfmt(rows)
    assert coded.encoded.tolist() == [[True, False, True]]
    decoded = numerics.decode_logfmt(coded)
    assert torch.equal(decoded[0, GROUP : 2 * GROUP], rows[0, GROUP : 2 * GROUP].float())
    assert not torch.equal(decoded[0, :GROUP], rows[0, :GROUP].float())
    assert int((coded.words[0, 0] & ~0x3FF).count_nonzero()) == 0  # ten bits are enough
