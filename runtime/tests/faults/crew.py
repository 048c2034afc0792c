"""Rank processes for one round, which may die, and be replaced.

The store in which they meet is the starting process's, as with torchrun: no rank's death takes it
along.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import time
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

START_S = 120.0
TASKS = "faults.scenario"


def _serve(rank: int, size: int, port: int, env: dict[str, str], pipe: Connection) -> None:
    os.environ.update(env)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    importlib.import_module(TASKS)  # now, so that no rank comes late to a task
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)

    def meet(name: str) -> None:
        """Start the default group, anew if there is one; ``name`` is the same on all ranks."""
        if dist.is_initialized():
            dist.destroy_process_group()
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        store.set_timeout(timedelta(seconds=START_S))
        own = dist.PrefixStore(name, store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size)

    while (message := pipe.recv()) is not None:
        task, arguments = message
        try:
            if task == "meet":
                pipe.send((True, meet(**arguments)))
                continue
            call = getattr(importlib.import_module(TASKS), task)
            pipe.send((True, call(rank, device=device, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # after a fault the groups can't be taken down in order


class Crew:
    """``size`` rank processes. ``env`` is added to their environment before torch is imported."""

    def __init__(self, size: int, env: dict[str, str]) -> None:
        import torch.distributed as dist

        self.size, self._env = size, env
        # forkserver imports torch once for all, which a process with a GPU must do by itself.
        on_cpu = env.get("CUDA_VISIBLE_DEVICES") == ""
        self._context: Any = multiprocessing.get_context("forkserver" if on_cpu else "spawn")
        if on_cpu:
            self._context.set_forkserver_preload(["torch", "torch.distributed", "numpy"])
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(size):
            pipe, process = self._start(rank)
            self.pipes.append(pipe)
            self.processes.append(process)

    def _start(self, rank: int) -> tuple[Connection, Any]:
        ours, theirs = self._context.Pipe()
        arguments = (rank, self.size, self._store.port, self._env, theirs)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return ours, process

    def replace(self, rank: int) -> None:
        """Start another process in place of one that ended."""
        self.processes[rank].join(START_S)
        self.pipes[rank], self.processes[rank] = self._start(rank)

    def meet(self, name: str) -> None:
        """Let all ranks form the default group; AssertionError if one could not."""
        for rank in range(self.size):
            self.tell(rank, "meet", name=name)
        deadline = time.monotonic() + START_S
        for rank in range(self.size):
            good, answer = self.answer(rank, deadline)
            assert good, f"rank {rank}: {answer}"

    def tell(self, rank: int, task: str, **arguments: Any) -> None:
        """Have a rank call ``task``, a function of ``TASKS``, with its rank and device."""
        self.pipes[rank].send((task, arguments))

    def answer(self, rank: int, deadline: float) -> tuple[bool, Any]:
        """What a rank answered; (False, why) if it raised, ended, or is silent at ``deadline``."""
        try:
            if not self.pipes[rank].poll(max(0.0, deadline - time.monotonic())):
                return False, "no answer"
            good, answer = self.pipes[rank].recv()
            return bool(good), answer
        except (EOFError, OSError):
            return False, "ended"

    def wake(self, rank: int) -> None:
        """Continue a rank that stopped itself."""
        os.kill(self.processes[rank].pid, signal.SIGCONT)

    def close(self) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
