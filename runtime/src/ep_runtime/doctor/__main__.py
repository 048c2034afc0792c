# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m ep_runtime.doctor`` is ``ep-doctor``."""

from .cli import run

if __name__ == "__main__":
    run()
