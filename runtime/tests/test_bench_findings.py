"""A culprit's host has its findings beside it, and the document keeps what was added to it."""

from __future__ import annotations

import json

import jsonschema
import pytest
from bench_reports import make_report
from ep_runtime.bench import cli, results
from ep_runtime.bench.progress import Trail, bar


def finding(identity, severity, *hosts):
    return {
        "id": identity,
        "severity": severity,
        "title": "The NIC's port is slower than its neighbours",
        "hosts": list(hosts),
        "evidence": [{"where": "mlx5_0", "seen": "100 Gb/s", "wanted": "400 Gb/s"}],
        "consequence": "Everybody waits.",
        "fix": "Look at the cable.",
        "role": None,
        "rules": [],
    }


FINDINGS = [
    finding("EPD001", "info", "node-1"),
    finding("EPD002", "warning", "node-1", "node-0"),
    finding("EPD003", "error", "node-1"),
    finding("EPD004", "error", "node-0"),
]


@pytest.fixture
def given(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(make_report(slow=(3,))))
    (tmp_path / "findings.json").write_text(json.dumps(FINDINGS))
    return ["report", "--input", str(tmp_path / "report.json")]


def test_the_culprits_host_has_its_errors_and_warnings(tmp_path, capsys, given):
    written = [tmp_path / name for name in ("out.json", "out.md", "out.html")]
    arguments = ["--findings", str(tmp_path / "findings.json"), "--output", str(written[0])]
    arguments += ["--markdown", str(written[1]), "--html", str(written[2])]
    assert cli.main([*given, *arguments]) == 0
    report = json.loads(written[0].read_text())
    jsonschema.validate(report, results.schema())
    (culprit,) = report["culprits"]
    assert [item["id"] for item in culprit["findings"]] == ["EPD003", "EPD002"]
    assert culprit["findings"][0]["evidence"] == "mlx5_0: 100 Gb/s, wanted 400 Gb/s."
    told = " ".join(capsys.readouterr().out.split())
    for text in (told, written[1].read_text(), written[2].read_text()):
        assert "EPD003" in text
        assert "mlx5_0: 100 Gb/s, wanted 400 Gb/s." in text
        assert "Look at the cable." in text
        assert "EPD004" not in text


def test_the_document_keeps_the_comparison(tmp_path, given):
    output = tmp_path / "out.json"
    assert cli.main([*given, "--baseline", given[-1], "--output", str(output)]) == 0
    report = json.loads(output.read_text())
    jsonschema.validate(report, results.schema())
    assert {name: item["verdict"] for name, item in report["baseline"].items()} == {
        "dispatch": "same",
        "combine": "same",
        "pair": "same",
    }


@pytest.mark.parametrize("text", ["{}", '[{"id": "EPD001"}]', "no json"])
def test_what_holds_no_findings_is_named(tmp_path, capsys, given, text):
    path = tmp_path / "findings.json"
    path.write_text(text)
    assert cli.main([*given, "--findings", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_watcher_reads_how_far_the_run_is(tmp_path):
    path = tmp_path / "progress"
    trail = Trail(path)
    with bar("timing", 40, shown=False, trail=trail) as advance:
        advance(8)
        assert path.read_text() == "timing: 8 of 40 rounds\n"
        advance(8)  # a moment later: not written again
        assert path.read_text() == "timing: 8 of 40 rounds\n"
    trail.say("freeing the buffer")
    assert path.read_text() == "freeing the buffer\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_trail_that_cannot_be_written_ends_no_run(tmp_path):
    Trail(tmp_path / "missing" / "progress").say("timing")
