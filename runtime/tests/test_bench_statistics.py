import numpy as np
import pytest
from ep_runtime.bench.statistics import logical_bytes, summarize


def test_percentiles_of_known_samples():
    figures = summarize(range(1, 102), bytes_per_rank=51_000)
    assert figures == {
        "p50_us": 51.0,
        "p95_us": 96.0,
        "p99_us": 100.0,
        "min_us": 1.0,
        "max_us": 101.0,
        "mean_us": 51.0,
        "bytes": 51_000,
        "logical_gbps": 1.0,
    }


def test_percentiles_do_not_depend_on_order():
    samples = np.random.default_rng(0).exponential(100, 1000)
    assert summarize(sorted(samples), 1) == summarize(samples, 1)


def test_percentiles_of_an_exponential_distribution():
    samples = np.random.default_rng(0).exponential(100, 200_000)
    figures = summarize(samples, 1)
    assert figures["p50_us"] == pytest.approx(100 * np.log(2), rel=0.02)
    assert figures["p95_us"] == pytest.approx(100 * np.log(20), rel=0.02)
    assert figures["p99_us"] == pytest.approx(100 * np.log(100), rel=0.02)
    assert figures["mean_us"] == pytest.approx(100, rel=0.02)


def test_one_sample_is_every_percentile():
    figures = summarize([7.25], 10)
    assert {figures[key] for key in figures if key.endswith("_us")} == {7.25}


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="no samples"):
        summarize([], 1)


def test_logical_bytes_of_the_published_shape():
    # 128 tokens, top-8, hidden 7168: the byte counts that DeepEP's own figures rest on.
    assert logical_bytes(128 * 8, 7168, use_fp8=True) == {
        "dispatch": 7_585_792,
        "combine": 14_680_064,
        "pair": 22_265_856,
    }
    assert logical_bytes(1, 7168, use_fp8=False)["dispatch"] == 14_336
    # LogFMT: ten bits a channel and two extremes in BF16 for each 128.
    assert logical_bytes(1, 7168, True, use_logfmt=True)["combine"] == 8960 + 224
