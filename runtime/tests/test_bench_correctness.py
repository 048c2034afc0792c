"""The checker is given results made by hand, right ones and each kind of wrong one."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from ep_runtime import numerics
from ep_runtime.bench.correctness import (
    Received,
    check_combine,
    check_dispatch,
    make_expert_outputs,
)
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.routing import FULL, HOLES, expert_output, make_inputs

WORLD = 3
RANK = 1
LOCAL_EXPERTS = 2
PARAMETERS = Parameters(
    num_tokens=10,
    hidden=256,
    num_experts=WORLD * LOCAL_EXPERTS,
    num_topk=3,
    dtype="fp8",
    iters=1,
    warmup=0,
    seed=5,
    backend="reference",
    timeout_s=60.0,
)
BF16 = replace(PARAMETERS, dtype="bf16")


def receive(parameters, routing, rank_order=(2, 0, 1)):
    """What RANK should get, with sources and tokens in an order of no meaning."""
    capacity = WORLD * parameters.num_tokens
    x = torch.full((LOCAL_EXPERTS, capacity, parameters.hidden), float("nan"))
    src_info = torch.full((LOCAL_EXPERTS, capacity), -7, dtype=torch.int32)
    layout = torch.zeros(LOCAL_EXPERTS, WORLD, dtype=torch.int64)
    count = torch.zeros(LOCAL_EXPERTS, dtype=torch.int32)
    for local in range(LOCAL_EXPERTS):
        row = 0
        for source in rank_order:
            inputs = make_inputs(parameters, source, routing)
            expert = RANK * LOCAL_EXPERTS + local
            tokens = (inputs.topk_idx == expert).any(dim=1).nonzero().flatten().flip(0)
            rows = slice(row, row + tokens.numel())
            x[local, rows] = inputs.x[tokens].float()
            src_info[local, rows] = tokens.int()
            layout[local, source] = (row << 32) | tokens.numel()
            row += tokens.numel()
        count[local] = row
    if parameters.dtype == "bf16":
        return Received(x.bfloat16(), None, count, src_info, layout)
    blocks = x.reshape(LOCAL_EXPERTS, capacity, -1, 128)
    scales = blocks.abs().amax(dim=3) / 448
    quantized = (blocks / scales[..., None]).reshape(x.shape).to(torch.float8_e4m3fn)
    return Received(quantized, scales, count, src_info, layout)


def verdict(received, parameters=PARAMETERS, routing=FULL):
    return check_dispatch(
        received, parameters, RANK, WORLD, partial(make_inputs, parameters, routing=routing)
    )


@pytest.mark.parametrize("routing", [FULL, HOLES])
@pytest.mark.parametrize("parameters", [PARAMETERS, BF16])
def test_right_results_pass(parameters, routing):
    assert verdict(receive(parameters, routing), parameters, routing) is None


def test_a_wrong_row_is_named():
    received = receive(BF16, FULL)
    received.x[1, 4, 200] += 0.5
    mismatch = verdict(received, BF16)
    assert (mismatch.what, mismatch.rank, mismatch.expert, mismatch.row) == (
        "dispatch content",
        RANK,
        RANK * LOCAL_EXPERTS + 1,
        4,
    )
    assert str(mismatch).startswith("dispatch content, rank 1, expert 3, row 4: ")
    assert str(mismatch).endswith("in channel 200")


def test_two_fp8_steps_are_more_than_rounding():
    received = receive(PARAMETERS, FULL)
    codes = received.x.view(torch.uint8)
    # The block's largest value has the code of 448, the largest there is: step down from it.
    channel = int(received.x[0, 0, :128].float().abs().argmax())
    codes[0, 0, channel] -= 2
    assert verdict(received).what == "dispatch content"


def test_nan_is_wrong():
    received = receive(BF16, FULL)
    received.x[0, 0, 0] = float("nan")
    assert verdict(received, BF16).what == "dispatch content"


def test_wrong_scales_are_named():
    received = receive(PARAMETERS, FULL)
    received.scales[0, 2, 1] *= 1.001
    mismatch = verdict(received)
    assert (mismatch.what, mismatch.row) == ("dispatch scales", 2)


def test_rows_of_swapped_ranks_are_wrong():
    received = receive(BF16, FULL)
    received.layout_range[:, [0, 2]] = received.layout_range[:, [2, 0]]
    assert verdict(received, BF16).what.startswith("dispatch ")


def test_a_gap_in_the_ranges_is_named():
    received = receive(BF16, FULL)
    received.layout_range[0, 0] += 1 << 32
    assert verdict(received, BF16).what == "dispatch layout_range"


def test_a_missing_row_is_named():
    received = receive(BF16, FULL)
    received.layout_range[0, 1] -= 1  # the last segment, so that no gap opens
    received.count[0] -= 1
    mismatch = verdict(received, BF16)
    assert (mismatch.what, mismatch.expert) == ("dispatch count", RANK * LOCAL_EXPERTS)


def test_a_wrong_count_is_named():
    received = receive(BF16, FULL)
    received.count[1] += 1
    assert verdict(received, BF16).what == "dispatch recv_count"


def test_a_repeated_source_index_is_named():
    received = receive(BF16, FULL)
    received.src_info[0, 1] = received.src_info[0, 0]
    assert verdict(received, BF16).what == "dispatch src_info"


def test_a_wrong_shape_is_named():
    received = receive(BF16, FULL)
    assert verdict(replace(received, x=received.x[:, :-1]), BF16).what == "dispatch shape"
    assert verdict(received, PARAMETERS).what == "dispatch shape of scales"


def combined(inputs):
    total = torch.zeros(inputs.x.shape, dtype=torch.float32)
    for token, experts in enumerate(inputs.topk_idx.tolist()):
        for slot, expert in enumerate(experts):
            if expert >= 0:
                row = expert_output(inputs.x[token : token + 1], expert)[0].float()
                total[token] += inputs.topk_weights[token, slot] * row
    return total.bfloat16()


@pytest.mark.parametrize("routing", [FULL, HOLES])
def test_a_right_combine_passes(routing):
    inputs = make_inputs(PARAMETERS, RANK, routing)
    assert check_combine(combined(inputs), inputs, RANK) is None


def test_a_combine_without_one_expert_is_wrong():
    inputs = make_inputs(PARAMETERS, RANK, FULL)
    short = replace(inputs, topk_idx=inputs.topk_idx.clone())
    short.topk_idx[6, 2] = -1
    mismatch = check_combine(combined(short), inputs, RANK)
    assert (mismatch.what, mismatch.expert, mismatch.row) == ("combine content", None, 6)
    assert "token 6" in str(mismatch)


def test_a_combine_of_nan_or_of_another_shape_is_wrong():
    inputs = make_inputs(PARAMETERS, RANK, FULL)
    assert check_combine(torch.full_like(inputs.x, float("nan")), inputs, RANK) is not None
    assert check_combine(inputs.x[:-1], inputs, RANK).what == "combine shape"


def test_expert_outputs_leave_unused_rows_nan():
    received = receive(BF16, FULL)
    outputs = make_expert_outputs(
        received, BF16, RANK, WORLD, partial(make_inputs, BF16, routing=FULL)
    )
    for local in range(LOCAL_EXPERTS):
        used = int(received.count[local])
        assert not outputs[local, :used].isnan().any()
        assert outputs[local, used:].isnan().all()
        expected = expert_output(received.x[local, :used], RANK * LOCAL_EXPERTS + local)
        assert outputs[local, :used].equal(expected)


LOGFMT = replace(BF16, combine_dtype="logfmt")


def logfmt_combined(parameters, rank):
    """What a combine gives whose rows travel in LogFMT: by the runtime's own format."""
    inputs = make_inputs(parameters, rank, FULL)
    total = torch.zeros(inputs.x.shape)
    encoded = []
    for slot in range(parameters.num_topk):
        for token in range(parameters.num_tokens):
            row = expert_output(inputs.x[token : token + 1], int(inputs.topk_idx[token, slot]))
            coded = numerics.encode_logfmt(row)
            encoded.append(coded.encoded.all())
            total[token] += inputs.topk_weights[token, slot] * numerics.decode_logfmt(coded)[0]
    assert all(encoded)  # else nothing of the format would be looked at
    return total.bfloat16(), inputs


def test_a_combine_in_logfmt_may_be_off_by_its_steps_and_no_more():
    combined, inputs = logfmt_combined(LOGFMT, RANK)
    assert check_combine(combined, inputs, RANK, use_logfmt=True) is None
    assert check_combine(combined, inputs, RANK) is not None
    combined[3, 77] *= 1.03
    assert check_combine(combined, inputs, RANK, use_logfmt=True).row == 3
