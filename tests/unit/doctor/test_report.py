"""Findings as people and programs read them: for one host and for five hundred."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import (
    diagnose,
    hostrange,
    ibgda,
    page,
    report,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from cases import CASES
from cases.changes import environment, every, live, not_loaded, nvshmem_copy, unload, without
from findings import fleet_findings, host_findings
from hosts import Tree
from hypothesis import given
from hypothesis import strategies as st
from layouts import DEBIAN_12, UBUNTU_2204


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["gpu1"], "gpu1"),
        (["gpu2", "gpu1"], "gpu[1-2]"),
        (["gpu9", "gpu10", "gpu11"], "gpu[9-11]"),
        ([f"gpu{i:03d}" for i in range(1, 501)], "gpu[001-500]"),
        (["gpu098", "gpu099", "gpu100"], "gpu[098-100]"),
        (["a1.x", "a2.x", "a2.y"], "a[1-2].x, a2.y"),
        (["n1", "n3", "n4", "login"], "n[1,3-4], login"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2], r2n1"),
        (["gpu1", "gpu1"], "gpu1"),
    ],
)
def test_host_ranges(names, expected):
    assert hostrange.compact(names) == expected


NAMES = st.builds(
    lambda head, number, width, tail: f"{head}{number:0{width}d}{tail}",
    st.sampled_from(["gpu", "n", "rack1-"]),
    st.integers(0, 1200),
    st.sampled_from([0, 3, 4]),
    st.sampled_from(["", ".x"]),
)


def expand(text: str) -> set[str]:
    """The other way round, as a shell user would read a range."""
    names = set()
    for part in re.split(r", ", text) if text else ():
        match = re.match(r"^(.*)\[(.*)\](.*)$", part)
        if match is None:
            names.add(part)
            continue
        for item in match[2].split(","):
            low, _dash, high = item.partition("-")
            width = len(low) if low.startswith("0") else 0
            for number in range(int(low), int(high or low) + 1):
                names.add(f"{match[1]}{number:0{width}d}{match[3]}")
    return names


@given(st.lists(NAMES, max_size=40))
def test_a_range_names_the_hosts_and_no_others(names):
    assert expand(hostrange.compact(names)) == set(names)


def worst_host(tmp_path) -> list[dict]:
    """As many findings as one host can have at once, and a hostile value among them."""
    tree = Tree(DEBIAN_12)
    for item in CASES:
        if item.layout is DEBIAN_12 and item.rule not in ("EPD302", "EPD203"):
            item.fires(tree)
    tree.line("sys/module/gdrdrv/version", "2.4\x1b[31m" + "x" * 200)
    return diagnose.diagnose(facts.gather(str(tree.write(tmp_path))), tree.intent)


def test_one_host_in_eighty_columns(tmp_path):
    findings = worst_host(tmp_path)
    text = report.table(findings)
    assert len(findings) > 5
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    for item in findings:
        assert item["id"] in text
    assert text.splitlines()[-1].startswith(
        f"{sum(i['severity'] == 'error' for i in findings)} error"
    )


def test_five_hundred_hosts_in_eighty_columns_and_one_row_a_finding(tmp_path):
    one = host_findings(next(c for c in CASES if c.rule == "EPD101"), live("0", ""), tmp_path / "a")
    other = host_findings(
        next(c for c in CASES if c.rule == "EPD101"), live("1", ""), tmp_path / "b"
    )
    findings = []
    for number in range(1, 501):
        for item in one if number <= 480 else other:
            findings.append({**item, "hosts": [f"gpu{number:03d}"]})
    text = report.table(findings, 600)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) < 40
    assert text.splitlines()[0].startswith(
        "ERROR    EPD101   500 hosts  Driver options are written"
    )
    assert "hosts   gpu[001-500]" in text
    assert "on gpu[001-480]" in text.replace("\n          ", " ")
    assert text.splitlines()[-1] == "1 error on 500 of 600 hosts."


def test_colours_are_for_terminals_alone(tmp_path):
    findings = worst_host(tmp_path)
    assert "\033[31;1mERROR\033[0m" in report.table(findings, colour=True)
    assert "\033" not in report.table(findings)


def test_nothing_found():
    assert report.table([]) == "No findings on 1 host.\n"
    assert report.table([], 3) == "No findings on 3 hosts.\n"


def test_json_is_a_list_of_findings(tmp_path):
    findings = json.loads(report.as_json(worst_host(tmp_path)))
    assert {"id", "severity", "title", "evidence", "consequence", "fix"} <= set(findings[0])


class Checker(HTMLParser):
    """Counts what a self-contained page may not have, and that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.foreign: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "link", "br", "img"}:
            self.open.append(tag)
        self.foreign += [
            str(v) for k, v in attrs if k in ("src", "href") and not str(v).startswith("#")
        ]
        if tag in ("script", "link"):
            self.foreign.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_page_is_whole_and_needs_nothing_else(tmp_path, hosts):
    findings = worst_host(tmp_path)
    findings[0]["evidence"][0]["seen"] = "<script>alert(1)</script>"
    html = page.render(findings, hosts, "Findings")
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert checker.foreign == []
    assert "<script>" not in html
    for item in findings:
        assert f'id="{item["id"]}"' in html


def test_the_page_of_a_healthy_fleet():
    assert "Nothing is wrong" in page.render([], 3, "Findings")


def test_a_fleets_findings_name_their_hosts(tmp_path):
    case = next(item for item in CASES if item.rule == "EPD803")
    findings = fleet_findings(case, case.fires, tmp_path)
    assert "1 warning on 1 of 3 hosts." in report.table(findings, 3)


def ask(tmp_path, *changes, layout=UBUNTU_2204) -> ibgda.Answer:
    tree = Tree(layout)
    every(*changes)(tree)
    return ibgda.answer(facts.gather(str(tree.write(tmp_path))))


def test_ibgda_is_enabled_where_the_loaded_driver_has_the_override(tmp_path):
    support, reasons = ask(tmp_path, live(stream="0"))
    assert support == "enabled"
    assert reasons == ["the loaded driver has RegistryDwords PeerMappingOverride=1;"]


def test_ibgda_is_not_enabled_by_files_alone(tmp_path):
    support, reasons = ask(tmp_path, live(dwords=""))
    assert support == "cpu-assisted"
    assert "EPD101" in reasons[0]
    assert reasons[-1] == "GDRCopy is there (gdrdrv and libgdrapi)"


def test_ibgda_without_gdrcopy_takes_host_memory_where_nvshmem_can(tmp_path):
    support, reasons = ask(
        tmp_path, live(dwords=""), unload("gdrdrv"), without("dev/gdrdrv"), without("proc/devices")
    )
    assert support == "cpu-assisted"
    assert reasons[-1] == "NVSHMEM 3.4.5 or newer falls back to host memory"


def test_ibgda_needs_gdrcopy_with_an_older_nvshmem(tmp_path):
    support, reasons = ask(
        tmp_path, live(dwords=""), without("proc/devices"), nvshmem_copy("3.3.9")
    )
    assert support == "disabled"
    assert reasons[-1] == "NVSHMEM before 3.4.5 needs GDRCopy, which is not usable"


def test_ibgda_is_disabled_without_a_driver_or_device(tmp_path):
    assert ask(tmp_path / "a", not_loaded).support == "disabled"
    answer = ask(tmp_path / "b", without("sys/class/infiniband"))
    assert answer.support == "disabled"
    assert "EPD601" in answer.reasons[0]


def test_a_forced_handler_counts(tmp_path):
    support, reasons = ask(tmp_path, environment(NVSHMEM_IBGDA_NIC_HANDLER="cpu"))
    assert support == "cpu-assisted"
    assert "EPD514" in reasons[0]


def test_ibgda_of_an_empty_host(tmp_path):
    assert ibgda.answer(facts.gather(str(tmp_path))) == ("disabled", ["there is no NVIDIA GPU"])
