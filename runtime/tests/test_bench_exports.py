"""The report for other programs, and against a kept run."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from bench_reports import make_report
from ep_runtime.bench import baseline, cli, exports, html, results

FAILED = "failed: combine content, rank 0, token 1: 1 instead of 2 in channel 3"


def faster_by(report, factor, seed=1):
    """The same run again with other noise, its times multiplied."""
    again = copy.deepcopy(report)
    rng = np.random.default_rng(seed)
    for entry in again["per_rank"]:
        for name, values in entry["samples"].items():
            noisy = np.array(values) * factor * rng.normal(1, 0.01, len(values))
            entry["samples"][name] = noisy.tolist()
    return again


class TestBaseline:
    @pytest.mark.parametrize(
        ("factor", "verdict"),
        [(1.0, "same"), (1.01, "same"), (0.99, "same"), (1.1, "slower"), (0.85, "faster")],
    )
    def test_only_what_is_beyond_the_noise_is_named(self, factor, verdict):
        kept = make_report()
        for seed in range(20):
            found = baseline.compare(faster_by(kept, factor, seed), kept)
            assert {item["verdict"] for item in found.values()} == {verdict}
            for item in found.values():
                assert item["low"] <= item["ratio"] <= item["high"]
                assert item["ratio"] == pytest.approx(factor, rel=0.02)

    def test_noise_that_could_be_the_cause_widens_the_interval(self):
        kept = make_report()
        noisy = faster_by(kept, 1.0)
        rng = np.random.default_rng(3)
        for values in (entry["samples"] for entry in noisy["per_rank"]):
            # Half of the time it is slow for a while.
            slow = np.repeat(rng.random(5) < 0.5, 10)
            for name in values:
                values[name] = (np.array(values[name]) * np.where(slow, 1.6, 1.0)).tolist()
        calm = baseline.compare(faster_by(kept, 1.0), kept)["pair"]
        found = baseline.compare(noisy, kept)["pair"]
        assert found["high"] - found["low"] > 5 * (calm["high"] - calm["low"])

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"ranks": 8}, "the baseline has ranks = 8 and this run 4"),
            ({"backend": "nvshmem"}, "the baseline has backend = nvshmem and this run peer"),
            ({"correctness": FAILED}, "only runs with right results"),
        ],
    )
    def test_what_is_not_alike_is_refused(self, change, sentence):
        report = make_report()
        with pytest.raises(results.ReportError, match=sentence):
            baseline.compare(report, {**report, **change})

    def test_other_parameters_are_refused_but_not_other_rounds(self):
        report = make_report()
        kept = copy.deepcopy(report)
        kept["parameters"]["iters"] = 7
        baseline.compare(report, kept)
        kept["parameters"]["hidden"] = 512
        with pytest.raises(results.ReportError, match="hidden = 512 and this run 256"):
            baseline.compare(report, kept)


class TestMarkdown:
    def test_the_culprit_comes_before_the_figures(self):
        text = exports.markdown(make_report(slow=(3,)))
        assert text.index("Rank 3 on node-1") < text.index("| dispatch |")

    def test_a_failure_is_the_title(self):
        text = exports.markdown(make_report(correctness=FAILED))
        assert text.startswith(f"# Expert-parallel benchmark: results {FAILED}\n")
        assert "| dispatch" not in text


class TestJunit:
    def cases(self, report):
        suite = ET.fromstring(exports.junit(report))
        failed = {case.get("name") for case in suite if case.find("failure") is not None}
        assert (int(suite.get("tests")), int(suite.get("failures"))) == (len(suite), len(failed))
        return len(suite), failed

    def test_a_healthy_run_passes(self):
        assert self.cases(make_report()) == (5, set())

    def test_culprits_and_wrong_results_fail(self):
        assert self.cases(make_report(slow=(3,)))[1] == {"nobody makes the others wait"}
        assert self.cases(make_report(correctness=FAILED)) == (1, {"results are right"})

    def test_a_slower_run_fails(self):
        kept = make_report()
        report = faster_by(kept, 1.2)
        report["baseline"] = baseline.compare(report, kept)
        assert len(self.cases(report)[1]) == 3


class TestPrometheus:
    LINE = re.compile(r'^ep_bench_\w+(\{(\w+="(\\.|[^"\\])*",?)+\})? [0-9.e+-]+$')

    def test_every_line_is_well_formed(self):
        text = exports.prometheus(make_report(slow=(3,), host='no"de\\'))
        lines = [line for line in text.splitlines() if not line.startswith("# ")]
        assert all(self.LINE.match(line) for line in lines), lines
        assert 'ep_bench_latency_seconds{operation="pair",quantile="0.99"} ' in text
        assert 'kind="sender",host="no\\"de\\\\-1",ranks="3"' in text
        assert text.endswith("\n")

    def test_a_failed_run_has_no_times(self):
        text = exports.prometheus(make_report(correctness=FAILED))
        assert "ep_bench_correct 0.0" in text
        assert "latency" not in text


def test_the_command_writes_all_of_them(tmp_path, capsys):
    results.write_json(tmp_path / "now.json", make_report(slow=(3,)))
    results.write_json(tmp_path / "kept.json", make_report(slow=(3,)))
    names = ("html", "markdown", "junit", "prometheus")
    options = [f"--{name}={tmp_path / name}" for name in names]
    status = cli.main(
        [
            *("report", f"--input={tmp_path / 'now.json'}", *options),
            f"--baseline={tmp_path / 'kept.json'}",
        ]
    )
    assert status == 0
    assert all((tmp_path / name).stat().st_size for name in names)
    assert "pair same against the baseline" in capsys.readouterr().out
    assert "Against the baseline" in (tmp_path / "html").read_text()
    assert "Against the baseline" not in html.render(make_report())
