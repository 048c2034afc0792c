# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Readers of a host's state; none of them changes, loads or raises anything."""
