"""Dispatch and combine compared with what they should give, computed without communication.

Inputs are pure functions of (seed, rank), so each rank recomputes what every source rank sent
and holds that against what arrived. Nothing here uses ``Buffer`` or its numerics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch

from ep_runtime.bench.options import HIDDEN_MULTIPLE, Parameters
from ep_runtime.bench.routing import Inputs, expert_output

InputsOf = Callable[[int], Inputs]

_FP8_MAX = 448.0
_AMAX_FLOOR = 1e-4
_SCALE_TOLERANCE = 1e-5
# Rounding to nearest with 3 mantissa bits, and to the subnormal grid of 2^-9 near zero; the
# hundredth allows for the order in which the scale is multiplied and rounded.
_FP8_RELATIVE = 2.0**-4 * 1.01
_FP8_ABSOLUTE = 2.0**-10 * 1.01
_BF16_RELATIVE = 2.0**-8
_FP32_RELATIVE = 2.0**-22
# LogFMT has 510 steps from the least to the greatest magnitude of 128 channels, 32 octaves at
# most; half a step is off by ln 2 / 2 of it. The hundredth allows for approximate logarithms.
_LOGFMT_STEPS = 510
_LOGFMT_OCTAVES = 32.0
_LOGFMT_ALLOWANCE = 1.01


@dataclass(frozen=True)
class Received:
    """What one rank got out of a dispatch, wherever it lies.

    Shapes, with L local experts, R ranks, M tokens per rank at most: ``x`` [L, R*M, H];
    ``scales`` [L, R*M, H/128] float32 or None; ``count`` [L]; ``src_info`` [L, R*M];
    ``layout_range`` [L, R], begin row << 32 | count.
    """

    x: torch.Tensor
    scales: torch.Tensor | None
    count: torch.Tensor
    src_info: torch.Tensor
    layout_range: torch.Tensor


@dataclass(frozen=True)
class Mismatch:
    """The first thing found wrong; ``expert`` is global, ``row`` counts inside that expert.

    For a combine ``expert`` is None and ``row`` is the token.
    """

    what: str
    rank: int
    expert: int | None
    row: int | None
    detail: str

    def __str__(self) -> str:
        """One line for reports: what, rank, expert, row, evidence."""
        expert = "" if self.expert is None else f", expert {self.expert}"
        name = "token" if self.expert is None else "row"
        row = "" if self.row is None else f", {name} {self.row}"
        return f"{self.what}, rank {self.rank}{expert}{row}: {self.detail}"


class _MismatchError(Exception):
    """Carries the first mismatch out of a comparison."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch


def check_dispatch(
    received: Received, parameters: Parameters, rank: int, world_size: int, inputs_of: InputsOf
) -> Mismatch | None:
    """Compare everything that ``rank`` received; None when all of it is right."""
    try:
        _DispatchCheck(received, parameters, rank, world_size).compare(inputs_of)
    except _MismatchError as found:
        return found.mismatch
    return None


def _first(wrong: torch.Tensor) -> int:
    """Find the index of the first True of a 1-D mask (0 if there is none)."""
    return int(wrong.int().argmax())


class _DispatchCheck:
    """One rank's received tokens against what all ranks sent; raises ``_MismatchError``."""

    def __init__(
        self, received: Received, parameters: Parameters, rank: int, world_size: int
    ) -> None:
        self.received = received
        self.parameters = parameters
        self.rank = rank
        self.world_size = world_size
        self.local_experts = parameters.num_experts // world_size
        self.capacity = world_size * parameters.num_tokens

    def compare(self, inputs_of: InputsOf) -> None:
        """Shapes first, then the ranges, since the rows are found through them."""
        self._shapes()
        ranges = self.received.layout_range.cpu()
        begins, counts = ranges >> 32, ranges & 0xFFFFFFFF
        src_info, totals = self.received.src_info.cpu(), self.received.count.cpu()
        for local in range(self.local_experts):
            self._segments(local, begins[local], counts[local], int(totals[local]))
        for source in range(self.world_size):
            inputs = inputs_of(source)
            for local in range(self.local_experts):
                begin, count = int(begins[local, source]), int(counts[local, source])
                rows = slice(begin, begin + count)
                tokens = src_info[local, rows].long()
                self._sources(local, source, begin, tokens, inputs.topk_idx)
                if count:
                    self._rows(local, rows, inputs.x[tokens].float())

    def _fail(self, what: str, local: int | None, row: int | None, detail: str) -> NoReturn:
        expert = None if local is None else self.rank * self.local_experts + local
        raise _MismatchError(Mismatch(f"dispatch {what}", self.rank, expert, row, detail))

    def _shapes(self) -> None:
        shape = (self.local_experts, self.capacity, self.parameters.hidden)
        if tuple(self.received.x.shape) != shape:
            self._fail("shape", None, None, f"{tuple(self.received.x.shape)}, not {shape}")
        scales = self.received.scales
        want = (*shape[:2], shape[2] // HIDDEN_MULTIPLE) if self.parameters.use_fp8 else None
        got = None if scales is None else tuple(scales.shape)
        if got != want:
            self._fail("shape of scales", None, None, f"{got}, not {want}")

    def _segments(self, local: int, begins: torch.Tensor, counts: torch.Tensor, total: int) -> None:
        """Require that the sources' segments fill the rows [0, total) without overlap."""
        end = 0
        for source in begins.argsort().tolist():
            begin, count = int(begins[source]), int(counts[source])
            if count and begin != end:
                self._fail(
                    "layout_range",
                    local,
                    begin,
                    f"rows of rank {source} begin at {begin} instead of {end}",
                )
            end += count
        if end != total:
            detail = f"{total}, although the ranges of layout_range hold {end} rows"
            self._fail("recv_count", local, None, detail)
        if total > self.capacity:
            self._fail("recv_count", local, None, f"{total}, more than {self.capacity} rows")

    def _sources(
        self, local: int, source: int, begin: int, tokens: torch.Tensor, topk_idx: torch.Tensor
    ) -> None:
        """Require each token of ``source`` that selects the expert once, and no other."""
        expert = self.rank * self.local_experts + local
        sent = (topk_idx == expert).any(dim=1).nonzero().flatten()
        if tokens.numel() != sent.numel():
            detail = f"{tokens.numel()} rows from rank {source} instead of {sent.numel()}"
            self._fail("count", local, None, detail)
        if not tokens.sort().values.equal(sent):
            wrong = _first(~torch.isin(tokens, sent))
            detail = f"token {int(tokens[wrong])} of rank {source} was not sent, or is there twice"
            self._fail("src_info", local, begin + wrong, detail)

    def _rows(self, local: int, rows: slice, want: torch.Tensor) -> None:
        """Compare rows with the sent ``want`` [N, H]: exact in BF16, within rounding in FP8."""
        got = self.received.x[local, rows].cpu().float()
        bound = torch.zeros_like(want)
        if self.received.scales is not None:
            scales = self.received.scales[local, rows].cpu()
            self._scales(local, rows.start, scales, want)
            spread = scales.repeat_interleave(HIDDEN_MULTIPLE, dim=1)
            got = got * spread
            bound = want.abs() * _FP8_RELATIVE + spread * _FP8_ABSOLUTE
        # Written so that NaN counts as wrong.
        wrong = ~((got - want).abs() <= bound)
        if bool(wrong.any()):
            row = _first(wrong.any(dim=1))
            self._fail("content", local, rows.start + row, _evidence(got, want, wrong, row))

    def _scales(self, local: int, begin: int, got: torch.Tensor, sent: torch.Tensor) -> None:
        blocks = sent.reshape(sent.shape[0], -1, HIDDEN_MULTIPLE)
        want = blocks.abs().amax(dim=2).clamp(min=_AMAX_FLOOR) / _FP8_MAX
        wrong = ~((got - want).abs() <= _SCALE_TOLERANCE * want)
        if bool(wrong.any()):
            row = _first(wrong.any(dim=1))
            self._fail("scales", local, begin + row, _evidence(got, want, wrong, row, "block"))


def _evidence(
    got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, row: int, column: str = "channel"
) -> str:
    """Say what the first wrong value of ``row`` is and should be."""
    index = _first(wrong[row])
    values = f"{float(got[row, index]):.6g} instead of {float(want[row, index]):.6g}"
    return f"{values} in {column} {index}"


def make_expert_outputs(
    received: Received, parameters: Parameters, rank: int, world_size: int, inputs_of: InputsOf
) -> torch.Tensor:
    """Make the combine's input, BF16 [L, R*M, H] on the CPU, after a dispatch found right.

    Made from the senders' inputs rather than from the received rows, so that FP8 rounding stays
    out of the comparison. Rows that hold no token are NaN: a combine must never read them.
    """
    local_experts = parameters.num_experts // world_size
    shape = (local_experts, world_size * parameters.num_tokens, parameters.hidden)
    outputs = torch.full(shape, float("nan"), dtype=torch.bfloat16)
    ranges, src_info = received.layout_range.cpu(), received.src_info.cpu()
    for source in range(world_size):
        x = inputs_of(source).x
        for local in range(local_experts):
            packed = int(ranges[local, source])
            rows = slice(packed >> 32, (packed >> 32) + (packed & 0xFFFFFFFF))
            tokens = src_info[local, rows].long()
            outputs[local, rows] = expert_output(x[tokens], rank * local_experts + local)
    return outputs


def _logfmt_error(rows: torch.Tensor) -> torch.Tensor:
    """How far each value of ``rows`` float64 [N, H] may be off after its travel in LogFMT-10."""
    magnitude = rows.abs().reshape(rows.shape[0], -1, HIDDEN_MULTIPLE)
    greatest = magnitude.amax(dim=2, keepdim=True)
    least = torch.maximum(magnitude.amin(dim=2, keepdim=True), greatest * 2.0**-_LOGFMT_OCTAVES)
    step = (greatest.log2() - least.log2()).nan_to_num(nan=0.0) / _LOGFMT_STEPS
    relative = step * (math.log(2.0) / 2) * _LOGFMT_ALLOWANCE
    # What is below all that the octaves reach becomes the least of it, or zero.
    error: torch.Tensor = magnitude * relative + greatest * 2.0**-_LOGFMT_OCTAVES
    return error.reshape(rows.shape)


def check_combine(
    combined: torch.Tensor, inputs: Inputs, rank: int, use_logfmt: bool = False
) -> Mismatch | None:
    """Compare ``combined`` BF16 [T, H] with the weighted sum in float64.

    With ``use_logfmt`` each row may be off by half a step of that format.
    """
    if combined.shape != inputs.x.shape:
        detail = f"{tuple(combined.shape)}, not {tuple(inputs.x.shape)}"
        return Mismatch("combine shape", rank, None, None, detail)
    want = torch.zeros(inputs.x.shape, dtype=torch.float64)
    magnitude = torch.zeros_like(want)
    encoding = torch.zeros_like(want)
    for expert in sorted(set(inputs.topk_idx.flatten().tolist())):
        if expert < 0:
            continue
        tokens, slots = (inputs.topk_idx == expert).nonzero(as_tuple=True)
        weights = inputs.topk_weights[tokens, slots].double()[:, None]
        rows = expert_output(inputs.x[tokens], expert).double()
        if use_logfmt:
            encoding[tokens] += weights * _logfmt_error(rows)
        term = weights * rows
        want[tokens] += term
        magnitude[tokens] += term.abs()
    got = combined.cpu().double()
    bound = want.abs() * _BF16_RELATIVE + magnitude * _FP32_RELATIVE * inputs.topk_idx.shape[1]
    bound += encoding * (1 + _BF16_RELATIVE)
    wrong = ~((got - want).abs() <= bound)
    if not bool(wrong.any()):
        return None
    token = _first(wrong.any(dim=1))
    detail = _evidence(got, want, wrong, token)
    return Mismatch("combine content", rank, None, token, detail)
