#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module driver_claim: take driver parameters out of others' configuration, or put them back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_claim
short_description: Take driver parameters over from other configuration files
version_added: 0.2.0
description:
  - Takes the assignments that would win over C(/etc/modprobe.d/zz-epfleet-nvidia.conf) out of
    modprobe.d files that sort later, and out of the boot loader's configuration.
  - Keeps the first state of each file in C(/var/lib/epfleet/record.json) on the host. With
    O(state=returned) the files are what they were, unless somebody changed them since.
options:
  owner:
    description: In whose name files are recorded; the role's.
    type: str
    required: true
  module:
    description: The kernel module's name in those files.
    type: str
    default: nvidia
  claims:
    description:
      - What to take out, each with C(parameter) and C(source), as the filter
        P(epfleet.expert_parallel.driver_plan#filter) gives them.
    type: list
    elements: dict
    default: []
  state:
    description: Whether the parameters are taken out or put back.
    type: str
    choices: [claimed, returned]
    default: claimed
attributes:
  check_mode:
    support: full
    description: Says which files would change, and changes none.
  diff_mode:
    support: full
    description: Shows the changed files.
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Take the options over
  epfleet.expert_parallel.driver_claim:
    owner: nvidia_driver
    claims:
      - {parameter: NVreg_RegistryDwords, source: /etc/modprobe.d/zzz-site.conf}
"""

RETURN = r"""
files:
  description: Paths of the files that were (or in check mode would be) changed.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import claims
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.modprobe import (
    COMMAND_LINE,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    RecordError,
    note_boot,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "owner": {"type": "str", "required": True},
            "module": {"type": "str", "default": "nvidia"},
            "claims": {"type": "list", "elements": "dict", "default": []},
            "state": {"type": "str", "choices": ["claimed", "returned"], "default": "claimed"},
        },
        supports_check_mode=True,
    )
    params, host = module.params, HostRoot()
    taking = params["state"] == "claimed"
    try:
        record = Record(host)
        if taking:
            files = claims.plan(host, params["module"], params["claims"])
        else:
            files = claims.restorable(host, record, params["owner"])
        before = {path: host.text(path) or "" for path in files}
        if not module.check_mode:
            if taking and files:
                gone = [c["parameter"] for c in params["claims"] if c["source"] == COMMAND_LINE]
                note_boot(host, gone)
                claims.apply(host, record, params["owner"], files, module.run_command)
            elif not taking:
                if files:
                    note_boot(host)
                claims.restore(host, record, params["owner"], files, module.run_command)
    except (claims.ClaimError, RecordError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(files),
        files=sorted(files),
        diff=[
            {
                "before_header": path,
                "after_header": path,
                "before": before[path],
                "after": content.decode("utf-8", "replace"),
            }
            for path, content in sorted(files.items())
        ],
    )


if __name__ == "__main__":
    main()
