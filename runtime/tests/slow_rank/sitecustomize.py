"""Makes the first rank of a host slow: for PYTHONPATH of that host's ranks alone.

``EP_SLOW_CASE`` is one of ``slow_cases.CASES``. Python imports this file when it starts.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder

_BEFORE = "ep_runtime.bench.run"


class _Finder(MetaPathFinder):
    """Slows this process down once the benchmark's run has been imported, and not before."""

    def find_spec(self, name, path, target=None):
        if name != _BEFORE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_slow_down(module):
            load(module)
            import slow_cases

            slow_cases.slow_down(os.environ["EP_SLOW_CASE"])

        spec.loader.exec_module = load_and_slow_down
        return spec


if os.environ.get("LOCAL_RANK") == "0" and "EP_SLOW_CASE" in os.environ:
    sys.meta_path.insert(0, _Finder())
