"""Which interface the ranks meet at, and whether the port is free."""

from __future__ import annotations

import socket

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import ep_network

HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
LOCAL = "eth0 0002A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
ADDRESSES = {"lo": "127.0.0.1", "eth0": "192.168.2.5", "ib0": "10.0.0.5"}


def default(name, metric):
    return f"{name} 00000000 0102A8C0 0003 0 0 {metric} 00000000 0 0 0\n"


def test_the_default_route_with_the_least_metric_wins():
    table = HEAD + LOCAL + default("eth0", 100) + default("ib0", 50)
    assert ep_network.default_interface(table) == "ib0"
    assert ep_network.choose_interface("", ADDRESSES, table) == "ib0"


def test_a_wish_wins_over_the_route():
    assert ep_network.choose_interface("ib0", ADDRESSES, HEAD + default("eth0", 0)) == "ib0"


def test_without_a_route_the_only_interface_is_taken():
    only = {"lo": "127.0.0.1", "host0": "10.1.1.2"}
    assert ep_network.choose_interface("", only, HEAD) == "host0"


def test_without_a_route_several_interfaces_are_a_question():
    with pytest.raises(ep_network.NetworkError, match=r"set ep_benchmark_interface.*ib0 \(10\.0"):
        ep_network.choose_interface("", ADDRESSES, HEAD + LOCAL)


def test_a_wrong_interface_is_named_with_what_there_is():
    with pytest.raises(ep_network.NetworkError, match=r"eth7, which has no.*eth0 \(192\.168"):
        ep_network.choose_interface("eth7", ADDRESSES, HEAD)


def test_this_host_has_a_loopback_address():
    assert "127.0.0.1" in ep_network.interface_addresses().values()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_listening_port_is_seen(family, address):
    with socket.socket(family) as server:
        try:
            server.bind((address, 0))
        except OSError:
            assert family == socket.AF_INET6
            pytest.skip("no IPv6 loopback address on this machine")
        port = server.getsockname()[1]
        assert not ep_network.port_in_use(port, ep_network.listeners())
        server.listen()
        assert ep_network.port_in_use(port, ep_network.listeners())
        assert ep_network.answers(address, port, 2.0)
    assert not ep_network.port_in_use(port, ep_network.listeners())
    assert not ep_network.answers(address, port, 0.2)
