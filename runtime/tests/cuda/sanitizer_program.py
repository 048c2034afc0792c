"""One rank of a small run for compute-sanitizer: RANK and WORLD_SIZE as torchrun sets them."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from cases import Shape
from matrix_tasks import check_shape
from pool import Rank

SHAPES = [
    Shape(256, 2, 8, 5),
    Shape(640, 4, 8, 9, routing="uneven"),
    Shape(512, 3, 4, 6, routing="duplicates"),
]


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    me = Rank(rank, size, torch.device("cuda", 0))
    for shape in SHAPES:
        check_shape(me, shape, seed=3, num_sms=3, rounds=1)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: checked")


if __name__ == "__main__":
    main()
