"""One rank's way through a low-latency run: meet, check, time, check again, gather, write."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist

import ep_runtime
from ep_runtime.bench import comparison, kinds, pairs, patterns, progress, results, table
from ep_runtime.bench.correctness import Received
from ep_runtime.bench.deadline import Deadline
from ep_runtime.bench.kinds import Kind
from ep_runtime.bench.measure import Measured, clock_of, measure
from ep_runtime.bench.meeting import gather, gather_on_first, join, pick_device
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.pace import Pace
from ep_runtime.bench.physical import Sent
from ep_runtime.bench.place import place_of
from ep_runtime.bench.routing import FULL, HOLES, Inputs
from ep_runtime.bench.trial import Trial
from ep_runtime.bench.waits import TIMED, WaitFigures, WaitScale, device_scale, reference_scale
from ep_runtime.bench.world import World
from ep_runtime.errors import first_line

EXIT_PASSED = 0
EXIT_MISMATCH = 1
EXIT_FAILED = 3

# Rounds of what stands beside the main figures.
_MOST_ROUNDS_BESIDE = 50
# Share of the time limit after which no rounds are added.
_TIME_FOR_ROUNDS = 0.5

# A file for whoever watches the run from outside.
PROGRESS_VARIABLE = "EP_BENCH_PROGRESS"


class RunError(Exception):
    """A run that cannot go on; the text names ranks and options."""


@dataclass(frozen=True)
class Request:
    """A run and where its results go. ``output`` is written by rank 0 only.

    ``run_id`` marks the results; "" lets rank 0 choose one.
    """

    parameters: Parameters
    output: Path | None
    per_rank_dir: Path | None
    run_id: str


def run(request: Request, world: World) -> int:
    """Run the benchmark on this rank and return its exit status. Collective."""
    recorder = partial(_record_failure, request, world)
    deadline = Deadline(request.parameters.timeout_s, world.name, recorder, _trail(world))
    deadline.start()
    try:
        status = _Run(request, world, deadline).run()
    except Exception as error:
        traceback.print_exc()
        message = f"in phase '{deadline.phase}': {first_line(error)}"
        print(f"ep-bench: {world.name}: failed {message}", file=sys.stderr, flush=True)
        recorder(message)
        status = EXIT_FAILED
    deadline.stop()
    return status


def _trail(world: World) -> progress.Trail:
    """One rank tells how far all are; its operations end when everybody's do."""
    path = os.environ.get(PROGRESS_VARIABLE)
    return progress.Trail(Path(path) if path and world.rank == 0 else None)


def _record_failure(request: Request, world: World, message: str) -> None:
    """Leave this rank's message where the caller collects results."""
    if request.per_rank_dir is None:
        return
    # The message is on stderr already; a full disk must not hide the first error.
    with suppress(results.ReportError):
        results.write_json(
            request.per_rank_dir / f"rank-{world.rank}.json",
            {
                "schema_version": results.SCHEMA_VERSION,
                "run_id": request.run_id,
                "rank": world.rank,
                "host": world.host,
                "status": f"failed: {message}",
            },
        )


def versions_here() -> dict[str, str]:
    """Collect the versions that decide what a figure means."""
    found = {
        "ep_runtime": ep_runtime.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found


class _Run:
    """The state of one run on one rank, phase by phase."""

    def __init__(self, request: Request, world: World, deadline: Deadline) -> None:
        self.request = request
        self.parameters = request.parameters
        self.world = world
        self.deadline = deadline
        self._no_more_rounds = time.monotonic() + _TIME_FOR_ROUNDS * self.parameters.timeout_s

    def run(self) -> int:
        self.deadline.phase = "rendezvous"
        self.device = pick_device(self.world)
        self.group = join(self.world, self.parameters.timeout_s)
        self.deadline.phase = "comparison of settings"
        self._compare_settings()
        self.deadline.phase = "making the buffer"
        trial = self._trial(self.parameters)
        status = self._check_and_time(trial)
        # After an error none of this is reached: it would wait for peers that may be gone, and
        # the end of the process frees the same.
        self.deadline.phase = "freeing the buffer"
        trial.buffer.destroy()
        dist.destroy_process_group()
        return status

    def _trial(self, parameters: Parameters) -> Trial:
        p = self.parameters
        experts = max([p.num_experts, *(point.num_experts for _, point in p.points())])
        queue_pairs = experts // self.world.size
        return Trial(parameters, self.world, self.group, self.device, queue_pairs)

    def _compare_settings(self) -> None:
        """Refuse ranks that were started with other options or another runtime than rank 0."""
        mine = {
            "option": {
                **self.parameters.as_dict(),
                "run_id": self.request.run_id,
                "content of the routing's file": patterns.digest(self.parameters.routing),
            },
            "version": versions_here(),
        }
        everybody = gather(self.group, mine)
        self.run_id = self.request.run_id or gather(self.group, uuid4().hex)[0]
        self.versions: dict[str, str] = everybody[0]["version"]
        for rank, theirs in enumerate(everybody):
            for kind, keys in (
                ("option", tuple(everybody[0]["option"])),
                ("version", ("ep_runtime", "torch")),
            ):
                for key in keys:
                    first, other = everybody[0][kind][key], theirs[kind][key]
                    if first != other:
                        raise RunError(
                            f"rank {rank} has {kind} {key} = {other}, and rank 0 has {first}; "
                            f"start all ranks alike."
                        )

    def _check_and_time(self, trial: Trial) -> int:
        for routing in (HOLES, FULL):
            self.deadline.phase = f"correctness check ({routing} routing)"
            mismatch, outputs, _ = trial.check(routing)
            if mismatch:
                return self._finish(trial, f"failed: {mismatch}")
        self.deadline.phase = "timing"
        p, inputs = self.parameters, trial.inputs(FULL)
        rounds, shown = p.warmup + p.iters, self.world.rank == 0
        with progress.bar("timing", rounds, shown=shown, trail=self.deadline.trail) as advance:
            measured = measure(
                trial.operations(inputs, outputs),
                self.device,
                self.world.size,
                self._pace(p),
                advance,
            )
        beside = self._beside(trial, inputs, outputs) if p.full else {}
        self.deadline.phase = "correctness check after timing"
        mismatch, _, received = trial.check(FULL)
        if mismatch:
            return self._finish(trial, f"failed: after timing, {mismatch}")
        scale = self._wait_scale(trial, received, inputs.topk_idx)
        timing = _timing(measured, scale, self._sent(p, inputs), beside)
        points = []
        for axis, parameters in p.points():
            point = self._point(axis, parameters)
            if isinstance(point, str):
                at = f"{axis.replace('_', '-')}={getattr(parameters, axis)}"
                return self._finish(trial, f"failed: with {at}, {point}")
            points.append(point)
        swept = self._sweep_pairs(trial, inputs, outputs) if p.pairwise else None
        return self._finish(trial, results.PASSED, timing, points, swept)

    def _sweep_pairs(
        self, trial: Trial, inputs: Inputs, outputs: torch.Tensor
    ) -> pairs.PairFigures | None:
        """Load the link of each pair of hosts alone; None on one host, which has no pairs."""
        self.deadline.phase = "sweep over pairs of hosts"
        p, size = self.parameters, self.world.size
        hosts = gather(self.group, self.world.host)
        if len(set(hosts)) < 2:
            return None
        partners = pairs.partners_of(hosts, self.world.rank)
        local = p.num_experts // size
        rounds = []
        for others in partners:
            topk_idx = pairs.routing_to(others, local, inputs.topk_idx.shape).to(self.device)
            operations = trial.operations(replace(inputs, topk_idx=topk_idx), outputs)
            received = trial.received(operations.dispatch(None))
            scale = self._wait_scale(trial, received, topk_idx)
            rounds.append(pairs.Round(operations, others, scale))
        total = pairs.PASSES * len(rounds)
        with progress.bar("pairs", total, shown=False, trail=self.deadline.trail) as note:
            return pairs.sweep(rounds, size, self.device, p.pairwise, note)

    def _pace(self, parameters: Parameters) -> Pace:
        return Pace(
            parameters.iters,
            parameters.warmup,
            parameters.p99_within,
            share=partial(gather, self.group),
            out_of_time=lambda: time.monotonic() > self._no_more_rounds,
        )

    def _sent(self, parameters: Parameters, inputs: Inputs) -> Sent:
        topk_idx = inputs.topk_idx.cpu().numpy()
        return Sent.of(topk_idx, self.world.size, parameters.num_experts)

    def _beside(self, trial: Trial, inputs: Inputs, outputs: torch.Tensor) -> dict[str, Kind]:
        """Measure what stands beside the main figures. Collective."""
        self.deadline.phase = "timing of the other kinds"
        p = self.parameters
        rounds = min(p.iters, _MOST_ROUNDS_BESIDE)
        found = kinds.others(
            trial.operations(inputs, outputs),
            trial.hooked(inputs, outputs),
            self.device,
            rounds,
            has_kernels=self._backend(trial) != "reference",
            agree=partial(gather, self.group),
        )
        self.deadline.phase = "timing of all_to_all"
        found[kinds.ALL_TO_ALL] = comparison.all_to_all(
            inputs,
            p.num_experts // self.world.size,
            self.world,
            self.device,
            Pace(rounds, min(p.warmup, rounds), 0.0, share=partial(gather, self.group)),
        )
        return found

    def _point(self, axis: str, parameters: Parameters) -> results.PointTimes | str:
        """Check, time and check again at one point of the sweep; give what is wrong. Collective."""
        self.deadline.phase = f"sweep of {axis.replace('_', '-')}"
        trial = self._trial(parameters)
        mismatch, outputs, _ = trial.check(FULL)
        if mismatch:
            return str(mismatch)
        inputs = trial.inputs(FULL)
        operations = trial.operations(inputs, outputs)
        measured = measure(operations, self.device, self.world.size, self._pace(parameters))
        mismatch, _, _ = trial.check(FULL)
        if mismatch:
            return f"after timing, {mismatch}"
        trial.buffer.destroy()
        return results.PointTimes(
            axis, parameters, measured.samples.as_dict(), self._sent(parameters, inputs)
        )

    def _backend(self, trial: Trial) -> str:
        return str(trial.buffer.transport_report()["backend"])

    def _wait_scale(self, trial: Trial, received: Received, topk_idx: torch.Tensor) -> WaitScale:
        if self._backend(trial) == "reference":
            return reference_scale(self.world.size)
        return device_scale(received, topk_idx, self.world.size, self.device)

    def _finish(
        self,
        trial: Trial,
        correctness: str,
        timing: results.Timing | None = None,
        points: Sequence[results.PointTimes] = (),
        swept: pairs.PairFigures | None = None,
    ) -> int:
        """Gather, write, print; the same exit status on every rank. Collective."""
        self.deadline.phase = "gathering results"
        transport = trial.buffer.transport_report()
        mine = results.RankResult(
            rank=self.world.rank,
            host=self.world.host,
            place=place_of(self.device),
            backend=transport["backend"],
            transport=_paths(transport),
            timing=timing,
            points=points,
            swept=swept,
        )
        ranks = gather_on_first(self.group, mine)
        passed = correctness == results.PASSED
        if self.request.per_rank_dir is not None:
            timed = results.rank_document(self.parameters, mine) if passed else {}
            results.write_json(
                self.request.per_rank_dir / f"rank-{self.world.rank}.json",
                {
                    "schema_version": results.SCHEMA_VERSION,
                    "run_id": self.run_id,
                    "rank": self.world.rank,
                    "host": self.world.host,
                    "status": correctness,
                    **timed,
                },
            )
        if ranks is not None:
            report = results.document(
                self.parameters,
                self.run_id,
                correctness,
                results.Clock(clock_of(self.device), kinds.main_kind(self.device)),
                ranks,
                self.versions,
            )
            if self.request.output is not None:
                results.write_json(self.request.output, report)
            table.show(report)
        # Nobody leaves before the results are written: a launcher may end all at the first exit.
        trial.barrier()
        return EXIT_PASSED if passed else EXIT_MISMATCH


def _timing(
    measured: Measured, scale: WaitScale, sent: Sent, beside: Mapping[str, Kind]
) -> results.Timing:
    times = measured.samples.as_dict()
    waits = {}
    for name in TIMED:
        counted = scale.microseconds(name, getattr(measured.waits, name))
        waits[name] = WaitFigures.of(counted, times[name])
    return results.Timing(
        samples=times,
        barriers=measured.samples.barrier,
        waits=waits,
        rounds=measured.rounds,
        sent=sent,
        beside=beside,
    )


def _paths(transport: Mapping[str, Any]) -> str:
    """Name the kinds of paths to the peers, and what carries RDMA; "self" only for one rank."""
    paths = dict.fromkeys(transport["peers"])
    if len(paths) > 1:
        paths.pop("self", None)
    named = ", ".join(paths)
    if transport.get("nvshmem_version") is None:
        return named
    handler = transport["nic_handler"] or "none"
    return (
        f"{named} (NVSHMEM {transport['nvshmem_version']}, NIC handler {handler}, "
        f"queue pairs {transport['queue_pairs']})"
    )
