# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What a host is, what is wrong with it, and what fixes that.

The collection uses these same files, through the link ``plugins/module_utils/doctor``. So imports
in here are relative, and ``host`` and ``rules`` need nothing but Python 3.8's standard library.
"""
