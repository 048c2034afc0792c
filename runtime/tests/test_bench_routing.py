import torch
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.routing import FULL, HOLES, expert_output, make_inputs

PARAMETERS = Parameters(
    num_tokens=64,
    hidden=256,
    num_experts=16,
    num_topk=4,
    dtype="fp8",
    iters=1,
    warmup=0,
    seed=7,
    backend="reference",
    timeout_s=60.0,
)


def test_inputs_depend_on_seed_and_rank_only():
    first, again = make_inputs(PARAMETERS, 3, FULL), make_inputs(PARAMETERS, 3, FULL)
    other = make_inputs(PARAMETERS, 4, FULL)
    assert first.x.equal(again.x)
    assert first.topk_idx.equal(again.topk_idx)
    assert first.topk_weights.equal(again.topk_weights)
    assert not first.x.equal(other.x)
    assert not first.topk_idx.equal(other.topk_idx)


def test_shapes_and_types():
    inputs = make_inputs(PARAMETERS, 0, FULL)
    assert (inputs.x.shape, inputs.x.dtype) == ((64, 256), torch.bfloat16)
    assert (inputs.topk_idx.shape, inputs.topk_idx.dtype) == ((64, 4), torch.int64)
    assert (inputs.topk_weights.shape, inputs.topk_weights.dtype) == ((64, 4), torch.float32)
    assert bool((inputs.topk_weights > 0).all())


def test_a_token_selects_distinct_experts():
    topk = make_inputs(PARAMETERS, 0, FULL).topk_idx
    assert int(topk.min()) >= 0
    assert int(topk.max()) < 16
    assert all(len(set(row)) == 4 for row in topk.tolist())


def test_holes_are_the_full_routing_with_some_entries_out():
    full, holes = make_inputs(PARAMETERS, 0, FULL), make_inputs(PARAMETERS, 0, HOLES)
    out = holes.topk_idx < 0
    assert 0 < int(out.sum()) < out.numel() // 2
    assert holes.topk_idx[~out].equal(full.topk_idx[~out])
    assert holes.x.equal(full.x)


def test_neighbouring_experts_give_different_rows():
    x = torch.ones(1, 128, dtype=torch.bfloat16)
    outputs = [float(expert_output(x, expert)[0, 0]) for expert in range(128)]
    assert len(set(outputs)) == 128
