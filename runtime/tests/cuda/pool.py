"""Real rank processes that stay up over many tests: starting one costs seconds, a test does not."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Longer than the waits inside a task, so that a task's own error is what is reported.
TASK_TIMEOUT_S = 90.0


@dataclass
class Rank:
    """What a task knows about itself. ``kept`` lives as long as the process."""

    rank: int
    size: int
    device: Any
    kept: dict[str, Any] = field(default_factory=dict)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(rank: int, size: int, port: int, env: dict[str, str], pipe: Connection) -> None:
    os.environ.update(env)
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_num_threads(2)
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    me = Rank(rank, size, device)
    while (message := pipe.recv()) is not None:
        module, function, arguments = message
        try:
            answer = getattr(importlib.import_module(module), function)(me, **arguments)
            pipe.send((True, answer))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class RankPool:
    """``size`` rank processes; ``run`` calls one function in all of them and gathers answers."""

    def __init__(self, size: int, env: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        self.size = size
        self.broken = False
        self.pipes = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, port, env or {}, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: str, **arguments: Any) -> list[Any]:
        """``module.function(rank, **arguments)`` on every rank; their answers in rank order."""
        module, name = function.rsplit(".", 1)
        for pipe in self.pipes:
            # A dead rank shows when its answer is asked for.
            with contextlib.suppress(OSError):
                pipe.send((module, name, arguments))
        answers, problems = [], []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(TASK_TIMEOUT_S):
                    raise TimeoutError(f"no answer within {TASK_TIMEOUT_S} s")
                good, answer = pipe.recv()
            except (EOFError, OSError, TimeoutError) as error:
                good, answer = False, f"{type(error).__name__}: {error}"
            answers.append(answer)
            if not good:
                problems.append(f"rank {rank}: {answer}")
        if problems:
            self.broken = True  # the ranks may be at different places now
            raise AssertionError("\n".join(problems))
        return answers

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(0 if self.broken else 20)
            if process.is_alive():
                process.kill()
