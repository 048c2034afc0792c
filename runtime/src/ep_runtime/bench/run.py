"""One rank's way through a low-latency run: meet, check, time, check again, gather, write."""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist

import ep_runtime
from ep_runtime import Buffer
from ep_runtime.bench import patterns, progress, results, table
from ep_runtime.bench.correctness import (
    Mismatch,
    Received,
    check_combine,
    check_dispatch,
    make_expert_outputs,
)
from ep_runtime.bench.deadline import Deadline
from ep_runtime.bench.measure import Operations, Samples, clock_of, measure
from ep_runtime.bench.meeting import gather, gather_on_first, join, pick_device
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.place import place_of
from ep_runtime.bench.routing import FULL, HOLES, Inputs, make_inputs
from ep_runtime.bench.waits import (
    TIMED,
    WaitCounts,
    WaitFigures,
    WaitScale,
    device_scale,
    reference_scale,
)
from ep_runtime.bench.world import World

EXIT_PASSED = 0
EXIT_MISMATCH = 1
EXIT_FAILED = 3

_CACHED_INPUTS = 32


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
    deadline = Deadline(request.parameters.timeout_s, world.name, recorder, _trail(request, world))
    deadline.start()
    try:
        status = _Run(request, world, deadline).run()
    except Exception as error:
        traceback.print_exc()
        message = f"in phase '{deadline.phase}': {_first_line(error)}"
        print(f"ep-bench: {world.name}: failed {message}", file=sys.stderr, flush=True)
        recorder(message)
        status = EXIT_FAILED
    deadline.stop()
    return status


def _trail(request: Request, world: World) -> progress.Trail:
    """One rank tells how far all are; its operations end when everybody's do."""
    if world.rank != 0 or request.per_rank_dir is None:
        return progress.Trail(None)
    return progress.Trail(request.per_rank_dir / "progress")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


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

    def run(self) -> int:
        self.deadline.phase = "rendezvous"
        self.device = pick_device(self.world)
        self.group = join(self.world, self.parameters.timeout_s)
        self.deadline.phase = "comparison of settings"
        self._compare_settings()
        self.deadline.phase = "making the buffer"
        buffer = self._make_buffer()
        status = self._check_and_time(buffer)
        # After an error none of this is reached: it would wait for peers that may be gone, and
        # the end of the process frees the same.
        self.deadline.phase = "freeing the buffer"
        buffer.destroy()
        dist.destroy_process_group()
        return status

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

    def _make_buffer(self) -> Buffer:
        p, ranks = self.parameters, self.world.size
        size = Buffer.get_low_latency_rdma_size_hint(p.num_tokens, p.hidden, ranks, p.num_experts)
        return Buffer(
            self.group,
            num_rdma_bytes=size,
            low_latency_mode=True,
            num_qps_per_rank=p.num_experts // ranks,
            explicitly_destroy=True,
            backend=p.backend,
            # Half the bound of the run, so that the runtime's error, which names the peer,
            # comes before the run's own.
            timeout_us=int(p.timeout_s * 1e6 / 2),
        )

    def _check_and_time(self, buffer: Buffer) -> int:
        p = self.parameters
        for routing in (HOLES, FULL):
            self.deadline.phase = f"correctness check ({routing} routing)"
            mismatch, outputs, _ = self._check(buffer, routing)
            if mismatch:
                return self._finish(buffer, f"failed: {mismatch}")
        self.deadline.phase = "timing"
        inputs = self._to_device(make_inputs(p, self.world.rank, FULL))
        counts = WaitCounts.allocate(p.iters, self.world.size, self.device)
        rounds = p.warmup + p.iters
        shown = self.world.rank == 0
        with progress.bar("timing", rounds, shown=shown, trail=self.deadline.trail) as advance:
            samples = measure(
                Operations(
                    dispatch=partial(self._dispatch, buffer, inputs),
                    combine=partial(self._combine, buffer, inputs, outputs),
                    barrier=self._barrier,
                ),
                self.device,
                p.iters,
                p.warmup,
                counts,
                advance,
            )
        self.deadline.phase = "correctness check after timing"
        mismatch, _, received = self._check(buffer, FULL)
        if mismatch:
            return self._finish(buffer, f"failed: after timing, {mismatch}")
        scale = self._wait_scale(buffer, received, inputs.topk_idx)
        return self._finish(buffer, results.PASSED, _timing(samples, counts, scale))

    def _wait_scale(self, buffer: Buffer, received: Received, topk_idx: torch.Tensor) -> WaitScale:
        if buffer.transport_report()["backend"] == "reference":
            return reference_scale(self.world.size)
        return device_scale(received, topk_idx, self.world.size, self.device)

    def _barrier(self) -> None:
        dist.barrier(group=self.group)

    def _to_device(self, inputs: Inputs) -> Inputs:
        return Inputs(
            x=inputs.x.to(self.device),
            topk_idx=inputs.topk_idx.to(self.device),
            topk_weights=inputs.topk_weights.to(self.device),
        )

    def _dispatch(
        self, buffer: Buffer, inputs: Inputs, waits: torch.Tensor | None = None
    ) -> tuple[Any, torch.Tensor, Any]:
        """Dispatch; give the received tokens, their counts and the handle for the combine."""
        p = self.parameters
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(
            inputs.x,
            inputs.topk_idx,
            p.num_tokens,
            p.num_experts,
            dispatch_wait_recv_cost_stats=waits,
            use_fp8=p.use_fp8,
        )
        return recv_x, count, handle

    def _combine(
        self,
        buffer: Buffer,
        inputs: Inputs,
        outputs: torch.Tensor,
        dispatched: tuple[Any, torch.Tensor, Any],
        waits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        combined: torch.Tensor
        combined, _, _ = buffer.low_latency_combine(
            outputs,
            inputs.topk_idx,
            inputs.topk_weights,
            dispatched[2],
            use_logfmt=self.parameters.use_logfmt,
            combine_wait_recv_cost_stats=waits,
        )
        return combined

    def _check(
        self, buffer: Buffer, routing: str
    ) -> tuple[Mismatch | None, torch.Tensor, Received]:
        """Give the first mismatch of all ranks, this rank's expert outputs, what it received."""
        p, rank, size = self.parameters, self.world.rank, self.world.size

        @lru_cache(maxsize=_CACHED_INPUTS)
        def inputs_of(source: int) -> Inputs:
            return make_inputs(p, source, routing)

        inputs = self._to_device(inputs_of(rank))
        dispatched = self._dispatch(buffer, inputs)
        recv_x, count, handle = dispatched
        x, scales = recv_x if p.use_fp8 else (recv_x, None)
        received = Received(x, scales, count, handle[0], handle[1])
        mismatch = self._first(check_dispatch(received, p, rank, size, inputs_of))
        if mismatch:
            return mismatch, x, received
        outputs = make_expert_outputs(received, p, rank, size, inputs_of).to(self.device)
        combined = self._combine(buffer, inputs, outputs, dispatched)
        found = check_combine(combined, inputs_of(rank), rank, p.use_logfmt)
        return self._first(found), outputs, received

    def _first(self, mismatch: Mismatch | None) -> Mismatch | None:
        """Agree on the mismatch of the lowest rank that has one, so that all stop alike."""
        return next((found for found in gather(self.group, mismatch) if found), None)

    def _finish(
        self, buffer: Buffer, correctness: str, timing: results.Timing | None = None
    ) -> int:
        """Gather, write, print; the same exit status on every rank. Collective."""
        self.deadline.phase = "gathering results"
        transport = buffer.transport_report()
        mine = results.RankResult(
            rank=self.world.rank,
            host=self.world.host,
            place=place_of(self.device),
            backend=transport["backend"],
            transport=_paths(transport),
            timing=timing,
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
                clock_of(self.device),
                ranks,
                self.versions,
            )
            if self.request.output is not None:
                results.write_json(self.request.output, report)
            table.show(report)
        # Nobody leaves before the results are written: a launcher may end all at the first exit.
        self._barrier()
        return EXIT_PASSED if passed else EXIT_MISMATCH


def _timing(samples: Samples, counts: WaitCounts, scale: WaitScale) -> results.Timing:
    times = samples.as_dict()
    waits = {}
    for name in TIMED:
        measured = scale.microseconds(name, getattr(counts, name))
        waits[name] = WaitFigures.of(measured, times[name])
    return results.Timing(times, samples.barrier, waits)


def _paths(transport: Mapping[str, Any]) -> str:
    """Name the kinds of paths to the peers, and what carries RDMA; "self" only for one rank."""
    kinds = dict.fromkeys(transport["peers"])
    if len(kinds) > 1:
        kinds.pop("self", None)
    named = ", ".join(kinds)
    if transport.get("nvshmem_version") is None:
        return named
    handler = transport["nic_handler"] or "none"
    return (
        f"{named} (NVSHMEM {transport['nvshmem_version']}, NIC handler {handler}, "
        f"queue pairs {transport['queue_pairs']})"
    )
