# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Passwords in the addresses of indexes and mirrors: kept out of what is said, logged and seen.

Any ``user:password@`` and any ``token@`` in a URL counts as one.
"""

from __future__ import annotations

import re
from typing import Any, Iterable
from urllib.parse import unquote

HIDDEN = "****"
# Up to the last @ before the path: a password may hold one that nobody has encoded.
_USER_INFO = re.compile(r"(?<=://)[^\s/?#]+(?=@)")
# Options of pip that take addresses, and the variables that say the same. pip's own command line is
# seen by every user of the host.
_VARIABLES = {
    "-i": "PIP_INDEX_URL",
    "--index-url": "PIP_INDEX_URL",
    "--pypi-url": "PIP_INDEX_URL",
    "--extra-index-url": "PIP_EXTRA_INDEX_URL",
    "-f": "PIP_FIND_LINKS",
    "--find-links": "PIP_FIND_LINKS",
    "--proxy": "PIP_PROXY",
}


def redacted(text: str) -> str:
    """``text`` with what stands before the @ of each URL left out."""
    return _USER_INFO.sub(HIDDEN, text)


def secrets(values: Iterable[str]) -> set[str]:
    """What must not be shown of the URLs in ``values``, also as programs may decode it."""
    found = set()
    for value in values:
        for told in _USER_INFO.findall(value):
            user, colon, password = told.partition(":")
            found |= {told, password if colon and password else user}
    return {form for told in found for form in (told, unquote(told)) if form}


def hide(module: Any, values: Iterable[str]) -> None:
    """Have the AnsibleModule ``module`` leave the secrets of ``values`` out of all it returns.

    ``values`` are those of its ``no_log`` parameters, which it has kept out of the host's log when
    it began. Without this it would hide them as a whole, in errors too.
    """
    module.no_log_values = secrets(values)


def split_pip_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments for pip's command line, and variables with those that hold a password."""
    if not secrets(arguments):
        return list(arguments), {}
    # Options of one kind stay together: of some, pip takes the command line's alone.
    options = list(_options(arguments))
    secret = {
        _VARIABLES[name] for name, value in options if name in _VARIABLES and secrets([value])
    }
    plain: list[str] = []
    variables: dict[str, str] = {}
    for name, value in options:
        variable = _VARIABLES.get(name)
        if variable in secret and variable is not None:
            several = variable in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")
            before = variables.get(variable, "") if several else ""
            variables[variable] = f"{before} {value}".strip()
        else:
            plain += [item for item in (name, value) if item]
    return plain, variables


def _options(arguments: list[str]) -> Iterable[tuple[str, str]]:
    """Options that take an address with it, and all other arguments each by itself."""
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in _VARIABLES:
            yield (name, value) if equals else (name, next(rest, ""))
        elif argument[:2] in ("-i", "-f") and len(argument) > 2:
            yield argument[:2], argument[2:]
        else:
            yield argument, ""
