"""Every message is found by its own line, and by no other; ordinary lines are no messages."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import (
    logs,
    model,
    rules,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.logs import message
from hypothesis import given
from hypothesis import strategies as st

LINES = [
    line.split("\t", 1)
    for line in (Path(__file__).parent / "log_lines.txt").read_text().splitlines()
]
# One line that two programs' messages are both in.
ALSO = {
    "misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed": {"EPL115"},
    "fatal error: cuda/std/tuple": set(),
}
ORDINARY = """\
INFO 11-30 12:00:01 [core.py:64] Initializing a V1 LLM engine
INFO 11-30 12:00:02 [deepep_ll.py:88] Using DeepEPLLPrepareAndFinalize
[2026-11-30 12:00:03] Warmup: 128 tokens, hidden 7168, 8 ranks
n1:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB
n1:99 [0] NCCL INFO Using network IB
NVSHMEM INFO NVSHMEM_QP_DEPTH = 1024
NVSHMEM INFO PE 0 of 16, mype_node 0
[ 3.2] nvidia: loading out-of-tree module taints kernel.
[ 9.1] nvidia_peermem: module loaded
Loading checkpoint: 100% 12/12, connection to the store is open
x.size(0) is 128 and num_experts is 256
DeepEP initialized with NCCL version: 2.30.4 (loaded library)
"""


def found(text: str) -> list[dict]:
    return message.explain(io.StringIO(text), "log")


@pytest.mark.parametrize(("identity", "line"), LINES)
def test_a_line_gives_its_message_and_no_other(identity, line):
    also = next((ids for part, ids in ALSO.items() if part in line), set())
    findings = found(line + "\n")
    assert {item["id"] for item in findings} == {identity, *also}
    assert findings[0]["evidence"][0]["where"] == "log:1"


@pytest.mark.parametrize("declared", message.MESSAGES.values(), ids=lambda item: item.id)
def test_every_text_of_a_message_has_a_line(declared):
    lines = [line for identity, line in LINES if identity == declared.id]
    for text in declared.texts:
        pattern = message.text_pattern(text)
        assert any(pattern.search(line) for line in lines), text


@pytest.mark.parametrize("declared", message.MESSAGES.values(), ids=lambda item: item.id)
def test_a_message_leads_to_rules_that_exist(declared):
    assert rules.SUBJECTS
    assert set(declared.rules) <= set(model.RULES)
    assert declared.severity in model.SEVERITIES
    assert declared.subject in {module.__name__.rsplit(".", 1)[-1] for module in logs.SUBJECTS}


def test_ordinary_lines_are_no_messages():
    assert found(ORDINARY) == []


def test_errors_come_first_and_repeated_lines_are_counted():
    text = "NIC handler will be GPU.\n" + "\n".join(
        f"DeepEP timeout for barrier, rank {r}, dst_rank 9" for r in range(8)
    )
    findings = found(text)
    assert [item["id"] for item in findings] == ["EPL301", "EPL101"]
    assert [item["where"] for item in findings[0]["evidence"]] == ["log:2", "log:3", "log:4", "log"]
    assert findings[0]["evidence"][3]["seen"] == "5 more such lines"


@given(st.text(max_size=300))
def test_no_text_gives_a_traceback(text):
    found(text)


def test_a_large_log_is_read_in_reasonable_time():
    line = (
        "2026-11-30 12:00:00 INFO worker 3 step 17 tokens 4096 latency 41.2 us DeepEP dispatch ok\n"
    )
    assert found(line * 20000) == []
