"""Which GPU and NIC a rank has, on made trees of sysfs."""

import torch
from ep_runtime.bench import place


def test_on_the_cpu_the_interface_is_all_there_is():
    found = place.place_of(torch.device("cpu"), {"GLOO_SOCKET_IFNAME": "eth0"})
    assert found == place.Place("cpu", "cpu", "", ("eth0",))
    assert place.place_of(torch.device("cpu"), {}).nics == ()


class Properties:
    name = "NVIDIA H200"
    pci_domain_id = 0
    pci_bus_id = 0x1B
    pci_device_id = 0


def test_a_gpu_has_its_nearest_nic(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    affinity = [
        {"gpu": "0000:1a:00.0", "nics": ["mlx5_9"]},
        {"gpu": "0000:1B:00.0", "nics": ["mlx5_3", "mlx5_4"]},
    ]
    monkeypatch.setattr(place.nics, "affinity", lambda gpus, found: affinity)
    found = place.place_of(torch.device("cuda", 2), {"NCCL_SOCKET_IFNAME": "bond0"}, str(tmp_path))
    assert found == place.Place("cuda:2", "NVIDIA H200", "0000:1b:00.0", ("mlx5_3", "mlx5_4"))


def test_without_rdma_it_is_the_interface(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    found = place.place_of(torch.device("cuda", 0), {"NCCL_SOCKET_IFNAME": "bond0"}, str(tmp_path))
    assert found.nics == ("bond0",)


def test_a_torch_without_addresses(monkeypatch, tmp_path):
    class Old:
        name = "NVIDIA A100"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Old)
    assert place.place_of(torch.device("cuda", 0), {}, str(tmp_path)).gpu == ""
