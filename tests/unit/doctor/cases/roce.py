"""Faults of RoCE's flow control."""

from __future__ import annotations

from layouts import DEBIAN_12, UBUNTU_2404

from .changes import case, environment, every, without

case(
    "EPD614",
    DEBIAN_12,
    lambda tree: tree.flow_control(0, lossless=None),
    # dcb does not say.
    without("run/epfleet/recorded/dcb-pfc-ens0np0"),
)
case(
    "EPD615",
    UBUNTU_2404,
    lambda tree: tree.flow_control(1, given="", table=""),
    every(
        lambda tree: tree.flow_control(0, given=""),
        lambda tree: tree.flow_control(1, given=""),
        environment(NVSHMEM_IB_TRAFFIC_CLASS="106"),
    ),
)
