"""The test fleet's command line: `python scripts/fleet check|up|start|down|inventory`.

`check` exits 0 when hosts can be booted here and 1 otherwise, with the reasons on standard output.
`inventory` prints Ansible's inventory as JSON; with no fleet running it is an empty group.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from typing import Any

import cache
import hosts

TOOLS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh": "openssh-client",
}


def obstacles() -> list[str]:
    """Return one sentence for each thing that keeps hosts from being booted here."""
    found = []
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        found.append("the test hosts are x86_64 Linux systems and this machine is not")
    elif os.geteuid() != 0:
        found.append("booting systemd-nspawn hosts needs root (run it as root)")
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        found.append(f"missing tools: run `apt-get install {' '.join(missing)}`")
    return found


def inventory() -> dict[str, Any]:
    """Return the running fleet as Ansible's script inventory wants it."""
    fleet = hosts.load()
    if fleet is None:
        return {"ep_fleet": {"hosts": []}, "_meta": {"hostvars": {}}}
    shared = {
        "ansible_user": cache.USER,
        "ansible_ssh_private_key_file": fleet.key,
        "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        " -o LogLevel=ERROR",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    variables = {
        host.name: {"ansible_host": host.address, "fleet_directory": host.directory, **shared}
        for host in fleet.hosts
    }
    return {
        "ep_fleet": {"hosts": [host.name for host in fleet.hosts]},
        "_meta": {"hostvars": variables},
    }


def main() -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    up = commands.add_parser("up")
    up.add_argument("systems", nargs="+", choices=sorted(cache.SYSTEMS), help="one for each host")
    up.add_argument("--bind", action="append", default=[], metavar="SOURCE:TARGET")
    up.add_argument("--wheels", action="store_true", help="the roles' wheels, at /srv/wheels")
    commands.add_parser("start", help="a host that is down").add_argument("name")
    commands.add_parser("down")
    commands.add_parser("inventory")
    supervise = commands.add_parser("supervise")  # started by `up`, one for each host
    supervise.add_argument("name")
    arguments = parser.parse_args()

    if arguments.command == "check":
        reasons = obstacles()
        print("\n".join(reasons))
        return 1 if reasons else 0
    if arguments.command == "inventory":
        print(json.dumps(inventory(), indent=2))
    elif arguments.command == "down":
        hosts.down()
    elif arguments.command == "up":
        for reason in obstacles():
            print(f"fleet: {reason}", file=sys.stderr)
            return 1
        binds = [*arguments.bind, *([f"{cache.wheels()}:/srv/wheels"] if arguments.wheels else [])]
        fleet = hosts.up(arguments.systems, binds)
        print("\n".join(f"{host.name} {host.address}" for host in fleet.hosts))
    else:
        fleet_or_none = hosts.load()
        if fleet_or_none is None:
            raise RuntimeError("no fleet is described, so there is no host to start")
        host = next(host for host in fleet_or_none.hosts if host.name == arguments.name)
        if arguments.command == "supervise":
            return hosts.supervise(fleet_or_none, host)
        hosts.start(host)
        hosts.wait([host])
    return 0


if __name__ == "__main__":
    sys.exit(main())
