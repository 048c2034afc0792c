"""Runs a round with real processes and says what was not as it must be."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from faults.crew import Crew
from faults.plan import HARMLESS, KILLS, STEPS, Plan

if TYPE_CHECKING:
    from faults.scenario import Outcome

# A step may wait for one timeout, a clean for two. The rest is for machines that are busy.
SLACK_S = 10.0
LINGER_S = 10.0  # a destroyed buffer gives its peers so long to fetch what it sent


@dataclass
class Result:
    """What came of a round. ``waits_s``: the longest step of each rank that met the fault."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    wrong: int = 0
    hung: int = 0
    healthy_masked: int = 0  # ranks that some other rank masked, beside the victim
    waits_s: list[float] = field(default_factory=list)


def run_round(plan: Plan, env: dict[str, str]) -> Result:
    """Start ``plan.size`` processes, let the fault happen, and judge what they say.

    Then the ranks that are left, with a new one in place of one that was to be restarted, create
    a buffer again, which must be as good as any.
    """
    result = Result(plan)
    crew = Crew(plan.size, env)
    try:
        crew.meet("first")
        outcomes = _take_part(crew, plan, result)
        for rank, outcome in outcomes.items():
            _judge(result, outcome, [outcomes[other] for other in outcomes if other != rank])
        if result.problems or plan.fault == "kill":
            return result
        if plan.fault == "restart":
            crew.replace(plan.victim)
            crew.meet("again")
        again = replace(plan, fault="none")
        for outcome in _take_part(crew, again, result).values():
            if outcome.error or outcome.unnamed or outcome.wrong or outcome.masked:
                result.problems.append(f"created again: {outcome}")
    finally:
        crew.close()
    return result


def _take_part(crew: Crew, plan: Plan, result: Result) -> dict[int, Outcome]:
    """Let all ranks go through the round; adds who gave no answer to the result."""
    for rank in range(plan.size):
        crew.tell(rank, "take_part", plan=plan)
    # The worst there is: a wait in every step, and a late destroy.
    limit_s = 10 * plan.timeout_s + LINGER_S + 60
    outcomes: dict[int, Outcome] = {}
    order = [rank for rank in range(plan.size) if rank != plan.victim] + [plan.victim]
    deadline = time.monotonic() + limit_s
    for rank in order:
        if rank == plan.victim and plan.fault == "stop":
            crew.wake(rank)
            deadline = time.monotonic() + limit_s
        good, answer = crew.answer(rank, deadline)
        if rank == plan.victim and plan.fault in KILLS:
            if good or answer != "ended":
                result.problems.append(f"the fault did not happen: rank {rank}: {answer}")
        elif good:
            outcomes[rank] = answer
        else:
            result.hung += answer == "no answer"
            result.problems.append(f"rank {rank}: {answer}")
    return outcomes


def _judge(result: Result, outcome: Outcome, others: list[Outcome]) -> None:
    plan, who = result.plan, f"rank {outcome.rank}"
    is_victim = outcome.rank == plan.victim
    if outcome.wrong:
        result.wrong += 1
        result.problems.append(f"{who}: wrong data: {outcome.wrong}")
    if outcome.unnamed:
        result.problems.append(f"{who}: not an EPError: {outcome.unnamed}")
    for step, seconds in outcome.seconds.items():
        if step == "destroy" or is_victim:
            continue
        waits = 2 if step == "clean" else 1
        if seconds > waits * plan.timeout_s + SLACK_S:
            result.problems.append(f"{who}: {step} took {seconds:.1f} s")
    if outcome.seconds.get("destroy", 0) > LINGER_S + SLACK_S + 3 * plan.timeout_s * is_victim:
        result.problems.append(f"{who}: destroy took {outcome.seconds['destroy']:.1f} s")
    if not is_victim:
        if outcome.error or outcome.masked:
            waits = [took for step, took in outcome.seconds.items() if step != "destroy"]
            result.waits_s.append(max(waits))
        _judge_survivor(result, outcome, others)


def _judge_survivor(result: Result, outcome: Outcome, others: list[Outcome]) -> None:
    plan, who = result.plan, f"rank {outcome.rank}"
    if outcome.error:
        _judge_error(result, outcome, others)
    # The last rows of a rank that is done may not be fetched yet when its process ends or stops.
    too_late = plan.step == "destroy" and plan.fault not in (*KILLS, "stop")
    if plan.fault in HARMLESS or too_late:
        if outcome.error or outcome.masked:
            result.problems.append(f"{who}: {outcome.error or f'masked {outcome.masked}'}")
        return
    healthy = [rank for rank in outcome.masked if rank != plan.victim]
    result.healthy_masked += len(healthy)
    # Where only some ranks were struck, those arrive late at the others, which may mask them, too.
    if healthy and not plan.within and plan.fault != "drop":
        result.problems.append(f"{who}: masked {outcome.masked}")
    if plan.fault == "drop" or plan.step == "destroy":
        return  # not all ranks are to notice
    if plan.shrink and plan.step != "create":
        if outcome.error:
            result.problems.append(f"{who}: did not go on: {outcome.error}")
        elif plan.victim not in outcome.masked:
            result.problems.append(f"{who}: masked {outcome.masked}")
    elif not outcome.error:
        result.problems.append(f"{who}: saw nothing")


def _judge_error(result: Result, outcome: Outcome, others: list[Outcome]) -> None:
    """It must name the victim, or a rank that gave up because of it, and a phase."""
    plan, who = result.plan, f"rank {outcome.rank}"
    gave_up = {other.rank for other in others if other.error}
    if outcome.peer not in {plan.victim, *gave_up}:
        result.problems.append(f"{who}: names rank {outcome.peer}: {outcome.error}")
    if outcome.phase not in {*STEPS, "clean receive", "clean send"}:
        result.problems.append(f"{who}: names no phase: {outcome.error}")
    if f"rank {outcome.peer}" not in outcome.error or outcome.phase not in outcome.error:
        result.problems.append(f"{who}: the text does not say who and where: {outcome.error}")
