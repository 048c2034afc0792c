# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The rules, one file a subject. Importing this registers all of them in ``model.RULES``."""

from . import driver, fleet, gdrcopy, gpu, initramfs, modprobe, nic, nvshmem, roce, system

SUBJECTS = (modprobe, initramfs, driver, gdrcopy, nvshmem, nic, roce, gpu, system, fleet)
