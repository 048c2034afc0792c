"""A connection to this machine that is lost once a file exists, as behind a dead switch."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as LocalConnection

DOCUMENTATION = """
name: losable
short_description: A local connection that can be lost
description: Fails once the file that C(EPFLEET_TEST_LOST) names exists.
author: The epfleet authors (@epfleet)
"""


class Connection(LocalConnection):
    """See above."""

    transport = "losable"

    def exec_command(self, *args, **kwargs):
        _require()
        return super().exec_command(*args, **kwargs)

    def put_file(self, *args, **kwargs):
        _require()
        return super().put_file(*args, **kwargs)


def _require():
    if Path(os.environ["EPFLEET_TEST_LOST"]).exists():
        raise AnsibleConnectionFailure("No route to host")
