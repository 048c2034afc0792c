# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Replacing one initramfs image: build apart, read back, swap in one step."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import initramfs

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

# Root's own, so the names in it can be fixed and a killed build leaves nothing that piles up.
WORK_DIRECTORY = "/var/lib/epfleet/initramfs"
# initramfs-tools has boot loaders take notice of a new image by these hooks.
_HOOKS = "/etc/initramfs/post-update.d"

RunCommand = Callable[[List[str]], Tuple[int, str, str]]


class RebuildError(Exception):
    """Why the old image is still in place; names the kernel and what to do."""


def rebuild(
    host: HostRoot, image: Dict[str, Any], module: str, require: bool, run: RunCommand
) -> None:
    """Replace the image that ``image`` (an entry of ``initramfs.facts``) describes.

    Raises RebuildError, with the old image untouched, when no right new image could be made.
    """
    kernel = image["kernel"]
    if image["tool"] is None:
        raise RebuildError(
            f"The initramfs of kernel {kernel} ({image['path']}) is stale ({image['evidence']}),"
            " and neither initramfs-tools nor dracut is installed to rebuild it."
        )
    try:
        with _alone(host.path(WORK_DIRECTORY)):
            # The run that held the lock before us may have done it.
            found = initramfs.state(
                host.path(image["path"]), initramfs.wanted(host, module), module, require
            )
            if found.state == initramfs.STALE:
                _rebuild(host, image, module, require, run)
    except OSError as error:
        raise RebuildError(
            f"The initramfs of kernel {kernel} was not replaced, the old one is still in place:"
            f" {error}."
        ) from error


@contextmanager
def _alone(work: str) -> Iterator[None]:
    """Hold the lock of ``work``: a build outlives the controller that started it."""
    os.makedirs(work, mode=0o700, exist_ok=True)
    with open(os.path.join(work, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _rebuild(
    host: HostRoot, image: Dict[str, Any], module: str, require: bool, run: RunCommand
) -> None:
    kernel, target = image["kernel"], host.path(image["path"])
    built = os.path.join(host.path(WORK_DIRECTORY), os.path.basename(target))
    try:
        _build(image, built, run)
        _verify(host, image, built, module, require)
        _replace(kernel, built, target)
    finally:
        if os.path.exists(built):
            os.unlink(built)
    if image["tool"] == initramfs.INITRAMFS_TOOLS and os.path.isdir(host.path(_HOOKS)):
        arguments = ["--arg=" + kernel, "--arg=" + target, host.path(_HOOKS)]
        code, _output, errors = run(["run-parts", *arguments])
        if code != 0:
            raise RebuildError(
                f"The initramfs of kernel {kernel} is new, but a hook in {_HOOKS} failed with"
                f" {code}: {errors.strip()[-500:]}"
            )


def _build(image: Dict[str, Any], built: str, run: RunCommand) -> None:
    command = initramfs.build_command(image["tool"], image["kernel"], built)
    code, output, errors = run(command)
    # The generators exit 0 on some failures, so the content has the last word (see _verify).
    if code != 0 or not os.path.exists(built):
        detail = (errors.strip() or output.strip())[-800:] or "it printed nothing"
        raise RebuildError(
            f"Building the initramfs of kernel {image['kernel']} with `{' '.join(command)}` failed"
            f" with exit code {code}; the old image is still in place. It said: {detail}"
        )


def _verify(host: HostRoot, image: Dict[str, Any], built: str, module: str, require: bool) -> None:
    result = initramfs.state(built, initramfs.wanted(host, module), module, require)
    if result.state not in (initramfs.CURRENT, initramfs.NOT_NEEDED):
        raise RebuildError(
            f"The new initramfs of kernel {image['kernel']} is not right ({result.state}:"
            f" {result.evidence}); the old image is still in place. Look for what keeps"
            f" /etc/modprobe.d out of the images that {image['tool']} builds."
        )


def _replace(kernel: str, built: str, target: str) -> None:
    old = os.stat(target)
    needed = os.path.getsize(built)
    free = initramfs.free_bytes(target)
    if free < needed:
        raise RebuildError(
            f"No room for the new initramfs of kernel {kernel}: {os.path.dirname(target)} has"
            f" {free} bytes free and {needed} are needed; the old image is still in place. Remove"
            " kernels that are no longer booted, then run again."
        )
    fresh = os.path.join(os.path.dirname(target), "." + os.path.basename(target) + ".epfleet-new")
    try:
        with open(built, "rb") as source, open(fresh, "wb") as sink:
            shutil.copyfileobj(source, sink, 1024 * 1024)
            os.fchmod(sink.fileno(), stat.S_IMODE(old.st_mode))
            os.fchown(sink.fileno(), old.st_uid, old.st_gid)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(fresh, target)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)
