# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""NVSHMEM: one copy, the right one, complete, and set up for the run."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from ..host import nvshmem
from ..intent import remote
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule

# "Unable to create ah": a field of the address handle was not initialised (NVSHMEM issue 21).
_BAD_ADDRESS_HANDLE = ("3.3.20", "3.4.5")
# From here on devices are found whatever their names are.
_ANY_DEVICE_NAME = "3.5.21"
_DEFAULT_DEPTH, _MIN_DEPTH, _MAX_DEPTH = 1024, 128, 32768
# mlx5 devices allow 2^18 queue pairs; others on the host need some of them.
_QUEUE_PAIRS = 262144
# One work queue entry of a queue pair's send queue.
_ENTRY_BYTES = 64
_QUEUE_BYTES_LIMIT = 4 * 2**30
_RANKS_OF_A_HOST = 8


def _used(facts: Facts) -> Optional[Dict[str, Any]]:
    """The copy whose library a process would load; the first one where that cannot be told."""
    loaded = facts["nvshmem_loaded"]["path"]
    copies: List[Dict[str, Any]] = facts["nvshmem"]
    found = [copy for copy in copies if copy["library"] == loaded]
    return next(iter(found or copies), None)


def _own(facts: Facts) -> Optional[Dict[str, Any]]:
    """The copy in the Python environment, which torch brought."""
    site = facts["runtime"]["site"]
    return next((c for c in facts["nvshmem"] if site and c["path"].startswith(site)), None)


def _variable(facts: Facts, name: str) -> Tuple[Optional[str], str]:
    item = facts["environment"].get(name)
    return (item["value"], f"/etc/environment:{item['line']}") if item else (None, "")


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None


def _at_least(copy: Dict[str, Any], version: str) -> bool:
    return nvshmem.version_key(copy["version"]) >= nvshmem.version_key(version)


@rule(
    "EPD501",
    ERROR,
    "There is no NVSHMEM",
    "GPUs of different hosts cannot reach each other.",
    "Run role nvshmem (variable nvshmem_version), or `pip install nvidia-nvshmem-cu13` into the"
    " environment.",
    role="nvshmem",
)
def missing(facts: Facts, intent: Intent) -> List[Evidence]:
    """No copy in the role's prefix, the Python environment, or where packages and archives put"
    " it.
    """
    if remote(intent) and not facts["nvshmem"]:
        return [Evidence("/opt/epfleet/nvshmem", "no copy", f"{nvshmem.FLOOR} or newer")]
    return []


@rule(
    "EPD502",
    ERROR,
    "NVSHMEM is too old",
    "Low-latency kernels do not run on it.",
    "Set nvshmem_version to {wanted} and run role nvshmem.",
    role="nvshmem",
)
def too_old(facts: Facts, intent: Intent) -> List[Evidence]:
    """3.3.9 is the first version with what these kernels and DeepEP ask for."""
    copy = _used(facts)
    if copy is None or not remote(intent) or _at_least(copy, nvshmem.FLOOR):
        return []
    return [Evidence(copy["path"], copy["version"], f"{nvshmem.FLOOR} or newer")]


@rule(
    "EPD503",
    ERROR,
    "NVSHMEM was built for another CUDA major than torch",
    "`libcudart.so.12: cannot open shared object file`, or undefined symbols at the first import.",
    "Install the copy for CUDA {wanted}: variable nvshmem_cuda_major, package"
    " nvidia-nvshmem-cu{wanted}.",
    role="nvshmem",
)
def wrong_cuda(facts: Facts, intent: Intent) -> List[Evidence]:
    """Torch tells which CUDA the process will have; torch 2.11 and later are built for CUDA 13
    unless asked otherwise.
    """
    copy, cuda = _used(facts), facts["runtime"]["torch_cuda"]
    if copy is None or copy["cuda_major"] is None or not cuda:
        return []
    major = cuda.split(".")[0]
    if str(copy["cuda_major"]) == major:
        return []
    return [Evidence(copy["path"], f"CUDA {copy['cuda_major']}", major)]


@rule(
    "EPD504",
    ERROR,
    "NVSHMEM's plugins belong to another version than its library",
    "The library looks for another so-version and starts without IBGDA.",
    "Remove {where} and install one version, whole.",
)
def mixed_plugins(facts: Facts, intent: Intent) -> List[Evidence]:
    """The so-version of the transport plugins must be the one that the header of the library names
    (NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION). Two installations over each other leave a mixture.
    """
    found = []
    for copy in facts["nvshmem"]:
        versions = copy["plugins"].get("ibgda")
        if copy["plugin_abi"] is not None and versions and copy["plugin_abi"] not in versions:
            seen = ", ".join(f"nvshmem_transport_ibgda.so.{number}" for number in versions)
            found.append(Evidence(copy["path"], seen, f"so-version {copy['plugin_abi']}"))
    return found


@rule(
    "EPD505",
    ERROR,
    "A process would load an older NVSHMEM than torch was built with",
    "`NVSHMEM device library version does not match with NVSHMEM host library version`, or a hang.",
    "Take {where} out of LD_PRELOAD in /etc/environment and out of /etc/ld.so.preload, or put"
    " {wanted}"
    " or newer in its place.",
)
def shadowed(facts: Facts, intent: Intent) -> List[Evidence]:
    """All copies have one name for the loader (libnvshmem_host.so.3), so the first one that is
    mapped serves all. A newer host library works with older device code, an older one does not.
    """
    path, own, used = facts["nvshmem_loaded"]["path"], _own(facts), _used(facts)
    if path is None or own is None or used is None or _at_least(used, own["version"]):
        return []
    return [Evidence(path, used["version"], own["version"])]


@rule(
    "EPD506",
    ERROR,
    "NVSHMEM's IBGDA plugin lacks libmlx5",
    "The plugin cannot be loaded (`Unable to dlopen libmlx5dv`): no IBGDA.",
    "Install rdma-core's libmlx5: package ibverbs-providers (Debian, Ubuntu), libibverbs (Red Hat),"
    " libmlx5-1 (SUSE), or DOCA-OFED.",
)
def no_libmlx5(facts: Facts, intent: Intent) -> List[Evidence]:
    """The wheels bring their own NVSHMEM, but rdma-core must come from the host."""
    copy = _used(facts)
    if not remote(intent) or copy is None or "ibgda" not in copy["plugins"]:
        return []
    missing_ones = [
        name for name in ("libmlx5.so.1", "libibverbs.so.1") if facts["libraries"][name] is None
    ]
    return [Evidence(copy["path"], f"{name} is nowhere", "rdma-core") for name in missing_ones]


@rule(
    "EPD507",
    ERROR,
    "NVSHMEM was built without IBGDA",
    "GPUs have no queue pairs of their own (building kernels against it fails with an undefined"
    " reference to `nvshmemi_ibgda_device_state_d`).",
    "Use NVIDIA's wheels or packages, or build with -DNVSHMEM_IBGDA_SUPPORT=1.",
)
def without_ibgda(facts: Facts, intent: Intent) -> List[Evidence]:
    """The build's variables in its version header say IBGDA_SUPPORT=OFF, or its plugins lack it."""
    copy = _used(facts)
    if not remote(intent) or copy is None:
        return []
    if copy["ibgda"] is False or (copy["plugins"] and "ibgda" not in copy["plugins"]):
        return [Evidence(copy["path"], "NVSHMEM_IBGDA_SUPPORT=OFF", "NVSHMEM_IBGDA_SUPPORT=ON")]
    return []


@rule(
    "EPD508",
    WARNING,
    "This NVSHMEM fails on some RoCE networks",
    "`Unable to create ah` at the start, on some switches and NICs.",
    "Set nvshmem_version to 3.5.21 or newer.",
)
def address_handle(facts: Facts, intent: Intent) -> List[Evidence]:
    """Versions 3.3.20 to 3.4.5 leave a field of an address handle uninitialised; RoCE uses it."""
    copy = _used(facts)
    roce = any(p["link_layer"] == "Ethernet" for nic in facts["nics"] for p in nic["ports"])
    if copy is None or not roce or not remote(intent):
        return []
    first, last = (nvshmem.version_key(version) for version in _BAD_ADDRESS_HANDLE)
    if first <= nvshmem.version_key(copy["version"]) <= last:
        return [Evidence(copy["path"], copy["version"], "3.5.21 or newer")]
    return []


@rule(
    "EPD509",
    ERROR,
    "NVSHMEM's queues are too short for the number of tokens",
    "Work queues overflow: wrong token counts or a hang under imbalanced load.",
    "Set NVSHMEM_QP_DEPTH to {wanted} or more (a power of two up to 32768), or leave it unset.",
)
def short_queues(facts: Facts, intent: Intent) -> List[Evidence]:
    """Dispatch and combine may each put one entry per token and a flag on one queue pair, so the
    depth must be at least 2 * (tokens + 1).
    """
    text, where = _variable(facts, "NVSHMEM_QP_DEPTH")
    depth = intent["qp_depth"] or _number(text) or _DEFAULT_DEPTH
    needed = max(_MIN_DEPTH, 2 * (intent["num_tokens"] + 1))
    if not remote(intent) or (needed <= depth <= _MAX_DEPTH):
        return []
    tokens = f"{intent['num_tokens']} tokens per rank"
    return [Evidence(where or "NVSHMEM_QP_DEPTH", f"{depth} for {tokens}", str(needed))]


@rule(
    "EPD510",
    WARNING,
    "The run asks for more queue pairs than a NIC serves well",
    "Creation takes minutes or fails (`qp creation failed`), and queues fill GPU memory.",
    "Lower num_qps_per_rank, NVSHMEM_QP_DEPTH or the number of ranks: {seen}.",
)
def too_many_queues(facts: Facts, intent: Intent) -> List[Evidence]:
    """Every rank has num_qps_per_rank queue pairs to every other; each has a send queue of 64 bytes
    an entry. Told above 262144 queue pairs a NIC, or 4 GiB of queues a GPU.
    """
    ranks, queues = intent["num_ranks"], _queues(intent)
    if not remote(intent) or not ranks or not queues or not facts["nics"]:
        return []
    depth = intent["qp_depth"] or _number(_variable(facts, "NVSHMEM_QP_DEPTH")[0]) or _DEFAULT_DEPTH
    of_a_gpu = queues * (ranks - 1)
    of_a_nic = of_a_gpu * -(-facts["nvidia"]["gpu_count"] // len(facts["nics"]))
    queue_bytes = of_a_gpu * depth * _ENTRY_BYTES
    found = []
    asked = f"{queues} queue pairs x {ranks - 1} peers"
    if of_a_nic > _QUEUE_PAIRS:
        found.append(Evidence(asked, f"{of_a_nic} a NIC", f"at most {_QUEUE_PAIRS}"))
    if queue_bytes > _QUEUE_BYTES_LIMIT:
        seen = f"{queue_bytes / 2**30:.1f} GiB of queues at depth {depth}"
        found.append(Evidence(asked, seen, "at most 4 GiB a GPU"))
    return found


def _queues(intent: Intent) -> Optional[int]:
    if intent["num_qps_per_rank"]:
        return int(intent["num_qps_per_rank"])
    return intent["num_experts"] // intent["num_ranks"] if intent["num_ranks"] else None


@rule(
    "EPD511",
    WARNING,
    "NVSHMEM_HCA_LIST and NVSHMEM_HCA_PE_MAPPING are both set",
    "NVSHMEM takes the list and drops the mapping: GPUs may use far NICs.",
    "Keep one of them.",
)
def list_and_mapping(facts: Facts, intent: Intent) -> List[Evidence]:
    """The two exclude each other."""
    both = [_variable(facts, name) for name in ("NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING")]
    if any(value is None for value, _where in both):
        return []
    return [Evidence(both[1][1], f"NVSHMEM_HCA_PE_MAPPING={both[1][0]}", "not beside a list")]


@rule(
    "EPD512",
    ERROR,
    "This NVSHMEM does not find RDMA devices of these names",
    "`no active IB device that supports GPU-initiated communication is found`.",
    "Set nvshmem_version to 3.5.21 or newer; or, from 3.4.5, NVSHMEM_HCA_PREFIX to the names'"
    " common"
    " beginning.",
)
def device_names(facts: Facts, intent: Intent) -> List[Evidence]:
    """Older versions look at devices called mlx5_* alone. rdma-core's own rules call them ibp* and
    rocep*, those of DOCA-OFED mlx5_*.
    """
    copy = _used(facts)
    if copy is None or not remote(intent) or _at_least(copy, _ANY_DEVICE_NAME):
        return []
    prefix = _variable(facts, "NVSHMEM_HCA_PREFIX")[0] or "mlx5"
    listed = _variable(facts, "NVSHMEM_HCA_LIST")[0]
    names = [nic["name"] for nic in facts["nics"] if nic["driver"] == "mlx5_core"]
    if not names or listed or any(name.startswith(prefix) for name in names):
        return []
    return [Evidence("/sys/class/infiniband", ", ".join(names), f"names beginning with {prefix}")]


@rule(
    "EPD513",
    ERROR,
    "NVSHMEM_IB_TRAFFIC_CLASS is set on InfiniBand",
    "Queue pairs cannot be connected (`mlx5dv_devx_obj_modify` fails, syndrome 764216).",
    "Remove it from {where}; on InfiniBand the service level (NVSHMEM_IB_SL) takes its place.",
)
def traffic_class(facts: Facts, intent: Intent) -> List[Evidence]:
    """Traffic classes belong to RoCE."""
    value, where = _variable(facts, "NVSHMEM_IB_TRAFFIC_CLASS")
    layers = {port["link_layer"] for nic in facts["nics"] for port in nic["ports"]}
    if value in (None, "0") or layers != {"InfiniBand"}:
        return []
    return [Evidence(where, f"NVSHMEM_IB_TRAFFIC_CLASS={value}", "unset")]


@rule(
    "EPD514",
    WARNING,
    "The environment forces another doorbell than the one intended",
    "IBGDA runs in a slower mode although the host is set up for the faster one.",
    "Remove NVSHMEM_IBGDA_NIC_HANDLER from {where}; auto finds the best.",
)
def forced_handler(facts: Facts, intent: Intent) -> List[Evidence]:
    """The variable says who rings the NIC's doorbell: the GPU, or a CPU thread."""
    value, where = _variable(facts, "NVSHMEM_IBGDA_NIC_HANDLER")
    fitting = {"gpu": (None, "auto", "gpu"), "cpu": (None, "auto", "cpu", "cpu_host_memory")}
    if not remote(intent) or value in fitting[intent["mode"]]:
        return []
    return [Evidence(where, f"NVSHMEM_IBGDA_NIC_HANDLER={value}", f"auto or {intent['mode']}")]


@rule(
    "EPD515",
    WARNING,
    "The environment's NVSHMEM is not the one that torch was released with",
    "`pip check` fails, and torch's own NVSHMEM features may break.",
    "Reinstall nvidia-nvshmem {wanted} there; a newer copy belongs into a prefix of its own (role"
    " nvshmem).",
)
def not_torchs(facts: Facts, intent: Intent) -> List[Evidence]:
    """Torch asks for one exact version of NVSHMEM in its package data."""
    pin, own = facts["runtime"]["nvshmem_pin"], _own(facts)
    if pin is None or own is None or own["version"] == pin["version"]:
        return []
    return [Evidence(own["path"], own["version"], pin["version"])]


@rule(
    "EPD516",
    ERROR,
    "There are fewer queue pairs than local experts",
    "The kernels stop: `num_rc_per_pe >= num_local_experts`.",
    "Set num_qps_per_rank to {wanted}, the number of experts on a rank.",
)
def few_queues(facts: Facts, intent: Intent) -> List[Evidence]:
    """Low-latency kernels put the messages of each local expert on a queue pair of its own."""
    ranks, queues = intent["num_ranks"], intent["num_qps_per_rank"]
    if not remote(intent) or not ranks or not queues or ranks <= _RANKS_OF_A_HOST:
        return []
    local = intent["num_experts"] // ranks
    if queues >= local:
        return []
    return [Evidence("num_qps_per_rank", str(queues), str(local))]


@rule(
    "EPD517",
    WARNING,
    "A process would load an older NVSHMEM than the one installed for the fleet",
    "The runtime, built against the newer one, refuses to start between hosts.",
    "Start programs with LD_PRELOAD={wanted}, or set nvshmem_version to torch's own, {seen}.",
)
def not_the_fleets(facts: Facts, intent: Intent) -> List[Evidence]:
    """Torch maps the copy of its own environment when it is imported, and one process has one copy.
    The runtime's kernels need the version that they were built against, or a newer one.
    """
    used, own = _used(facts), _own(facts)
    if not remote(intent) or used is None or used is not own or not facts["runtime"]["ep_runtime"]:
        return []
    newer = [c for c in facts["nvshmem"] if c["library"] and not _at_least(used, c["version"])]
    newest = max(newer, key=lambda copy: nvshmem.version_key(copy["version"]), default=None)
    if newest is None:
        return []
    return [Evidence(facts["nvshmem_loaded"]["path"], used["version"], newest["library"])]
