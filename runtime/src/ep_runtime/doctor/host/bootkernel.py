# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Which kernel the next boot takes, and what the kernels were configured with."""

from __future__ import annotations

import gzip
import io
import re
import shlex
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

if TYPE_CHECKING:
    from .root import HostRoot

_ENVIRONMENTS = ("/boot/grub2/grubenv", "/boot/grub/grubenv")
_ENTRIES = "/boot/loader/entries"
_DEFAULTS = "/etc/default/grub"
_OPTIONS = ("DMA_SHARED_BUFFER", "MODULE_SIG_FORCE")


def release_key(release: str) -> Tuple[Tuple[int, Union[int, str]], ...]:
    """Sort key of kernel releases: numbers by value."""
    parts = re.findall(r"\d+|[A-Za-z]+", release)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def bootable(host: HostRoot) -> List[str]:
    """Releases that have a kernel image in /boot, oldest first."""
    releases = set()
    for name in host.names("/boot"):
        for prefix in ("vmlinuz-", "vmlinux-", "Image-"):
            if name.startswith(prefix) and "rescue" not in name:
                releases.add(name[len(prefix) :])
    return sorted(releases, key=release_key)


def next_boot(host: HostRoot) -> Dict[str, Optional[str]]:
    """``release`` (null when it cannot be told) and the ``evidence`` for it."""
    releases = bootable(host)
    # One boot's choice (grub-reboot) goes before the default, whatever that is.
    once, where = _entry(host, "next_entry")
    if once:
        said = f"{where}: next_entry={once}"
        return {"release": _release_of(host, once, releases), "evidence": said}
    saved, where = _entry(host, "saved_entry")
    default = _grub_default(host)
    if saved and (default in (None, "saved")):
        release = _release_of(host, saved, releases)
        if release:
            return {"release": release, "evidence": f"{where}: saved_entry={saved}"}
    if default not in (None, "0", "saved"):
        release = _release_of(host, str(default), releases)
        if release:
            return {"release": release, "evidence": f"{_DEFAULTS}: GRUB_DEFAULT={default}"}
    if releases and default in (None, "0", "saved"):
        return {"release": releases[-1], "evidence": "the newest kernel in /boot"}
    return {"release": None, "evidence": f"{_DEFAULTS}: GRUB_DEFAULT={default}"}


def _entry(host: HostRoot, name: str) -> Tuple[Optional[str], Optional[str]]:
    """The menu entry in GRUB's variable ``name``, and the file that holds it."""
    for path in _ENVIRONMENTS:
        for line in (host.text(path) or "").splitlines():
            found, _equals, value = line.partition("=")
            if found == name and value.strip():
                return value.strip(), path
    return None, None


def _grub_default(host: HostRoot) -> Optional[str]:
    items = [item for item in _grub_settings(host) if item["name"] == "GRUB_DEFAULT"]
    return items[-1]["value"] if items else None


def boot_arguments(host: HostRoot) -> List[Dict[str, Any]]:
    """What GRUB is set to pass to a kernel: ``value``, with its ``source`` and ``line``."""
    names = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
    # The last assignment of each name counts, as in the shell that reads these files.
    last = {item["name"]: item for item in _grub_settings(host) if item["name"] in names}
    return [last[name] for name in names if name in last]


def _grub_settings(host: HostRoot) -> List[Dict[str, Any]]:
    found = []
    for path in (_DEFAULTS, *host.glob("/etc/default/grub.d/*.cfg")):
        for number, line in enumerate((host.text(path) or "").splitlines(), 1):
            name, equals, text = line.strip().partition("=")
            if equals and name.startswith("GRUB_"):
                value = _unquoted(text.strip())
                found.append({"name": name, "value": value, "source": path, "line": number})
    return found


def _unquoted(text: str) -> str:
    """A value as the shell takes it; text that is no proper word stays as it is."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return text.strip("\"'")
    return words[0] if words else ""


def _release_of(host: HostRoot, entry: str, releases: List[str]) -> Optional[str]:
    """A menu entry's kernel: its boot loader entry says, or its title holds the release."""
    for line in (host.text(f"{_ENTRIES}/{entry}.conf") or "").splitlines():
        key, _blank, value = line.strip().partition(" ")
        if key in ("version", "linux"):
            value = value.strip().rsplit("/", 1)[-1]
            value = value[8:] if value.startswith("vmlinuz-") else value
            if value in releases:
                return value
    # The longest first: 5.15.0-10 is part of 5.15.0-105.
    for release in sorted(releases, key=len, reverse=True):
        if release in entry:
            return release
    return None


def config(host: HostRoot, release: Optional[str]) -> Dict[str, Optional[str]]:
    """The few options of the running kernel's configuration that matter; null when not known."""
    text = host.text(f"/boot/config-{release}")
    if text is None:
        text = host.text(f"/lib/modules/{release}/config")
    if text is None:
        packed = host.data("/proc/config.gz")
        try:
            if packed is not None:
                data = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(4 * 1024 * 1024)
                text = data.decode("utf-8", errors="replace")
        except (OSError, EOFError, zlib.error):
            text = None
    found: Dict[str, Optional[str]] = dict.fromkeys(_OPTIONS)
    if text is None:
        return found
    for name in _OPTIONS:
        match = re.search(rf"^CONFIG_{name}=(\w+)$", text, re.MULTILINE)
        found[name] = match.group(1) if match else "n"
    return found


def lockdown(host: HostRoot) -> Optional[str]:
    """The kernel's lockdown mode: none, integrity or confidentiality."""
    match = re.search(r"\[(\w+)\]", host.line("/sys/kernel/security/lockdown") or "")
    return match.group(1) if match else None
