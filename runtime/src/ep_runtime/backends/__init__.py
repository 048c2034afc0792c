"""Backends: what carries the data. None can be imported where this build does not fit the host."""

from ep_runtime.build import build_info
from ep_runtime.fit import require_fit

require_fit(build_info())
