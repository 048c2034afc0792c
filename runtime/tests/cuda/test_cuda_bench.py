"""The benchmark on a GPU: every kind of time is measured, and in the order that must hold."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("options", [[], ["--dtype=bf16", "--combine-dtype=logfmt"]])
def test_all_kinds_of_time(tmp_path: Path, options: list[str]) -> None:
    output = tmp_path / "report.json"
    command = [
        *[sys.executable, "-m", "ep_runtime.bench", "low-latency", "--backend=peer", "--full"],
        *["--num-experts=32", "--sweep=num-tokens=1,64", "--timeout=200", *options],
        *["--output", str(output)],
    ]
    subprocess.run(command, check=True, timeout=300)
    report = json.loads(output.read_text())
    assert report["correctness"] == "passed"
    times = report["times"]
    for name in ("dispatch", "combine", "pair"):
        kernel, device, host = (
            times[kind]["figures"][name]["p50_us"]
            for kind in ("kernel", "back_to_back", "end_to_end")
        )
        # Some noise, since they are taken one after another.
        assert 0 < kernel <= 1.1 * device
        assert device <= 1.1 * host
    assert all(figures["p50_us"] > 0 for figures in times["hook"]["figures"].values())
    assert report["all_to_all"]["figures"]["pair"]["p50_us"] > 0
    small, large = (point["pair"]["p50_us"] for point in report["sweep"])
    assert small < large
