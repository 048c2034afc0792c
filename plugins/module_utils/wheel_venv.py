# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What an interpreter or a virtual environment on this host is and holds.

Everything is asked of the interpreter itself, because a module runs under whatever Python
Ansible found, which need not be the one the runtime is installed for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import (
    redacted,
    split_pip_arguments,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    find_dist_info,
    read_installed,
)

DISTRIBUTION = "ep-runtime"
DROP_IN = "ep-runtime-deep-ep"
MARKER = ".epfleet-ep-runtime.json"
_TIMEOUT_S = 120

_ASK_INTERPRETER = """
import importlib.util, json, os, platform, sys, sysconfig
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    "machine": platform.machine(),
    "libc": "-".join(platform.libc_ver()),
    "site_packages": sysconfig.get_path("platlib"),
    "pip": importlib.util.find_spec("pip") is not None,
    "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""

# pip's own copy of `packaging` is in every environment that pip is in.
_ASK_REQUIREMENTS = """
import importlib.metadata as metadata, json, sys
from pip._vendor.packaging.requirements import Requirement
wanted = json.load(sys.stdin)
problems = []
for text in wanted["requirements"]:
    requirement = Requirement(text)
    extras = [*wanted["extras"], ""]
    marker = requirement.marker
    if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
        continue
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        problems.append("%s is not installed" % requirement.name)
        continue
    if not requirement.specifier.contains(version, prereleases=True):
        problems.append("%s is %s, not %s" % (requirement.name, version, requirement.specifier))
print(json.dumps(problems))
"""

_ASK_BUILD_INFO = "import ep_runtime, json; print(json.dumps(ep_runtime.build_info()))"


class VenvError(RuntimeError):
    """A command on the host failed; the message says which, and with what output."""


def clean_environment() -> dict[str, str]:
    """The environment for other interpreters: without this one's own Python variables."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }


def run(
    command: list[str],
    timeout_s: int = _TIMEOUT_S,
    stdin: str = "",
    environment: dict[str, str] | None = None,
) -> str:
    """Run ``command`` and return its standard output; raise ``VenvError`` with its last lines."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=timeout_s,
            env=environment or clean_environment(),
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VenvError(redacted(f"{' '.join(command[:4])} failed: {error}")) from error
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        told = "{} failed with exit code {}:\n{}".format(
            " ".join(command[:4]), done.returncode, "\n".join(lines[-25:])
        )
        raise VenvError(redacted(told))
    return done.stdout


def pip(
    python: str,
    command: list[str],
    pip_args: list[str],
    wanted: list[str],
    timeout_s: int,
    variables: dict[str, str] | None = None,
) -> None:
    """Run ``pip command pip_args wanted`` of ``python``, with ``variables`` in its environment.

    ``pip_args`` are the operator's; passwords in them go by the environment. Raises ``VenvError``.
    """
    plain, hidden = split_pip_arguments(pip_args)
    run(
        [
            python,
            "-m",
            "pip",
            "--no-input",
            "--disable-pip-version-check",
            *command,
            *plain,
            *wanted,
        ],
        timeout_s=timeout_s,
        environment={**clean_environment(), **(variables or {}), **hidden},
    )


def inspect_python(python: str) -> dict[str, Any] | None:
    """Return what ``python`` says of itself, or None when it does not run."""
    try:
        answer: dict[str, Any] = json.loads(run([python, "-I", "-c", _ASK_INTERPRETER]))
    except (VenvError, ValueError):
        return None
    return answer


def venv_python(venv: str) -> str:
    """The interpreter of a virtual environment."""
    return os.path.join(venv, "bin", "python")


def inspect_environment(venv: str) -> dict[str, Any] | None:
    """Return what the interpreter of ``venv`` says of itself, or None without an environment.

    A directory that lost its ``pyvenv.cfg`` has an interpreter that speaks for the system.
    """
    python = venv_python(venv)
    about = inspect_python(python) if os.path.exists(python) else None
    if about is None:
        return None
    inside = os.path.realpath(about["site_packages"]) + os.sep
    return about if inside.startswith(os.path.realpath(venv) + os.sep) else None


def pip_is_whole(about: dict[str, Any]) -> bool:
    """Whether the environment has a pip that was not cut short when it was installed.

    A pip from outside of the environment (system packages) is the system's business.
    """
    if not about["pip"] or not os.path.isdir(os.path.join(about["site_packages"], "pip")):
        return bool(about["pip"])
    found = read_installed(about["site_packages"], "pip")
    return found is not None and found["payload"] is not None


def discard_pip(about: dict[str, Any]) -> None:
    """Remove what is left of the environment's own pip, so that ensurepip installs it anew."""
    site_packages = about["site_packages"]
    for path in [os.path.join(site_packages, "pip"), *find_dist_info(site_packages, "pip")]:
        shutil.rmtree(path, ignore_errors=True)


def unmet_requirements(python: str, requirements: list[str], extras: list[str]) -> list[str]:
    """Say which of ``requirements`` the environment of ``python`` does not meet."""
    question = json.dumps({"requirements": requirements, "extras": extras})
    problems: list[str] = json.loads(run([python, "-I", "-c", _ASK_REQUIREMENTS], stdin=question))
    return problems


def build_info(python: str, drop_in: bool) -> dict[str, Any]:
    """Import the runtime, and with ``drop_in`` its ``deep_ep``, as a program would."""
    if drop_in:
        run([python, "-I", "-c", "import deep_ep"])
    answer: dict[str, Any] = json.loads(run([python, "-I", "-c", _ASK_BUILD_INFO]))
    return answer


def torn_distributions(site_packages: str) -> list[str]:
    """Return the ``.dist-info`` directories that an interrupted pip left without a RECORD.

    pip takes such a distribution as installed and then cannot replace it.
    """
    torn = []
    for name in sorted(os.listdir(site_packages)) if os.path.isdir(site_packages) else []:
        path = os.path.join(site_packages, name)
        if not name.endswith(".dist-info") or os.path.exists(os.path.join(path, "RECORD")):
            continue
        # Distributions of other installers may have no RECORD by design; pip's never.
        installer = os.path.join(path, "INSTALLER")
        if not os.path.exists(installer) or _first_line(installer) == "pip":
            torn.append(path)
    return torn


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.readline().strip()


def read_marker(venv: str) -> dict[str, Any]:
    """Return what the last verified installation noted in ``venv``; empty without one."""
    try:
        with open(os.path.join(venv, MARKER), encoding="utf-8") as stream:
            marker = json.load(stream)
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def write_marker(venv: str, content: dict[str, Any]) -> None:
    """Note a verified installation, in one step."""
    path = os.path.join(venv, MARKER)
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=2, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(fresh, path)


def inspect_venv(venv: str, requirements: list[str], extras: list[str]) -> dict[str, Any]:
    """Return the state of ``venv`` as far as the runtime is concerned.

    ``python`` is None when there is no working environment; ``installed`` is None without the
    runtime, ``drop_in`` without its ``deep_ep``; ``problems`` says what of the runtime's and the
    caller's requirements is not met.
    """
    state: dict[str, Any] = {
        "python": None,
        "installed": None,
        "drop_in": None,
        "marker": {},
        "problems": [],
    }
    python = venv_python(venv)
    about = inspect_environment(venv)
    if about is None or not pip_is_whole(about):
        state["problems"] = [f"{venv} is not a virtual environment with pip"]
        return state
    state["python"] = about
    state["marker"] = read_marker(venv)
    state["problems"] = [
        f"{os.path.basename(path)} is only half installed"
        for path in torn_distributions(about["site_packages"])
    ]
    state["installed"] = read_installed(about["site_packages"], DISTRIBUTION)
    state["drop_in"] = read_installed(about["site_packages"], DROP_IN)
    if state["installed"] is not None and state["installed"]["payload"] is not None:
        requirements = requirements + installed_requirements(python)
    state["problems"] += unmet_requirements(python, requirements, extras)
    return state


def installed_requirements(python: str) -> list[str]:
    """Return the requirements that the installed runtime declares."""
    ask = (
        "import importlib.metadata as m, json;"
        f"print(json.dumps(m.metadata({DISTRIBUTION!r}).get_all('Requires-Dist') or []))"
    )
    answer: list[str] = json.loads(run([python, "-I", "-c", ask]))
    return answer


def why_install(
    state: dict[str, Any],
    key: str,
    payload: str | None,
    drop_in: bool = False,
    drop_in_payload: str | None = None,
) -> list[str]:
    """Say why the runtime of ``key`` must still be installed into a venv; empty when it is there.

    ``state`` comes from ``inspect_venv``; the payloads are those of the cached wheels, or None when
    no wheel is at hand; ``drop_in`` is whether ``deep_ep`` is wanted. A payload that differs from
    the cached one is right all the same when it is exactly what was verified for this key: another
    controller has built that one.
    """
    if state["python"] is None:
        return list(state["problems"])
    marker = state["marker"]
    verified = marker if marker.get("key") == key else {}
    reasons = _why(DISTRIBUTION, state["installed"], verified.get("payload"), payload)
    if drop_in:
        reasons += _why(DROP_IN, state["drop_in"], verified.get("drop_in"), drop_in_payload)
    elif state["drop_in"] is not None:
        reasons.append(f"{DROP_IN} is installed, but not wanted")
    return reasons + list(state["problems"])


def _why(
    name: str, installed: dict[str, Any] | None, verified: str | None, payload: str | None
) -> list[str]:
    """Say why ``name`` must be installed, from what is installed, was verified and is at hand."""
    if installed is None:
        return [f"{name} is not installed"]
    if installed["payload"] is None:
        return [f"{name} is only half installed"]
    if installed["payload"] == verified:
        return []
    if installed["payload"] == payload:
        return [f"the installed {name} has not been verified"]
    return [f"another build of {name} is installed"]
