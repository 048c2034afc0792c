"""Two fixtures for each rule, one file a subject as the rules are."""

from . import driver, fleet, gdrcopy, gpu, initramfs, modprobe, nic, nvshmem, roce, system
from .changes import CASES, FLEET_CASES

__all__ = ["CASES", "FLEET_CASES", "SUBJECTS"]

SUBJECTS = (modprobe, initramfs, driver, gdrcopy, nvshmem, nic, roce, gpu, system, fleet)
