# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""From what every host says of a run to one sentence about the whole run.

When one rank dies, its peers fail too, and often sooner than their launchers notice. So the
culprit is looked for among the failures that no peer can have caused, and only then by time.
"""

from __future__ import annotations

import re
import signal
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.logs import explain
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.model import ERROR

# What gloo, torch's store and the benchmark say when somebody else has gone or does not come.
_CAUSED_BY_A_PEER = re.compile(
    r"closed by peer|reset by peer|Connection refused|Broken pipe|Connection was likely closed"
    r"|a peer is missing or stuck|lost the connection to rank|[Tt]imed out|[Tt]imeout"
    r"|DistNetworkError|DistStoreError"
)

# The runtime's own words, which name the peer that did not come.
_WAITED_FOR = re.compile(r"waited \d+ us for rank (?P<rank>\d+)")

# Messages of victims: waited for a rank, lost a peer. The verdict itself says whose fault that is.
_TOLD_ALREADY = frozenset({"EPL306", "EPL607"})

# Causes come first: unreachable, broken by itself, never met, waited in vain, ended by us.
_ORDER_OF_VICTIMS = 3
_ORDER_OF_ENDED = 4
_FEW = 4

RUNNING, PASSED, FAILED = "running", "passed", "failed"


def verdict(
    hosts: dict[str, dict[str, Any]], ranks_per_host: int, run_id: str, overdue_s: float = 0.0
) -> dict[str, Any]:
    """Return ``state`` and ``message`` of a run.

    ``hosts`` maps each host of the run, in rank order, to what ``ep_benchmark_status`` last
    returned for it (or what Ansible did in its place, for an unreachable host). A positive
    ``overdue_s`` says for how long an answer is overdue: then nothing counts as running.
    """
    culprits = [item for name, status in hosts.items() for item in _complaints(name, status)]
    if culprits:
        suspects = _awaited_ranks(hosts, culprits, ranks_per_host)
        suspects = suspects or _silent_ranks(hosts, ranks_per_host)
        return {"state": FAILED, "message": _blame(culprits, suspects)}
    running = [name for name, status in hosts.items() if status.get("state") == RUNNING]
    if running and overdue_s <= 0:
        return {"state": RUNNING, "message": _progress(hosts, running)}
    if running:
        names = ", ".join(running)
        return {
            "state": FAILED,
            "message": f"The launcher on {names} has not ended although its time is over.",
        }
    problem = _incomplete(hosts, ranks_per_host, run_id)
    return {"state": FAILED if problem else PASSED, "message": problem}


def _progress(hosts: dict[str, dict[str, Any]], running: list[str]) -> str:
    return f"{len(running)} of {len(hosts)} hosts still run ({_some(running)})"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")


def _complaints(name: str, status: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with one host's part, as candidates for the cause."""
    if status.get("unreachable"):
        what = f"{name} became unreachable: {status.get('msg', 'no connection')}"
        return [{"host": name, "order": 0, "ended": 0.0, "what": what, "log": []}]
    if status.get("failed"):
        what = f"{name} did not say how its ranks are: {status.get('msg', 'no reason')}"
        return [{"host": name, "order": 1, "ended": 0.0, "what": what, "log": []}]
    state = str(status.get("state"))
    if state in (RUNNING, PASSED):
        return []
    result = status["result"]
    ended = float(result["ended"])
    if state == FAILED and result["failures"]:
        return [_failed_rank(name, item, ended) for item in result["failures"]]
    order = {"timeout": _ORDER_OF_VICTIMS, "unmet": 2, "stopped": _ORDER_OF_ENDED}.get(state, 1)
    what = f"{name}: {result['why']}"
    found = [{"host": name, "order": order, "ended": ended, "what": what, "log": result["log"]}]
    return found + [_failed_rank(name, item, ended) for item in result["failures"]]


def _failed_rank(name: str, failure: dict[str, Any], ended: float) -> dict[str, Any]:
    caused = any(_CAUSED_BY_A_PEER.search(line) for line in failure["log"])
    what = f"rank {failure['rank']} on {name} {_how(failure['exit_code'])}"
    return {
        "host": name,
        "order": _ORDER_OF_VICTIMS if caused else 1,
        "ended": ended,
        "what": what,
        "log": failure["log"],
        "rank": failure["rank"],
    }


def _how(code: int | None) -> str:
    if code is None:
        return "failed"
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _awaited_ranks(
    hosts: dict[str, dict[str, Any]], culprits: list[dict[str, Any]], ranks_per_host: int
) -> list[str]:
    """The ranks that others waited for in vain and that did not themselves wait for others."""
    names = list(hosts)
    awaited = {
        int(match.group("rank"))
        for item in culprits
        for match in map(_WAITED_FOR.search, item["log"])
        if match is not None
    }
    awaited -= {item["rank"] for item in culprits if "rank" in item}
    return [
        f"rank {rank} on {names[rank // ranks_per_host]}"
        for rank in sorted(awaited)
        if rank < len(names) * ranks_per_host
    ]


def _silent_ranks(hosts: dict[str, dict[str, Any]], ranks_per_host: int) -> list[str]:
    """The ranks that neither ended well nor said why not; known when every host has ended."""
    silent = []
    for node, (name, status) in enumerate(hosts.items()):
        result = status.get("result")
        if result is None:
            return []
        heard = {item["rank"] for item in result["ranks"] + result["failures"]}
        first = node * ranks_per_host
        wanted = range(first, first + ranks_per_host)
        silent += [f"rank {rank} on {name}" for rank in wanted if rank not in heard]
    return silent


def _blame(culprits: list[dict[str, Any]], suspects: list[str]) -> str:
    first = min(culprits, key=lambda item: (item["order"], item["ended"]))
    failed = {item["host"] for item in culprits if item["order"] < _ORDER_OF_ENDED}
    others = sorted(failed - {first["host"]})
    message = f"The benchmark failed: {first['what']}."
    if first["order"] >= _ORDER_OF_VICTIMS and 0 < len(suspects) <= _FEW:
        message = (
            f"The benchmark failed: {', '.join(suspects)} did not get anywhere and gave no reason "
            f"(stuck or stopped?), while {first['what']}."
        )
    elif others:
        message += f" ({_some(others)} failed with it.)"
    if first["log"]:
        message += "\nThe end of its log:\n" + "\n".join(first["log"])
        message += _explained(first["log"])
    return message


def _explained(log: list[str]) -> str:
    """What the log's own messages mean, where they are known."""
    errors = [
        item
        for item in explain(log, "log")
        if item["severity"] == ERROR and item["id"] not in _TOLD_ALREADY
    ]
    return "".join(
        f"\n[{item['id']}] {item['title']}. {item['consequence']} {item['fix']}"
        for item in errors[:_FEW]
    )


def _incomplete(hosts: dict[str, dict[str, Any]], ranks_per_host: int, run_id: str) -> str:
    """Say what is missing of a run that ended well on every host; empty when nothing is."""
    for node, (name, status) in enumerate(hosts.items()):
        wanted = set(range(node * ranks_per_host, (node + 1) * ranks_per_host))
        results = status["result"]["ranks"]
        foreign = [item for item in results if item["run_id"] != run_id]
        missing = wanted - {item["rank"] for item in results}
        unwell = [item for item in results if item["status"] != "passed"]
        if foreign:
            return f"{name} holds the result of another run ({foreign[0]['run_id']})."
        if missing:
            return f"rank {min(missing)} on {name} left no result."
        if unwell:
            return f"rank {unwell[0]['rank']} on {name}: {unwell[0]['status']}."
    return ""
