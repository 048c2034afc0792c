"""One sentence names the rank that failed first, not one of those that it took along."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_verdict import verdict

RUN = "run-1"
CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [192.0.2.2]:15785."
EXPIRED = "ep-bench: rank 0 on n1: stopped after --timeout 60 s; a peer is missing or stuck."


def rank(number, status="passed", run_id=RUN):
    return {"rank": number, "run_id": run_id, "status": status}


def failure(number, code=1, log=()):
    return {"rank": number, "exit_code": code, "log": list(log)}


def ended(state="passed", *, ranks=(), failures=(), why="", at=100.0, log=()):
    result = {
        "state": state,
        "why": why,
        "ended": at,
        "seconds": 1.0,
        "ranks": list(ranks),
        "failures": list(failures),
        "log": list(log),
    }
    return {"state": state, "result": result}


def passed(node):
    return ended(ranks=[rank(2 * node), rank(2 * node + 1)])


RUNNING = {"state": "running"}


def message(hosts, **more):
    answer = verdict(hosts, 2, RUN, **more)
    assert answer["state"] == "failed"
    return answer["message"]


def test_all_well():
    assert verdict({"n1": passed(0), "n2": passed(1)}, 2, RUN) == {"state": "passed", "message": ""}


def test_some_still_run():
    answer = verdict({"n1": passed(0), "n2": RUNNING, "n3": RUNNING}, 2, RUN)
    assert answer == {"state": "running", "message": "2 of 3 hosts still run (n2, n3)"}


def test_how_far_the_run_is_is_told():
    hosts = {"n1": {**RUNNING, "progress": "timing: 8 of 40 rounds"}, "n2": RUNNING}
    told = verdict(hosts, 2, RUN)["message"]
    assert told == "2 of 2 hosts still run (n1, n2): timing: 8 of 40 rounds"


SKIPPED = {"skipped": True, "changed": False}


def test_a_launcher_of_all_ranks_speaks_for_the_hosts_without_one():
    well = ended(ranks=[rank(number) for number in range(4)])
    assert verdict({"n1": well, "n2": SKIPPED}, 2, RUN)["state"] == "passed"
    broken = ended("failed", failures=[failure(3, -9)])
    assert message({"n1": broken, "n2": SKIPPED}) == (
        "The benchmark failed: rank 3 on n2 was ended by SIGKILL."
    )
    assert "rank 3 on n2 left no result" in message(
        {"n1": ended(ranks=[rank(number) for number in range(3)]), "n2": SKIPPED}
    )
    running = verdict({"n1": RUNNING, "n2": SKIPPED}, 2, RUN)
    assert running == {"state": "running", "message": "1 of 1 hosts still run (n1)"}


def test_a_failure_is_told_while_others_run():
    hosts = {"n1": RUNNING, "n2": ended("failed", failures=[failure(3, -9)])}
    assert message(hosts) == "The benchmark failed: rank 3 on n2 was ended by SIGKILL."


def test_a_launcher_that_never_ends_is_named():
    assert "launcher on n2 has not ended" in message({"n1": passed(0), "n2": RUNNING}, overdue_s=1)


@pytest.mark.parametrize(
    ("culprit", "words"),
    [
        (failure(3, -9), "rank 3 on n2 was ended by SIGKILL. (n1, n3 failed with it.)"),
        (failure(3, 1, ["boom"]), "rank 3 on n2 failed with exit code 1. (n1, n3 failed"),
        (failure(2, None, ["boom"]), "rank 2 on n2 failed. (n1, n3 failed"),
        (failure(2, -77, ["boom"]), "rank 2 on n2 was ended by signal 77."),
    ],
)
def test_the_cause_wins_over_its_victims_even_when_it_is_noticed_last(culprit, words):
    hosts = {
        "n1": ended("failed", failures=[failure(0, 1, [CLOSED])], at=1.0),
        "n2": ended("failed", failures=[culprit], at=9.0),
        "n3": ended("failed", failures=[failure(5, 1, [CLOSED])], at=2.0),
    }
    assert words in message(hosts)


def test_source_in_a_traceback_is_no_message():
    """A rank that raised by itself was taken for a victim, since the call had a `timeout`."""
    raised = [
        "Traceback (most recent call last):",
        '    dist.init_process_group("gloo", timeout=timeout)',
        "RuntimeError: Unable to find address for: nowhere0",
    ]
    hosts = {
        "n1": ended("stopped", why="the play ended the run"),
        "n2": ended("failed", failures=[failure(2, 3, raised)]),
    }
    assert message(hosts).startswith("The benchmark failed: rank 2 on n2 failed with exit code 3.")


def test_among_causes_the_first_in_time_wins():
    hosts = {
        "n1": ended("failed", failures=[failure(0, 1, ["a"])], at=5.0),
        "n2": ended("failed", failures=[failure(2, 1, ["b"])], at=4.0),
    }
    assert message(hosts).endswith("The end of its log:\nb")


def test_a_silent_rank_is_named_when_all_others_waited_for_it():
    expired = [rank(number, f"failed: {EXPIRED}") for number in range(4)]
    hosts = {
        "n1": ended("failed", ranks=expired[:2], failures=[failure(0, 124, [EXPIRED])]),
        "n2": ended("failed", ranks=expired[2:3], failures=[failure(2, 124, [EXPIRED])]),
    }
    text = message(hosts)
    assert text.startswith("The benchmark failed: rank 3 on n2 did not get anywhere")
    assert "while rank 0 on n1 failed with exit code 124" in text


def test_the_rank_that_others_waited_for_is_named():
    waited = "EPTimeoutError: rank 0: combine receive waited 40093565 us for rank 3."
    hosts = {
        "n1": ended("failed", failures=[failure(0, 3, [waited]), failure(1, 3, [CLOSED])]),
        "n2": ended("stopped", why="the play ended the run"),
    }
    text = message(hosts)
    assert text.startswith("The benchmark failed: rank 3 on n2 did not get anywhere")
    assert text.endswith(waited)


def test_an_unreachable_host_comes_first():
    hosts = {
        "n1": ended("failed", failures=[failure(0, 1, ["boom"])]),
        "n2": {"unreachable": True, "msg": "Failed to connect to the host via ssh"},
    }
    assert "n2 (ranks 2 to 3) became unreachable: Failed to connect" in message(hosts)


def test_a_lost_launcher_is_named():
    hosts = {"n1": passed(0), "n2": {"failed": True, "msg": "the launcher has gone"}}
    assert "n2 (ranks 2 to 3) did not say how its ranks are: the launcher has gone" in message(
        hosts
    )


def test_a_host_that_cannot_reach_the_first_is_named_before_those_that_waited_for_it():
    hosts = {
        "n1": ended("stopped", why="the play ended the run"),
        "n2": ended("unmet", why="10.0.0.1:29517 (the first host) did not answer", at=200.0),
    }
    assert message(hosts).startswith("The benchmark failed: n2 (ranks 2 to 3): 10.0.0.1:29517")


def test_a_missing_result_is_a_failure_and_not_a_smaller_sample():
    assert "rank 3 on n2 left no result" in message({"n1": passed(0), "n2": ended(ranks=[rank(2)])})


def test_a_result_of_another_run_is_refused():
    hosts = {"n1": ended(ranks=[rank(0), rank(1, run_id="run-0")])}
    assert "n1 holds the result of another run (run-0)" in message(hosts)


def test_a_rank_that_did_not_pass_is_named():
    hosts = {"n1": ended(ranks=[rank(0), rank(1, "failed: wrong sum")])}
    assert message(hosts) == "rank 1 on n1: failed: wrong sum."


def test_many_failed_hosts_do_not_fill_the_screen():
    hosts = {f"n{i:03}": ended("failed", failures=[failure(2 * i)], at=i) for i in range(1000)}
    assert len(message(hosts)) < 200


def test_a_known_message_of_the_log_is_explained():
    log = ["ibgda.cpp 2917 GPU cannot map UAR of device mlx5_0. Skipping...", CLOSED]
    hosts = {"n1": ended("failed", failures=[failure(0, log=log)]), "n2": passed(1)}
    explained = message(hosts).splitlines()[-1]
    assert explained.startswith("[EPL104] The GPU may not map the NIC's doorbell.")
    assert "nvidia_driver" in explained
