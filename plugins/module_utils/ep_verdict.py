# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""From what every host says of a run to one sentence about the whole run.

When one rank dies, its peers fail too, and often sooner than their launchers notice. So the
culprit is looked for among the failures that no peer can have caused, and only then by time.
"""

from __future__ import annotations

import re
import signal
from typing import Any, NamedTuple

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


class _Run(NamedTuple):
    """The hosts of a run, in rank order."""

    hosts: list[str]
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.ranks_per_host

    def host_of(self, rank: int) -> str:
        return self.hosts[rank // self.ranks_per_host]

    def name_of(self, rank: int) -> str:
        return f"rank {rank} on {self.host_of(rank)}"

    def with_ranks(self, host: str) -> str:
        first = self.hosts.index(host) * self.ranks_per_host
        last = first + self.ranks_per_host - 1
        return f"{host} (rank {first})" if first == last else f"{host} (ranks {first} to {last})"


def verdict(
    hosts: dict[str, dict[str, Any]], ranks_per_host: int, run_id: str, overdue_s: float = 0.0
) -> dict[str, Any]:
    """Return ``state`` and ``message`` of a run.

    ``hosts`` maps each host of the run, in rank order, to what ``ep_benchmark_status`` last
    returned for it (or what Ansible did in its place, for an unreachable host; it skips hosts whose
    ranks are started from the first one). A positive ``overdue_s`` says for how long an answer is
    overdue: then nothing counts as running.
    """
    run = _Run(list(hosts), ranks_per_host)
    hosts = {name: status for name, status in hosts.items() if not status.get("skipped")}
    culprits = [item for name, status in hosts.items() for item in _complaints(run, name, status)]
    if culprits:
        suspects = _awaited_ranks(run, culprits) or _silent_ranks(run, hosts)
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
    problem = _incomplete(run, hosts, run_id)
    return {"state": FAILED if problem else PASSED, "message": problem}


def _progress(hosts: dict[str, dict[str, Any]], running: list[str]) -> str:
    told = [str(status["progress"]) for status in hosts.values() if status.get("progress")]
    where = f": {told[0]}" if told else ""
    return f"{len(running)} of {len(hosts)} hosts still run ({_some(running)}){where}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")


def _complaints(run: _Run, name: str, status: dict[str, Any]) -> list[dict[str, Any]]:
    """What is wrong with one host's part, as candidates for the cause."""
    if status.get("unreachable"):
        what = f"{run.with_ranks(name)} became unreachable: {status.get('msg', 'no connection')}"
        return [{"host": name, "order": 0, "ended": 0.0, "what": what, "log": []}]
    if status.get("failed"):
        why = status.get("msg", "no reason")
        what = f"{run.with_ranks(name)} did not say how its ranks are: {why}"
        return [{"host": name, "order": 1, "ended": 0.0, "what": what, "log": []}]
    state = str(status.get("state"))
    if state in (RUNNING, PASSED):
        return []
    result = status["result"]
    ended = float(result["ended"])
    if state == FAILED and result["failures"]:
        return [_failed_rank(run, item, ended) for item in result["failures"]]
    order = {"timeout": _ORDER_OF_VICTIMS, "unmet": 2, "stopped": _ORDER_OF_ENDED}.get(state, 1)
    what = f"{run.with_ranks(name)}: {result['why']}"
    found = [{"host": name, "order": order, "ended": ended, "what": what, "log": result["log"]}]
    return found + [_failed_rank(run, item, ended) for item in result["failures"]]


def _failed_rank(run: _Run, failure: dict[str, Any], ended: float) -> dict[str, Any]:
    name = run.host_of(failure["rank"])
    # What a traceback quotes of the source, indented, is no message: most calls have a timeout.
    messages = [line for line in failure["log"] if not line.startswith(" ")]
    caused = any(_CAUSED_BY_A_PEER.search(line) for line in messages)
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


def _awaited_ranks(run: _Run, culprits: list[dict[str, Any]]) -> list[str]:
    """The ranks that others waited for in vain and that did not themselves wait for others."""
    awaited = {
        int(match.group("rank"))
        for item in culprits
        for match in map(_WAITED_FOR.search, item["log"])
        if match is not None
    }
    awaited -= {item["rank"] for item in culprits if "rank" in item}
    return [run.name_of(rank) for rank in sorted(awaited) if rank < run.ranks]


def _silent_ranks(run: _Run, hosts: dict[str, dict[str, Any]]) -> list[str]:
    """The ranks that neither ended well nor said why not; known when every host has ended."""
    results = [status.get("result") for status in hosts.values()]
    if None in results:
        return []
    heard = {item["rank"] for result in results for item in result["ranks"] + result["failures"]}
    return [run.name_of(rank) for rank in range(run.ranks) if rank not in heard]


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


def _incomplete(run: _Run, hosts: dict[str, dict[str, Any]], run_id: str) -> str:
    """Say what is missing of a run that ended well on every host; empty when nothing is."""
    results = {
        item["rank"]: item for status in hosts.values() for item in status["result"]["ranks"]
    }
    for rank in range(run.ranks):
        result = results.get(rank)
        if result is None:
            return f"{run.name_of(rank)} left no result."
        if result["run_id"] != run_id:
            host = run.host_of(rank)
            return f"{host} holds the result of another run ({result['run_id']})."
        if result["status"] != "passed":
            return f"{run.name_of(rank)}: {result['status']}."
    return ""
