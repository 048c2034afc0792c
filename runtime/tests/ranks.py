"""Real rank processes that stay up over many tests: starting one costs seconds, a test does not."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    import torch.distributed as dist

ANSWER_TIMEOUT_S = 120.0


@dataclass
class Rank:
    """What a task knows about itself; ``groups`` holds the group of the first n ranks."""

    rank: int
    groups: dict[int, dist.ProcessGroup] = field(default_factory=dict)
    size: int = 0

    @property
    def group(self) -> dist.ProcessGroup:
        return self.groups[self.size]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    os.environ.update(CUDA_VISIBLE_DEVICES="", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    wait = timedelta(seconds=ANSWER_TIMEOUT_S)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=wait)
    me = Rank(rank)
    for count in range(1, size + 1):
        me.groups[count] = dist.new_group(list(range(count)), backend="gloo")
    while (message := pipe.recv()) is not None:
        task, me.size, arguments = message
        try:
            pipe.send((True, task(me, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # after a fault the groups can't be taken down in order


class RankPool:
    """``size`` rank processes; a task runs in the first few of them, as one group."""

    def __init__(self, size: int) -> None:
        # The server imports torch once for all; every rank is a process of its own.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])
        port = free_port()
        self.size = size
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def start(self, task: Callable[..., Any], size: int, **arguments: Any) -> None:
        """Begin ``task(rank, **arguments)`` on the first ``size`` ranks."""
        for pipe in self.pipes[:size]:
            pipe.send((task, size, arguments))

    def answer(self, rank: int) -> Any:
        """What the rank's task returned; AssertionError with its traceback if it raised."""
        if not self.pipes[rank].poll(ANSWER_TIMEOUT_S):
            raise AssertionError(f"rank {rank} gave no answer within {ANSWER_TIMEOUT_S} s")
        good, answer = self.pipes[rank].recv()
        if not good:
            raise AssertionError(f"rank {rank}: {answer}")
        return answer

    def run(self, task: Callable[..., Any], size: int, **arguments: Any) -> list[Any]:
        """Run ``task`` on the first ``size`` ranks; their answers in rank order."""
        self.start(task, size, **arguments)
        answers, problems = [], []
        for rank in range(size):
            try:
                answers.append(self.answer(rank))
            except (AssertionError, EOFError) as error:
                problems.append(f"{error}")
        assert not problems, "\n".join(problems)
        return answers

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
