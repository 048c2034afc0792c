# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Kernel settings (sysctl) that are set now and at each boot, and put back to what they were."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    write_atomically,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

_HEADER = "# Managed by the epfleet.expert_parallel collection; changes here are overwritten.\n"


class SettingError(Exception):
    """A setting that this kernel does not have, or that can't be changed here."""


def _path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def live(host: HostRoot, settings: Dict[str, str]) -> Dict[str, str]:
    """The kernel's present values of these settings."""
    values = {}
    for name in settings:
        value = host.line(_path(name))
        if value is None:
            raise SettingError(f"This kernel has no setting {name}; leave it out for this host.")
        values[name] = value
    return values


def content(settings: Dict[str, str]) -> str:
    """The file for /etc/sysctl.d."""
    return _HEADER + "".join(f"{name} = {value}\n" for name, value in sorted(settings.items()))


def apply(host: HostRoot, record: Record, path: str, settings: Dict[str, str]) -> None:
    """Write the file at ``path`` and set what differs; first values are kept in the record."""
    present = live(host, settings)
    first = record.section("sysctl").setdefault(path, {})
    for name, value in present.items():
        first.setdefault(name, value)
    record.save()
    write_atomically(host.path(path), content(settings).encode(), 0o644)
    _set(host, {name: value for name, value in settings.items() if present[name] != value})


def restore(host: HostRoot, record: Record, path: str) -> None:
    """Remove the file at ``path`` and set the first values again."""
    if os.path.exists(host.path(path)):
        os.unlink(host.path(path))
    first = record.section("sysctl").get(path, {})
    _set(host, {name: value for name, value in first.items() if host.line(_path(name)) != value})
    record.section("sysctl").pop(path, None)
    record.save()


def _set(host: HostRoot, settings: Dict[str, str]) -> None:
    for name, value in settings.items():
        try:
            with open(host.path(_path(name)), "w", encoding="ascii") as stream:
                stream.write(value + "\n")
        except OSError as error:
            raise SettingError(f"{name} can't be set to {value} on this host: {error}.") from error
