# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The fleet's settings with their defaults, and one sentence for each that cannot be right."""

from __future__ import annotations

import re
from typing import Any, Dict, List

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import nvshmem
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import redacted

MODES = ("auto", "gpu", "cpu", "off")
POLICIES = ("never", "when_needed", "always")
DTYPES = ("fp8", "bf16")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_TOPK = 32
HIDDEN_MULTIPLE = 128
DEFAULT_RANKS = 2

SETTINGS: Dict[str, Any] = {
    "ibgda_mode": "auto",
    "reboot_policy": "when_needed",
    "failure_budget": 0,
    "serial": [1, "25%"],
    "pip_args": [],
    "mirror": "",
    "become": True,
}


def settings(variables: Dict[str, Any]) -> Dict[str, Any]:
    """The ``epfleet_*`` variables without their prefix, defaults filled in; checked by ``host``."""
    values = {name: variables.get("epfleet_" + name, default) for name, default in SETTINGS.items()}
    # Values given with -e on the command line are strings.
    values["become"] = _boolean(values["become"])
    if isinstance(values["failure_budget"], str) and values["failure_budget"].isdigit():
        values["failure_budget"] = int(values["failure_budget"])
    return values


def pip_arguments(arguments: List[str], mirror: str) -> List[str]:
    """``epfleet_pip_args`` with what ``epfleet_mirror`` means for pip."""
    if not mirror:
        return list(arguments)
    return ["--no-index", "--find-links", mirror.rstrip("/") + "/wheels", *arguments]


def host_problems(variables: Dict[str, Any], values: Dict[str, Any]) -> List[str]:
    """Problems visible from one host's variables alone, before anything is connected to."""
    problems = []
    for name, choices in (("ibgda_mode", MODES), ("reboot_policy", POLICIES)):
        # YAML reads a bare off as false.
        if name == "ibgda_mode" and values[name] is False:
            values[name] = "off"
        if values[name] not in choices:
            problems.append(
                f"epfleet_{name} is {values[name]!r}; it must be one of {', '.join(choices)}."
            )
    if not isinstance(values["become"], bool):
        problems.append(f"epfleet_become is {values['become']!r}; it must be true or false.")
    budget = values["failure_budget"]
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        problems.append(
            f"epfleet_failure_budget is {budget!r}; it must be a number of hosts, 0 or more."
        )
    problems += _serial_problems(values["serial"])
    arguments = values["pip_args"]
    if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
        told = redacted(repr(arguments))
        problems.append(f"epfleet_pip_args is {told}; it must be a list of pip arguments.")
    mirror = values["mirror"]
    if not isinstance(mirror, str) or (mirror and not re.match(r"^(/|https?://|file:///)", mirror)):
        problems.append(
            f"epfleet_mirror is {redacted(repr(mirror))}; it must be a URL, or a folder on the"
            " hosts such as /srv/bundle."
        )
    problems += _nvshmem_problems(variables)
    return problems + _benchmark_problems(variables)


def line_problems(variables: Dict[str, Any]) -> List[str]:
    """One sentence for each variable with a line break or another control character.

    No variable of the roles needs one, and in a file of settings the next line is another setting.
    """
    return [
        f"{name} has a control character or a line break; it must be one line of text."
        for name, value in sorted(variables.items())
        if any(_CONTROL.search(text) for text in _texts(value))
    ]


def _texts(value: Any) -> List[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return [text for part in value for text in _texts(part)] if isinstance(value, list) else []


def _serial_problems(serial: Any) -> List[str]:
    steps = serial if isinstance(serial, list) else [serial]
    if steps and all(re.match(r"^[1-9]\d*%?$", str(step)) for step in steps):
        return []
    return [
        f"epfleet_serial is {serial!r}; it must be a number of hosts (4), a share (25%),"
        " or a list of those."
    ]


def _nvshmem_problems(variables: Dict[str, Any]) -> List[str]:
    version = str(variables.get("nvshmem_version", nvshmem.FLOOR))
    try:
        if nvshmem.version_key(version) >= nvshmem.version_key(nvshmem.FLOOR):
            return []
    except ValueError as error:
        return [f"nvshmem_version: {error}."]
    return [f"nvshmem_version is {version}; low-latency kernels need {nvshmem.FLOOR} or newer."]


def _benchmark_problems(variables: Dict[str, Any]) -> List[str]:
    numbers: Dict[str, int] = {}
    problems = []
    for name in ("num_tokens", "hidden", "num_experts", "num_topk", "ranks_per_host", "runs"):
        variable = "ep_benchmark_" + name
        if variables.get(variable) is None:
            continue
        try:
            numbers[name] = int(variables[variable])
        except (TypeError, ValueError):
            problems.append(f"{variable} is {variables[variable]!r}; it must be a whole number.")
            continue
        if numbers[name] < (0 if name == "ranks_per_host" else 1):
            problems.append(f"{variable} is {numbers[name]}; it must be greater than zero.")
    hidden = numbers.get("hidden", HIDDEN_MULTIPLE)
    if hidden % HIDDEN_MULTIPLE:
        problems.append(
            f"ep_benchmark_hidden is {hidden}; it must be a multiple of {HIDDEN_MULTIPLE}."
        )
    topk = numbers.get("num_topk", 1)
    if topk > min(MAX_TOPK, numbers.get("num_experts", MAX_TOPK)):
        problems.append(
            f"ep_benchmark_num_topk is {topk}; it must be at most {MAX_TOPK} and at most"
            f" ep_benchmark_num_experts ({numbers.get('num_experts')})."
        )
    dtype = variables.get("ep_benchmark_dtype")
    if dtype is not None and dtype not in DTYPES:
        problems.append(f"ep_benchmark_dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    return problems


def fleet_problems(hosts: Dict[str, Dict[str, Any]], benchmark: bool = True) -> List[str]:
    """Problems visible only over all hosts: ``{host: {variable: value, "epfleet": facts}}``.

    Ranks matter only to a run that includes the ``benchmark``.
    """
    majors: Dict[int, List[str]] = {}
    ranks: Dict[int, List[str]] = {}
    for name, variables in hosts.items():
        facts = variables["epfleet"]
        major = variables.get("nvshmem_cuda_major") or facts["cuda"]["major"]
        if major:
            majors.setdefault(int(major), []).append(name)
        given = int(variables.get("ep_benchmark_ranks_per_host") or 0)
        count = given or facts["nvidia"]["gpu_count"] or DEFAULT_RANKS
        ranks.setdefault(count, []).append(name)
    problems = []
    if len(majors) > 1:
        told = "; ".join(f"CUDA {major}: {_some(names)}" for major, names in sorted(majors.items()))
        problems.append(
            "nvshmem_cuda_major: all hosts of one run need the same CUDA major, but here are"
            f" {told}. Run them apart with --limit, or set nvshmem_cuda_major for all."
        )
    return problems + (_rank_problems(hosts, ranks) if benchmark else [])


def _rank_problems(hosts: Dict[str, Dict[str, Any]], ranks: Dict[int, List[str]]) -> List[str]:
    masked = all(variables.get("ep_benchmark_uneven") == "mask" for variables in hosts.values())
    if len(ranks) > 1 and not masked:
        told = "; ".join(f"{count} on {_some(names)}" for count, names in sorted(ranks.items()))
        return [
            "ep_benchmark_ranks_per_host: all hosts need the same number of ranks, but here are"
            f" {told}. Set it for all, or ep_benchmark_uneven to mask, or leave the benchmark out"
            " with --skip-tags ep_benchmark."
        ]
    total = min(ranks, default=0) * len(hosts)
    counts = {int(variables.get("ep_benchmark_num_experts") or 0) for variables in hosts.values()}
    return [
        f"ep_benchmark_num_experts is {experts}; it must be divisible by the number of ranks,"
        f" {total} on {len(hosts)} hosts."
        for experts in sorted(counts)
        if experts % (total or 1)
    ]


def _some(names: List[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _boolean(value: Any) -> Any:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value
