"""Ways to slow a part of a fleet down on purpose, and what may then be said of it.

Shared by ``slow_fleet.py`` (made hosts in one machine) and ``scripts/slow_fleet`` (systemd hosts).
"""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

HEALTHY, SLEEPING, LATE = "healthy", "sleeping sender", "late rank"
SLOW_LINK, STARVED = "slow link", "starved host"

# What each case may be called. A starved host is slow in all that it does, so all but a bad link.
CASES = {
    HEALTHY: set(),
    SLEEPING: {"sender"},
    LATE: {"late"},
    SLOW_LINK: {"link"},
    STARVED: {"sender", "receiver", "late"},
}

TBF = "tbf rate 12mbit burst 16kb latency 5s"
SLEEP_S = 0.2


def slow_down(case: str) -> None:
    """Make this process, a rank, what ``case`` says; nothing for the cases of whole hosts."""
    if case == SLEEPING:
        from ep_runtime import Buffer

        dispatch = Buffer.low_latency_dispatch

        def late_dispatch(self, *args, **kwargs):
            time.sleep(SLEEP_S)
            return dispatch(self, *args, **kwargs)

        Buffer.low_latency_dispatch = late_dispatch
    elif case == LATE:
        from ep_runtime.bench import measure

        # Of the three times taken around a call the first is before the barrier.
        clock, calls = time.perf_counter_ns, itertools.count()

        def late_clock() -> int:
            if next(calls) % 3 == 0:
                time.sleep(SLEEP_S)
            return clock()

        measure.time = SimpleNamespace(perf_counter_ns=late_clock)


def complaint(case: str, report: dict, slow_host: str) -> str:
    """What is wrong with the verdict of ``report``; empty when it is right."""
    found = report["culprits"]
    told = "; ".join(f"{item['what']} {item['evidence']}" for item in found) or "nobody"
    if report["correctness"] != "passed":
        return report["correctness"]
    if case == HEALTHY:
        return f"named {told}" if found else ""
    hosts = {host for item in found for host in item["hosts"]}
    if hosts != {slow_host} or found[0]["kind"] not in CASES[case]:
        return f"named {told}"
    return ""
