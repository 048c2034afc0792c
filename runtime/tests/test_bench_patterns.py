"""Made routings have the distribution that their names say; files are replayed as they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ep_runtime.bench import cli, patterns
from ep_runtime.bench.patterns import PatternError, Shape, parse
from hypothesis import given
from hypothesis import strategies as st


def drawn(text, shape, seed=0, ranks=1):
    return np.concatenate([parse(text).draw(shape, rank, seed) for rank in range(ranks)])


@st.composite
def cases(draw):
    groups = draw(st.integers(1, 8))
    size = draw(st.integers(1, 16))
    chosen = draw(st.integers(1, groups))
    topk = draw(st.integers(1, chosen * size))
    name = draw(
        st.sampled_from(
            ["uniform", "zipf", "zipf=2.5", "hot=0.3", f"group-limited={groups}/{chosen}"]
        )
    )
    return name, Shape(draw(st.integers(1, 20)), groups * size, topk)


@given(case=cases(), seed=st.integers(0, 2**31), rank=st.integers(0, 1023))
def test_every_token_selects_distinct_experts_and_the_draw_repeats(case, seed, rank):
    name, shape = case
    topk = parse(name).draw(shape, rank, seed)
    assert topk.dtype == np.int64
    assert topk.shape == (shape.num_tokens, shape.num_topk)
    assert topk.min() >= 0
    assert topk.max() < shape.num_experts
    assert all(len(set(row)) == shape.num_topk for row in topk.tolist())
    assert np.array_equal(topk, parse(name).draw(shape, rank, seed))


def assert_frequencies(selected, probabilities):
    """Each count lies within five standard deviations of what its probability gives."""
    counts = np.bincount(selected, minlength=len(probabilities))
    expected = selected.size * np.asarray(probabilities)
    deviation = np.sqrt(expected * (1 - np.asarray(probabilities)))
    assert (abs(counts - expected) <= 5 * deviation).all(), (counts, expected)


def test_uniform_selects_each_expert_as_often():
    topk = drawn("uniform", Shape(5000, 16, 4), ranks=4)
    for place in range(4):
        assert_frequencies(topk[:, place], [1 / 16] * 16)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_zipf_selects_by_the_power_of_an_experts_place(exponent):
    topk = drawn(f"zipf={exponent}", Shape(20000, 12, 1), ranks=2)
    weights = np.arange(1, 13) ** -exponent
    by_popularity = np.argsort(-np.bincount(topk[:, 0], minlength=12), kind="stable")
    place_of = np.argsort(by_popularity)
    assert_frequencies(place_of[topk[:, 0]], weights / weights.sum())


def test_zipf_draws_the_second_expert_from_what_is_left():
    """Of three experts: P(first a, then b) = p_a p_b / (1 - p_a)."""
    topk = drawn("zipf=1", Shape(40000, 3, 2), ranks=1)
    order = np.argsort(-np.bincount(topk[:, 0], minlength=3))
    share = (np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)).tolist()
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            hits = ((topk[:, 0] == order[first]) & (topk[:, 1] == order[second])).sum()
            p = share[first] * share[second] / (1 - share[first])
            assert abs(hits - 40000 * p) < 5 * math.sqrt(40000 * p * (1 - p))


def test_ranks_agree_on_what_is_popular():
    shape = Shape(3000, 32, 1)
    popular = {
        int(np.bincount(parse(text).draw(shape, rank, 3)[:, 0], minlength=32).argmax())
        for rank in range(5)
        for text in ("zipf=1.5",)
    }
    assert len(popular) == 1


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_hot_expert_gets_its_share_of_tokens(share):
    topk = drawn(f"hot={share}", Shape(8000, 16, 2), ranks=2)
    counts = np.bincount(topk.flatten(), minlength=16)
    hot = int(counts.argmax())
    tokens = (topk == hot).any(axis=1).sum()
    assert abs(tokens - 16000 * share) <= 5 * math.sqrt(16000 * share * (1 - share))
    others = topk[topk != hot]
    assert_frequencies(others - (others > hot), [1 / 15] * 15)


def group_limited(scores, groups, chosen, topk):
    """DeepSeek-V3's gate, a token at a time."""
    rows = []
    for token in scores.tolist():
        size = len(token) // groups
        parts = [sorted(token[g * size : (g + 1) * size])[-2:] for g in range(groups)]
        best = sorted(range(groups), key=lambda g: -sum(parts[g]))[:chosen]
        allowed = [e for g in best for e in range(g * size, (g + 1) * size)]
        rows.append(sorted(allowed, key=lambda e: -token[e])[:topk])
    return rows


@given(
    groups=st.integers(1, 6),
    size=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_group_limited_is_deepseeks_gate(groups, size, seed, data):
    chosen = data.draw(st.integers(1, groups))
    shape = Shape(5, groups * size, data.draw(st.integers(1, chosen * size)))
    topk = parse(f"group-limited={groups}/{chosen}").draw(shape, 2, seed)
    scores = patterns._scores(shape, 2, seed)
    assert topk.tolist() == group_limited(scores, groups, chosen, shape.num_topk)
    assert all(len({expert // size for expert in row}) <= chosen for row in topk.tolist())


@pytest.mark.parametrize("suffix", [".npy", ".pt"])
def test_a_file_is_replayed_rank_after_rank_and_from_its_start_again(tmp_path, suffix):
    rows = np.array([[0, 3], [1, 2], [5, -1], [4, 0], [2, 1]], dtype=np.int32)
    path = tmp_path / f"topk{suffix}"
    if suffix == ".npy":
        np.save(path, rows)
    else:
        torch.save(torch.from_numpy(rows), path)
    replay = parse(f"replay={path}")
    shape = Shape(3, 6, 2)
    assert replay.draw(shape, 0, 0).tolist() == rows[[0, 1, 2]].tolist()
    assert replay.draw(shape, 1, 9).tolist() == rows[[3, 4, 0]].tolist()
    assert len(patterns.digest(f"replay={path}")) == 64


def saved(tmp_path, rows):
    np.save(tmp_path / "topk.npy", np.array(rows))
    return f"replay={tmp_path / 'topk.npy'}"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([[0, 7]], "has expert 7 in row 0, and there are 6"),
        ([[0, 1], [0, -2]], "has expert -2 in row 1"),
        ([[0, 1, 2]], "has 3 experts a token, not 2"),
        ([[0, 1], [3, 3]], "selects an expert twice in row 1"),
        ([[0.5, 1.0]], "must hold integers [..., top-k], not float64 [1, 2]"),
        ([0, 1], "must hold integers [..., top-k], not int64 [2]"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, rows, sentence):
    patterns._file.cache_clear()
    with pytest.raises(PatternError, match=r"topk\.npy") as error:
        parse(saved(tmp_path, rows)).draw(Shape(1, 6, 2), 0, 0)
    assert sentence in str(error.value)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.npy").write_text("0 1")
    (tmp_path / "text.pt").write_text("0 1")
    for name in ("text.npy", "text.pt"):
        with pytest.raises(PatternError, match=f"{name} is neither"):
            parse(f"replay={tmp_path / name}").draw(Shape(1, 6, 2), 0, 0)
    with pytest.raises(PatternError, match=r"cannot read .*none\.npy: No such file"):
        parse(f"replay={tmp_path / 'none.npy'}").draw(Shape(1, 6, 2), 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "flat",
        "zipf=0",
        "zipf=x",
        "hot=1.5",
        "hot=0",
        "group-limited=4",
        "group-limited=2/3",
        "uniform=1",
        "replay",
        "",
    ],
)
def test_an_unknown_pattern_is_refused_on_the_command_line(capsys, text):
    assert cli.main(["low-latency", "--routing", text]) == 2
    assert f"--routing: must be {patterns.FORMS}, not {text!r}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("group-limited=5/2", "32 experts are not divisible into 5 groups"),
        ("group-limited=8/1", "1 groups of 4 experts hold less than top-8"),
    ],
)
def test_groups_that_do_not_fit_are_refused(capsys, text, sentence):
    assert cli.main(["low-latency", "--routing", text]) == 2
    assert sentence in capsys.readouterr().err
