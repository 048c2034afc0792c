"""Settings from the environment, and the variables that a buffer sets for NVSHMEM."""

from __future__ import annotations

import logging
import os
import re

import pytest
from ep_runtime import _core, environment


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that monkeypatch also takes away what the tested code sets.
    for name in [*NVSHMEM, "NVSHMEM_DISABLE_MNNVL", environment.TIMEOUT_VARIABLE]:
        monkeypatch.setenv(name, "?")
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "_set_here", {})


NVSHMEM = {
    "NVSHMEM_DISABLE_P2P": "0",
    "NVSHMEM_IB_ENABLE_IBGDA": "1",
    "NVSHMEM_IBGDA_NUM_RC_PER_PE": "4",
    "NVSHMEM_QP_DEPTH": "1024",
    "NVSHMEM_MAX_TEAMS": "7",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_CUMEM_GRANULARITY": "536870912",
}


def decide(
    allow_nvlink: bool = True, allow_mnnvl: bool = True, num_qps_per_rank: int = 4
) -> environment.NvshmemEnvironment:
    decided = environment.apply_nvshmem_environment(
        num_qps_per_rank=num_qps_per_rank, allow_nvlink=allow_nvlink, allow_mnnvl=allow_mnnvl
    )
    assert os.environ["NVSHMEM_QP_DEPTH"] == str(decided.depth)
    return decided


def apply(allow_nvlink: bool = True, allow_mnnvl: bool = True) -> dict[str, tuple[object, str]]:
    changes = decide(allow_nvlink, allow_mnnvl).changes
    return {change.name: (change.before, change.after) for change in changes}


def test_sets_all_variables_and_says_so() -> None:
    assert apply() == {name: (None, value) for name, value in NVSHMEM.items()}
    assert {name: os.environ[name] for name in NVSHMEM} == NVSHMEM
    assert "NVSHMEM_DISABLE_MNNVL" not in os.environ
    assert apply() == {}


def test_what_may_not_be_used() -> None:
    changes = apply(allow_nvlink=False, allow_mnnvl=False)
    assert changes["NVSHMEM_DISABLE_P2P"] == (None, "1")
    assert changes["NVSHMEM_DISABLE_MNNVL"] == (None, "1")


def test_what_the_user_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {
        "NVSHMEM_MAX_TEAMS": "128",
        "NVSHMEM_QP_DEPTH": "2048",
        "NVSHMEM_IBGDA_NUM_RC_PER_PE": "8",
        "NVSHMEM_DISABLE_P2P": "false",
    }
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    decided = decide()
    assert decided.contradictions == ()
    assert not users.keys() & {change.name for change in decided.changes}
    assert {name: os.environ[name] for name in users} == users


def test_what_an_earlier_buffer_set_is_not_the_users() -> None:
    decide(num_qps_per_rank=32)
    decided = decide(num_qps_per_rank=4, allow_nvlink=False)
    assert decided.contradictions == ()
    changes = {change.name: (change.before, change.after) for change in decided.changes}
    assert changes["NVSHMEM_IBGDA_NUM_RC_PER_PE"] == ("32", "4")
    assert changes["NVSHMEM_DISABLE_P2P"] == ("0", "1")


@pytest.mark.parametrize(
    ("name", "value", "allow_nvlink", "sentence"),
    [
        ("NVSHMEM_DISABLE_P2P", "1", True, "is '1' .* allow_nvlink.*=True needs '0': unset one"),
        ("NVSHMEM_DISABLE_P2P", "no", False, "is 'no' .* allow_nvlink.*=False needs '1'"),
        ("NVSHMEM_IB_ENABLE_IBGDA", "0", True, "post RDMA themselves, which needs '1': unset it"),
        ("NVSHMEM_IBGDA_NUM_RC_PER_PE", "2", True, "num_qps_per_rank=4 needs at least as many"),
    ],
)
def test_contradictions_are_one_sentence_each(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, allow_nvlink: bool, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    (found,) = decide(allow_nvlink).contradictions
    assert found.startswith(name)
    assert re.search(sentence, found)
    assert os.environ[name] == value


def test_shallow_queue_is_raised_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSHMEM_QP_DEPTH", "256")
    with pytest.warns(UserWarning, match="NVSHMEM_QP_DEPTH was 256 and is raised to 1024"):
        changes = apply()
    assert changes["NVSHMEM_QP_DEPTH"] == ("256", "1024")


@pytest.mark.parametrize("text", ["deep", "0", "-1", "32769"])
def test_impossible_depth_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NVSHMEM_QP_DEPTH", text)
    with pytest.raises(ValueError, match=f"NVSHMEM_QP_DEPTH must be .* got '{text}'"):
        apply()


def test_queue_pairs_that_do_not_suffice(caplog: pytest.LogCaptureFixture) -> None:
    deep = _core.low_latency_layout(512, 128, 1, 8)
    many = _core.low_latency_layout(128, 128, 1, 8)
    pairs = environment.QueuePairs(per_rank=8, depth=1024)
    assert pairs.problem(many) is None
    with pytest.raises(AssertionError, match=r"is 1024, but .*=512 needs 2 \* .* = 1026"):
        pairs.check(deep, rdma_peers=True)
    with caplog.at_level(logging.WARNING):
        pairs.check(deep, rdma_peers=False)
        pairs.check(deep, rdma_peers=False)
    assert len(caplog.records) == 1
    few = environment.QueuePairs(per_rank=4, depth=1024)
    with pytest.raises(AssertionError, match="num_qps_per_rank is 4, but each of the 8 experts"):
        few.check(many, rdma_peers=True)


def setting(value: object) -> int:
    name = environment.TIMEOUT_VARIABLE
    return environment.integer_setting("timeout_us", value, name, default=7, least=1)


def test_argument_wins_over_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting(None) == 7
    monkeypatch.setenv(environment.TIMEOUT_VARIABLE, "5")
    assert setting(None) == 5
    assert setting(3) == 3


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_bad_argument_is_named(value: object) -> None:
    with pytest.raises(ValueError, match="timeout_us must be an integer >= 1"):
        setting(value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon"])
def test_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(environment.TIMEOUT_VARIABLE, text)
    with pytest.raises(ValueError, match=f"EP_RUNTIME_TIMEOUT_US must be .* got '{text}'"):
        setting(None)
