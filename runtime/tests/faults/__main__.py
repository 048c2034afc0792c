"""Many rounds of faults, and the table of them: see ``scripts/reliability``."""

from __future__ import annotations

import argparse
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import TYPE_CHECKING

from mps import environment
from reliability_page import PAGE, write

from faults import table
from faults.judge import Result, run_round
from faults.plan import KILLS, Plan, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def plans(backend: str, rounds: int, seed: int, timeout_s: float) -> Iterator[Plan]:
    """``rounds`` of each fault, place and mode; victims and hooks drawn from ``seed``."""
    draw = random.Random(seed)
    for fault, step, within in kinds_of(backend):
        for shrink in (False, True):
            if step == "create" and shrink:
                continue  # a group that is not there yet can't shrink
            for _ in range(rounds):
                yield Plan(
                    fault,
                    step,
                    victim=draw.randrange(3),
                    shrink=shrink,
                    hooks=draw.random() < 0.5 or step.endswith("receive"),
                    within=within,
                    seed=draw.randrange(2**30),
                    timeout_s=timeout_s,
                    backend=backend,
                )


def attempt(plan: Plan) -> Result:
    """Run a round; what breaks the test itself is a problem of the round, too."""
    try:
        with environment(plan.backend) as env:
            # A process that is killed may take the MPS server along: those rounds are without one.
            alone = {name: value for name, value in env.items() if not name.startswith("CUDA_MPS")}
            return run_round(plan, alone if plan.fault in KILLS else env)
    except (AssertionError, OSError, RuntimeError) as error:
        return Result(plan, [f"the round could not be run: {type(error).__name__}: {error}"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/reliability", description=__doc__)
    parser.add_argument("--backend", choices=("reference", "peer"), default="reference")
    parser.add_argument("--rounds", type=int, default=3, help="of each fault, place and mode")
    parser.add_argument("--seed", type=int, default=random.randrange(2**30))
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds a wait may take")
    parser.add_argument("--jobs", type=int, default=4, help="rounds at once")
    parser.add_argument("--only", default="", help="part of the names of the rounds to run")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    given = parser.parse_args()
    todo = list(plans(given.backend, given.rounds, given.seed, given.timeout))
    todo = [plan for plan in todo if given.only in str(plan)]
    results: list[Result] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        running = [pool.submit(attempt, plan) for plan in todo]
        for number, future in enumerate(running, start=1):
            result = future.result()
            results.append(result)
            text = "; ".join(result.problems).replace("\n", " ") or "as it must be"
            print(
                f"{number}/{len(todo)} {result.plan} (seed {result.plan.seed}): {text}", flush=True
            )
    about = (
        f"{len(results)} rounds on {date.today()}, 3 ranks, waits of {given.timeout:g} s, "
        f"`scripts/reliability --backend {given.backend} --rounds {given.rounds} "
        f"--seed {given.seed} --timeout {given.timeout:g}`."
    )
    text = table.section(results, about)
    print(text)
    if given.write:
        write(PAGE, given.backend, text)
    failed = sum(bool(result.problems) for result in results)
    print(f"{len(results) - failed} of {len(results)} rounds ended as they must.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
