"""What a measured operation should take: by the model, and by the wire alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ep_runtime.bench.model import Fleet, predict

_DEFAULTS = Fleet()
_MODELLED = {"dtype": "fp8", "combine_dtype": "bf16", "routing": "uniform"}

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Rates:
    """GB/s in one direction, for each GPU."""

    nvlink_gbps: float = _DEFAULTS.nvlink_gbps
    nic_gbps: float = _DEFAULTS.nic_gbps


def no_wire(report: Report) -> str:
    """Say why no wire bounds the run; "" where one does."""
    if report["backend"] == "reference":
        return "the reference backend does not use the fleet's wires"
    if report["ranks"] == 1:
        return "nothing leaves a single rank"
    gpus = {(entry["host"], entry["gpu"]) for entry in report["per_rank"]}
    return "ranks share a GPU" if len(gpus) < report["ranks"] else ""


def no_model(report: Report) -> str:
    """Say why the model does not cover the run; "" where it does."""
    if reason := no_wire(report):
        return reason
    other = [
        f"{name} {report['parameters'][name]}"
        for name, value in _MODELLED.items()
        if report["parameters"][name] != value
    ]
    return f"it does not cover {', '.join(other)}" if other else ""


def wire_us(report: Report, figures: Mapping[str, Any], rates: Rates) -> float | None:
    """Give the least time in which the busiest rank's bytes fit through its wires."""
    if no_wire(report):
        return None
    near, far = float(figures["same_host_bytes"]), float(figures["other_hosts_bytes"])
    return max(near / (rates.nvlink_gbps * 1e3), far / (rates.nic_gbps * 1e3))


def model_us(report: Report, point: Mapping[str, Any], rates: Rates) -> dict[str, float]:
    """Give the model's time of each operation at ``point``'s shape; empty where it has none."""
    if no_model(report):
        return {}
    fleet = Fleet(
        tokens=point["num_tokens"],
        hidden=point["hidden"],
        experts=point["num_experts"],
        topk=point["num_topk"],
        gpus_per_node=max(len(host["ranks"]) for host in report["hosts"]),
        nvlink_gbps=rates.nvlink_gbps,
        nic_gbps=rates.nic_gbps,
    )
    try:
        found = predict(fleet, report["ranks"])
    except ValueError:
        return {}  # hosts with different numbers of GPUs
    times = {"dispatch": found.dispatch_us, "combine": found.combine_us}
    return {**times, "pair": sum(times.values())}
