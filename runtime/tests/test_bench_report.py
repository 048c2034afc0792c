import json
import re
import stat
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timezone

import jsonschema
import pytest
from bench_reports import FULL, PARAMETERS, make_report
from ep_runtime.bench import canvas, cli, curves, html, plots, results
from ep_runtime.bench.canvas import ON_PAGE
from ep_runtime.bench.expected import Rates
from PIL import Image


def validate(report):
    jsonschema.validate(report, results.schema())


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(results.schema())


def test_a_passed_report_is_valid_and_complete():
    report = make_report(slow=(3,))
    validate(report)
    assert datetime.fromisoformat(report["created"]).tzinfo == timezone.utc
    assert report["ranks"] == 4
    assert report["hosts"] == [
        {"name": "node-0", "ranks": [0, 1]},
        {"name": "node-1", "ranks": [2, 3]},
    ]
    culprit = report["culprits"][0]
    assert (culprit["kind"], culprit["hosts"], culprit["ranks"]) == ("sender", ["node-1"], [3])
    assert culprit["what"] == "Rank 3 on node-1 (GPU 0000:1c:00.0, NIC mlx5_1) sends late."
    assert culprit["evidence"].startswith("Others wait for it: ")
    assert "nvidia-smi" in culprit["advice"]
    assert [entry["rank"] for entry in report["per_rank"]] == [0, 1, 2, 3]
    pooled = [v for entry in report["per_rank"] for v in entry["samples"]["dispatch"]]
    assert len(pooled) == 4 * PARAMETERS.iters
    assert report["dispatch"]["max_us"] == max(pooled)
    for operation in ("dispatch", "combine"):
        waits = report["waits"][operation]
        assert [len(row) for row in waits] == [4] * 4
        # A column is a source: everybody waits for rank 3.
        assert all(row[3] > max(row[:3]) + 30 for row in waits)
    assert all(entry["own_us"]["dispatch"] >= 0 for entry in report["per_rank"])


def test_what_was_not_asked_for_says_so():
    report = make_report()
    assert report["times"]["hook"] == {"not_measured": "not asked for (--full)"}
    assert report["all_to_all"] == {"not_measured": "not asked for (--full)"}
    assert report["times"]["back_to_back"]["figures"]["pair"]["p50_us"] == report["pair"]["p50_us"]
    assert report["sweep"] == []


def test_a_full_report_is_valid_and_complete():
    report = make_report(parameters=FULL, iters=400)
    validate(report)
    for kind, factor in (("kernel", 0.8), ("end_to_end", 1.5)):
        figures = report["times"][kind]["figures"]
        assert figures["pair"]["p50_us"] == pytest.approx(
            factor * report["pair"]["p50_us"], rel=1e-4
        )
    assert list(report["times"]["hook"]["figures"]) == [
        *("dispatch_send", "dispatch_receive", "combine_send", "combine_receive")
    ]
    other = report["all_to_all"]["figures"]["dispatch"]["p50_us"]
    assert other == pytest.approx(3 * report["dispatch"]["p50_us"], rel=1e-4)
    low, high = report["pair"]["p99_interval_us"]
    assert low <= report["pair"]["p99_us"] <= high
    assert [point["axis"] for point in report["sweep"]] == [
        *["num_tokens"] * 8,
        *["hidden"] * 4,
        *["num_experts"] * 3,
        *["num_topk"] * 4,
    ]
    assert [point["num_tokens"] for point in report["sweep"][:8]] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert all(point["hidden"] == PARAMETERS.hidden for point in report["sweep"][:8])
    sizes = [point["combine"]["other_hosts_bytes"] for point in report["sweep"][:8]]
    assert sizes == sorted(sizes)
    # Four ranks on two hosts: half of the uniform selections go to the other host.
    share = report["combine"]["other_hosts_bytes"] / report["combine"]["bytes"]
    assert share == pytest.approx(0.5, rel=0.2)
    assert report["load"]["by_rank"] >= 1


def test_a_failed_report_is_valid_and_has_no_times():
    report = make_report(correctness="failed: dispatch content, rank 1, expert 2, row 3: x")
    validate(report)
    assert not {"dispatch", "combine", "pair", "per_rank"} & set(report)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 1},
        {"correctness": "fine"},
        {"ranks": 0},
        {"correctness": "failed: x"},  # with times beside it
        {"surprise": 1},
    ],
)
def test_the_schema_refuses(change):
    with pytest.raises(jsonschema.ValidationError):
        validate({**make_report(), **change})


def test_the_schema_refuses_a_passed_report_without_times():
    report = make_report()
    del report["combine"]
    with pytest.raises(jsonschema.ValidationError):
        validate(report)


def test_writing_is_atomic_and_readable_by_others(tmp_path):
    path = tmp_path / "new" / "report.json"
    results.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert path.stat().st_mode & stat.S_IRUSR
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        results.write(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(results.ReportError, match="cannot write"):
        results.write(tmp_path / "file" / "report.json", "text")


class TestPage:
    def test_shows_the_distribution_as_pictures(self):
        page = html.render(make_report())
        # Three distributions; ranks for wide and narrow screens; two heat maps.
        assert page.count("<svg") == 7
        assert "Results are correct" in page

    def test_pictures_are_well_formed_and_take_the_colours_of_the_page(self):
        report = make_report(parameters=FULL)
        for figure in (
            plots.distribution(ON_PAGE, range(1, 100), report["dispatch"]),
            plots.by_rank(ON_PAGE, report, "pair", 8.0),
            plots.heat_map(ON_PAGE, report, "combine"),
            curves.curve(ON_PAGE, report, "hidden", Rates()),
        ):
            svg = canvas.svg(figure, "salt")
            ET.fromstring(svg)
            assert "var(--muted)" in svg
            assert not re.search("#0a0b0", svg)

    def test_shows_all_kinds_of_time_the_sweep_and_what_is_expected(self):
        page = html.render(make_report(parameters=FULL, iters=400))
        assert page.count("<svg") == 11  # with four curves
        for text in ("Kernels alone", "By hook, receive", "torch&#39;s all_to_all"):
            assert text in page
        assert "not measured" not in page
        assert "Dashed: what the model predicts." in page
        assert "The wire alone takes" in page
        assert "GB/s physical" in page
        assert "All 19 points" in page
        assert "known within 4.2 %" in page
        assert "30, then steady" in page

    def test_says_what_was_not_measured(self):
        page = html.render(make_report())
        assert page.count("not measured: not asked for (--full)") == 4
        assert "not bounded: that takes 368 rounds" in page
        assert "<h2>Sweep</h2>" not in page

    @pytest.mark.parametrize(("shown", "model"), [("fp8", True), ("bf16", False)])
    def test_curves_have_the_lines_of_model_and_wire(self, shown, model):
        report = make_report(parameters=replace(FULL, dtype=shown))
        figure = curves.curve(ON_PAGE, report, "num_tokens", Rates())
        (axes,) = figure.axes
        styles = [line.get_linestyle() for line in axes.get_lines()]
        assert styles.count("-") == styles.count(":") == 2
        assert styles.count("--") == (2 if model else 0)
        measured = next(line for line in axes.get_lines() if line.get_label() == "dispatch")
        assert measured.get_ydata().tolist() == [
            p["dispatch"]["p50_us"] for p in report["sweep"][:8]
        ]
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert names == ["dispatch", "combine", *(["model"] if model else []), "wire limit"]

    def test_needs_no_network_and_no_script(self):
        page = html.render(make_report())
        outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
        assert "http" not in outside
        assert "<script" not in page
        assert not re.search(r'(src|href)="(?!#|data:)', page)

    def test_has_dark_phone_and_print_forms(self):
        page = html.render(make_report())
        assert "prefers-color-scheme: dark" in page
        assert "@media print" in page
        assert 'name="viewport"' in page

    def test_marks_slow_ranks_and_their_host(self):
        page = html.render(make_report(ranks=8, slow=(5,)))
        assert "Rank 5 on node-2 (GPU 0000:1c:00.0, NIC mlx5_1) sends late." in page
        assert 'class="badge">to blame</span>' in page
        assert 'class="badge">to blame: 5</span>' in page

    def test_names_nobody_when_nobody_is_slow(self):
        page = html.render(make_report(ranks=8))
        assert "No host, rank or link stood out as slow." in page
        assert 'class="badge"' not in page

    def test_says_when_figures_are_those_of_the_fallback(self):
        page = html.render(make_report(backend="reference"))
        assert "Not a GPU fleet" in page
        assert "the fallback on torch operations, run on NVIDIA H200" in page
        assert "Not a GPU fleet" not in html.render(make_report(backend="peer"))

    def test_a_failure_is_the_verdict_and_brings_no_times(self):
        failure = "failed: dispatch content, rank 1, expert 2, row 3: 1 instead of 2"
        page = html.render(make_report(correctness=failure))
        assert "Results are wrong" in page
        assert "dispatch content, rank 1, expert 2, row 3" in page
        assert "p50" not in page.replace(".p50", "")

    def test_names_from_outside_are_escaped(self):
        page = html.render(make_report(host="<script>alert(1)</script>"))
        assert "<script" not in page

    def test_many_ranks_are_folded_and_stay_small(self):
        page = html.render(make_report(ranks=512, per_host=8, slow=(100,)))
        assert "All 512 ranks" in page
        assert "All 64 hosts" in page
        assert len(page) < 2_000_000

    def test_one_rank_and_equal_times_can_be_drawn(self):
        report = make_report(ranks=1)
        report["per_rank"][0]["samples"] = {k: [5.0] * 3 for k in ("dispatch", "combine", "pair")}
        for name in ("dispatch", "combine", "pair"):
            report[name].update(p50_us=5.0, p95_us=5.0, p99_us=5.0)
        assert html.render(report).count("<svg") == 5


class TestCommand:
    def write(self, tmp_path, report):
        path = tmp_path / "report.json"
        results.write_json(path, report)
        return path

    def test_renders_table_and_page(self, tmp_path, capsys):
        source = self.write(tmp_path, make_report(backend="reference"))
        page = tmp_path / "out" / "report.html"
        assert cli.main(["report", "--input", str(source), "--html", str(page)]) == 0
        assert page.read_text().startswith("<!doctype html>")
        out = capsys.readouterr().out
        assert "correctness: passed" in out
        assert "dispatch" in out
        assert "reference backend" in out
        assert str(page) in out

    def test_writes_pictures(self, tmp_path, capsys):
        source = self.write(tmp_path, make_report(parameters=FULL))
        folder = tmp_path / "new" / "pictures"
        assert cli.main(["report", "--input", str(source), "--png", str(folder)]) == 0
        assert {path.name for path in folder.iterdir()} == {
            *(f"times-{name}.png" for name in ("dispatch", "combine", "pair", "by-rank")),
            *("waits-dispatch.png", "waits-combine.png"),
            *(f"sweep-{axis}.png" for axis in ("num-tokens", "hidden", "num-experts", "num-topk")),
        }
        for path in folder.iterdir():
            picture = Image.open(path).convert("RGB")
            assert picture.width > 600
            colours = {colour for _, colour in picture.getcolors(2**24)}
            assert (255, 255, 255) in colours  # not transparent: dark pages would hide the text
            assert not {(10, 11, number) for number in range(1, 7)} & colours
        assert f"pictures: {folder}" in capsys.readouterr().out

    def test_a_failed_run_has_no_pictures(self, tmp_path):
        source = self.write(tmp_path, make_report(correctness="failed: combine content, rank 0"))
        folder = tmp_path / "pictures"
        assert cli.main(["report", "--input", str(source), "--png", str(folder)]) == 0
        assert not folder.exists()

    def test_prints_all_kinds_and_the_sweep(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "120")
        source = self.write(tmp_path, make_report(parameters=FULL))
        ticket = tmp_path / "ticket.md"
        assert cli.main(["report", "--input", str(source), "--markdown", str(ticket)]) == 0
        out = capsys.readouterr().out
        for text in ("By hook, receive", "torch's all_to_all", "Sweep, medians", "is not bounded"):
            assert text in out
        lines = ticket.read_text().splitlines()
        assert sum(line.startswith("| By hook, ") for line in lines) == 2
        assert len([line for line in lines if line.startswith("| 16 | 256 | 64 | ")]) >= 4

    @pytest.mark.parametrize("option", ["--nvlink-gbps", "--nic-gbps"])
    def test_a_rate_that_is_none_is_refused(self, tmp_path, capsys, option):
        source = self.write(tmp_path, make_report())
        assert cli.main(["report", "--input", str(source), option, "0"]) == 2
        assert f"{option} must be positive, got 0" in capsys.readouterr().err

    def test_a_failed_run_is_rendered_too(self, tmp_path, capsys):
        source = self.write(tmp_path, make_report(correctness="failed: combine content, rank 0"))
        assert cli.main(["report", "--input", str(source)]) == 0
        assert "failed: combine content, rank 0" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("{", "is not JSON"),
            ("[]", "is not a benchmark report of schema version 3"),
            ('{"schema_version": 2}', "is not a benchmark report of schema version 3"),
            ('{"schema_version": 3}', "lacks 'run_id'"),
        ],
    )
    def test_what_is_no_report_is_named(self, tmp_path, capsys, text, sentence):
        path = tmp_path / "report.json"
        path.write_text(text)
        assert cli.main(["report", "--input", str(path)]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert str(path) in error

    def test_a_missing_file_is_named(self, tmp_path, capsys):
        assert cli.main(["report", "--input", str(tmp_path / "none.json")]) == 2
        assert "none.json: No such file" in capsys.readouterr().err
