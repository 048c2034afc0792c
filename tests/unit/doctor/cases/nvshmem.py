"""Faults of NVSHMEM and its settings."""

from __future__ import annotations

from hosts import NVSHMEM, VENV
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import case, environment, every, file, intent, nvshmem_copy, renamed, without

case(
    "EPD501",
    RHEL_9,
    every(without("opt/epfleet/nvshmem"), without(f"{VENV}/nvidia")),
    every(without("opt/epfleet/nvshmem"), without(f"{VENV}/nvidia"), intent(mode="off")),
)
case("EPD502", UBUNTU_2204, nvshmem_copy("3.2.5"), nvshmem_copy("3.3.9"))
case(
    "EPD503",
    RHEL_9,
    nvshmem_copy("3.4.5", major=12),
    every(
        nvshmem_copy("3.4.5", major=12),
        file(f"{VENV}/torch/version.py", "cuda: Optional[str] = '12.9'\n"),
    ),
)
case(
    "EPD504",
    DEBIAN_12,
    lambda tree: (
        tree.remove(f"{NVSHMEM}/lib/nvshmem_transport"),
        tree.nvshmem(NVSHMEM, "3.5.21", plugin=3),
    ),
    file(f"{NVSHMEM}/lib/nvshmem_transport_ibgda.so.3", b""),
)
case(
    "EPD505",
    DGX_OS,
    every(
        lambda tree: tree.nvshmem("opt/nvidia/nvshmem", "3.3.9"),
        environment(LD_PRELOAD="/opt/nvidia/nvshmem/lib/libnvshmem_host.so.3"),
    ),
    every(
        lambda tree: tree.nvshmem("opt/nvidia/nvshmem", "3.3.9"),
        environment(LD_LIBRARY_PATH="/opt/nvidia/nvshmem/lib"),
        file("etc/ld.so.conf.d/nvshmem.conf", "/opt/nvidia/nvshmem/lib\n"),
    ),
)
case(
    "EPD506",
    UBUNTU_2404,
    lambda tree: tree.remove(f"{tree.layout.library_directory}/libmlx5"),
    lambda tree: (
        tree.remove(f"{tree.layout.library_directory}/libmlx5"),
        tree.put(**{"etc/ld.so.conf.d/ofed.conf": "/opt/mellanox/lib\n"}),
        tree.put(**{"opt/mellanox/lib/libmlx5.so.1": b""}),
    ),
)
case("EPD507", UBUNTU_2204, nvshmem_copy("3.4.5", ibgda=False), nvshmem_copy("3.4.5"))
case("EPD508", SLES_15, nvshmem_copy("3.4.5"), nvshmem_copy("3.3.9"))
case(
    "EPD509",
    DEBIAN_12,
    every(environment(NVSHMEM_QP_DEPTH="512"), intent(num_tokens=256)),
    every(environment(NVSHMEM_QP_DEPTH="1024"), intent(num_tokens=511)),
)
case(
    "EPD510",
    RHEL_9,
    intent(num_ranks=2048, num_experts=256, num_qps_per_rank=64),
    intent(num_ranks=64, num_experts=256, num_qps_per_rank=24),
)
case(
    "EPD511",
    DGX_OS,
    environment(NVSHMEM_HCA_LIST="mlx5_0", NVSHMEM_HCA_PE_MAPPING="mlx5_0:1:1"),
    environment(NVSHMEM_HCA_LIST="mlx5_0"),
)
case(
    "EPD512",
    RHEL_9,
    renamed("ibp25s"),
    every(renamed("ibp25s"), environment(NVSHMEM_HCA_PREFIX="ibp")),
)
case(
    "EPD513",
    UBUNTU_2204,
    environment(NVSHMEM_IB_TRAFFIC_CLASS="106"),
    environment(NVSHMEM_IB_TRAFFIC_CLASS="0"),
)
case(
    "EPD514",
    DGX_OS,
    environment(NVSHMEM_IBGDA_NIC_HANDLER="cpu"),
    environment(NVSHMEM_IBGDA_NIC_HANDLER="auto"),
)
case(
    "EPD515",
    UBUNTU_2404,
    lambda tree: tree.put(
        **{f"{VENV}/torch-2.13.0.dist-info/METADATA": "Requires-Dist: nvidia-nvshmem-cu13==3.4.5\n"}
    ),
    lambda tree: tree.put(**{f"{VENV}/torch-2.13.0.dist-info/METADATA": "Name: torch\n"}),
)
case(
    "EPD516",
    SLES_15,
    intent(num_ranks=16, num_experts=256, num_qps_per_rank=8),
    intent(num_ranks=16, num_experts=256, num_qps_per_rank=16),
)
case(
    "EPD517",
    RHEL_9,
    lambda tree: tree.nvshmem(NVSHMEM, "3.6.5"),
    every(
        lambda tree: tree.nvshmem(NVSHMEM, "3.6.5"),
        environment(LD_PRELOAD=f"/{NVSHMEM}/lib/libnvshmem_host.so.3"),
    ),
)
