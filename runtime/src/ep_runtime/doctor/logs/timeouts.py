# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of kernels that waited in vain: they tell where the wait was, not whose fault it is."""

from __future__ import annotations

from ..model import ERROR
from .message import add

_FIRST = (
    "Find the rank that printed none of these lines, or another error before them: that is the"
    " one the"
    " others waited for."
)

add(
    __name__,
    "EPL301",
    ERROR,
    "Low-latency kernels waited in vain for a peer",
    (
        "DeepEP timeout for dispatch receive, rank %d, local_expert_idx %d, src_rank %d",
        "DeepEP timeout for combine receive, rank %d, ... src_rank %d",
        "DeepEP timeout for barrier, rank %d, dst_rank %d",
    ),
    "The peer named src_rank died, hangs, or its messages do not arrive.",
    _FIRST,
    ("EPD602", "EPD603", "EPD902"),
)
add(
    __name__,
    "EPL302",
    ERROR,
    "Kernels within a host waited in vain",
    (
        "DeepEP timeout for dispatch senders, rank %d, responsible_channel = %d",
        "DeepEP timeout for dispatch receivers, rank %d, responsible_channel = %d",
        "DeepEP timeout for combine senders, rank %d, responsible_channel = %d",
        "DeepEP timeout for combine receivers, rank %d, responsible_channel = %d",
        "DeepEP timeout check failed: rank = %d, thread = %d, value = %d",
    ),
    "A rank on the same host died or did not make the same call.",
    _FIRST,
)
add(
    __name__,
    "EPL303",
    ERROR,
    "Dispatch between hosts waited in vain",
    (
        "DeepEP dispatch RDMA sender timeout",
        "DeepEP RDMA sender coordinator timeout",
        "DeepEP dispatch forwarder timeout",
        "DeepEP dispatch NVL receiver timeout",
    ),
    "RDMA messages do not arrive: a link, congestion without flow control, or a dead rank.",
    _FIRST + " On RoCE check PFC on the switches and MTU.",
    ("EPD602", "EPD603", "EPD606"),
)
add(
    __name__,
    "EPL304",
    ERROR,
    "Combine between hosts waited in vain",
    (
        "DeepEP combine NVL sender timeout",
        "DeepEP combine forwarder (RDMA check) timeout",
        "DeepEP combine forwarder (NVL check) timeout",
        "DeepEP combine RDMA receiver timeout",
    ),
    "RDMA messages do not arrive: a link, congestion without flow control, or a dead rank.",
    _FIRST + " On RoCE check PFC on the switches and MTU.",
    ("EPD602", "EPD603", "EPD606"),
)
add(
    __name__,
    "EPL305",
    ERROR,
    "Kernels of DeepEP V2 waited in vain",
    (
        "DeepEP NVLink barrier timeout",
        "DeepEP Gin barrier timeout",
        "DeepEP notify timeout",
        "DeepEP notify (GPU reduction) timeout",
        "DeepEP hybrid notify (",
        "DeepEP hybrid dispatch (forwarding) timeout",
        "DeepEP combine (scale-up wait) timeout",
        "DeepEP combine (scale-out wait all) timeout",
        "DeepEP PP send timeout, recv buffer is full",
        "DeepEP PP recv timeout, recv buffer is empty",
    ),
    "A peer died, or its messages do not arrive.",
    _FIRST,
    ("EPD602", "EPD603"),
)
add(
    __name__,
    "EPL306",
    ERROR,
    "The runtime waited in vain for a rank",
    ("waited %d us for rank %d", "a peer is missing or stuck"),
    "The rank named there died, hangs, or is cut off.",
    "Look at that rank's host first: its log, then `ep-doctor` on it.",
    ("EPD602", "EPD316"),
)
add(
    __name__,
    "EPL307",
    ERROR,
    "A kernel stopped itself",
    ("unspecified launch failure",),
    "A device-side check failed or a timeout ran out; the reason was printed before.",
    "Look for the first line of any rank that names an assertion or a timeout.",
)
