"""Rollouts to real systemd hosts that break at a random moment, and what the next runs make of it.

`scripts/chaos --rounds N [--seed S] [--write]`, as root. Boots hosts, rolls out once undisturbed,
and then a change for each round, with one fault each. A round is survived when the broken
run ends by itself and names the host that was struck, or left nothing undone; when the next run
converges, and one more changes nothing. What became of each round is noted in
build/chaos/record.jsonl, and a run makes the rounds that are not there yet, so that they can be
made in several goes. `--write` puts the table of the record into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import cache
import hosts
from broken import FAULTS, Round, heal
from paths import REPOSITORY as ROOT
from reliability_page import PAGE, markdown, write

FOLDER = ROOT / "build" / "chaos"
RECORD = FOLDER / "record.jsonl"
INVENTORY = ROOT / "molecule" / "fleet" / "inventory"
RUN_TIMEOUT_S = 1500.0
# What a host may write: two of them fit into memory beside the rest of a small machine.
DISK_MIB = 3072


@dataclass
class Run:
    """One run of the playbook: its exit status (None when it was ended), output and recap."""

    status: int | None
    output: str
    seconds: float
    changed: dict[str, int]


@dataclass
class Result:
    """What became of a round: how the broken run ended, seconds that the next one took, and
    sentences about what was not as it must be.
    """

    number: int
    fault: str
    victim: str
    after_s: float
    status: int | None
    again_s: float
    problems: list[str]


def rollout(name: str, change: int, fault: Round | None = None) -> Run:
    """Run site.yml, and break something meanwhile. The output is kept as the log `name`."""
    variables = {
        "nvidia_driver_registry_dwords": {"PeerMappingOverride": 1, "EpfleetChaos": change},
        "ep_runtime_cache": str(FOLDER / "wheels"),
        # Test hosts boot in seconds; one without a network is not waited for long.
        "reboot_timeout": 180,
    }
    command = [
        "ansible-playbook",
        f"--inventory={INVENTORY}",
        f"--extra-vars={json.dumps(variables)}",
        "--skip-tags=ep_benchmark",
        "epfleet.expert_parallel.site",
    ]
    environment = {
        **os.environ,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "ANSIBLE_PIPELINING": "true",
        # A host that vanishes answers nothing, and without these ssh waits for it for hours.
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=60s"
        " -o ServerAliveInterval=10 -o ServerAliveCountMax=3",
    }
    log = FOLDER / f"{name}.log"
    started = time.monotonic()
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=ROOT,
            text=True,
            start_new_session=True,
        )
        try:
            if fault is not None:
                time.sleep(fault.after_s)
                if process.poll() is None:
                    FAULTS[fault.fault](fault.victim, process)
            status: int | None = process.wait(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    output = log.read_text(errors="replace")
    recap = re.findall(r"^(\S+) +: ok=.*?changed=(\d+)", output, re.MULTILINE)
    changed = {host: int(count) for host, count in recap}
    return Run(status, output, time.monotonic() - started, changed)


def judge(victim: str, broken: Run, again: Run, still: Run, names: list[str]) -> list[str]:
    """Say what of a round is not as it must be."""
    problems = []
    if broken.status == 0 and any(again.changed.values()):
        problems.append(f"the broken run passed and left undone {again.changed}")
    if broken.status is None:
        problems.append("the broken run did not end")
    elif broken.status > 0:
        if not re.search(rf"^(fatal|failed): \[{victim}\]|{victim} ", broken.output, re.MULTILINE):
            problems.append(f"the broken run failed and did not name {victim}")
        for name in names:
            if again.changed.get(name) and name not in broken.changed:
                problems.append(
                    f"{name} was left half-configured and is not in the broken run's recap"
                )
    if again.status != 0:
        problems.append("the next run did not converge")
    if still.status != 0 or any(still.changed.values()):
        problems.append(f"a further run changed {still.changed}")
    return problems


HEAD = ("fault", "rounds", "broken run failed", "survived", "next run p50")


def section(results: list[Result], about: str) -> str:
    """Return the table in Markdown below a line about the run."""
    rows = []
    for fault in FAULTS:
        found = [result for result in results if result.fault == fault]
        if found:
            times = sorted(result.again_s for result in found)
            rows.append(
                (
                    fault,
                    str(len(found)),
                    str(sum(result.status != 0 for result in found)),
                    str(sum(not result.problems for result in found)),
                    f"{times[len(times) // 2]:.0f} s",
                )
            )
    return markdown(about, HEAD, rows)


def draw(seed: int, number: int, fleet: list[hosts.Host], typical_s: float) -> Round:
    """Draw round `number`; the same whatever rounds were made before."""
    source = random.Random(f"{seed}:{number}")
    fault = source.choice(sorted(FAULTS))
    return Round(number, fault, source.choice(fleet), source.uniform(0.0, typical_s))


def make(plan: Round, names: list[str]) -> Result:
    """Break a rollout as planned, heal the host and look at what the next two runs do."""
    number, victim = plan.number, plan.victim.name
    broken = rollout(f"{number}-broken", number + 1, plan)
    heal(plan.victim)
    again = rollout(f"{number}-again", number + 1)
    still = rollout(f"{number}-still", number + 1)
    problems = judge(victim, broken, again, still, names)
    return Result(number, plan.fault, victim, plan.after_s, broken.status, again.seconds, problems)


def record() -> list[Result]:
    """Return the rounds that were made."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return [Result(**json.loads(line)) for line in lines]


def main() -> int:
    """Make the rounds that are asked for and not made yet; return 1 when one was not survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="begin no round after this time")
    parser.add_argument("--anew", action="store_true", help="forget the record that there is")
    parser.add_argument("--write", action="store_true", help="the table into docs/reliability.md")
    given = parser.parse_args()
    if given.anew:
        shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    made = {result.number for result in record()}
    missing = [number for number in range(1, given.rounds + 1) if number not in made]
    if missing:
        binds = [f"{cache.wheels()}:/srv/wheels"]
        fleet = hosts.up(["debian12"] * given.hosts, binds, DISK_MIB).hosts
        names = [host.name for host in fleet]
        try:
            first = rollout("first", 0)
            if first.status != 0:
                print(first.output[-4000:])
                return 1
            print(f"undisturbed rollout: {first.seconds:.0f} s", flush=True)
            typical_s = rollout("typical", 1).seconds
            for number in missing:
                if given.seconds and time.monotonic() - started > given.seconds:
                    break
                result = make(draw(given.seed, number, fleet, typical_s), names)
                with RECORD.open("a") as stream:
                    stream.write(json.dumps(asdict(result)) + "\n")
                told = "; ".join(result.problems) or "survived"
                where = f"{result.victim} after {result.after_s:.0f} s"
                print(f"round {number}: {result.fault}, {where}: {told}", flush=True)
        finally:
            hosts.down()
    results = record()
    asked = f"scripts/chaos --rounds {given.rounds} --seed {given.seed} --hosts {given.hosts}"
    about = f"{len(results)} rounds on {time.strftime('%Y-%m-%d')}, {given.hosts} hosts, `{asked}`."
    table = section(results, about)
    print(table)
    if given.write and results:
        write(PAGE, "chaos", table)
    return int(any(result.problems for result in results) or not results)


if __name__ == "__main__":
    sys.exit(main())
