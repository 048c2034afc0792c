"""Prints the predictions of ``model`` as a table, or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ep_runtime.bench.model import published_errors

if TYPE_CHECKING:
    from ep_runtime.bench.model import Fleet, Prediction


def document(fleet: Fleet, predictions: list[Prediction]) -> dict[str, Any]:
    """Gather all of it, ready for JSON: ``fleet``, ``predictions``, ``published``."""
    return {
        "fleet": asdict(fleet),
        "predictions": [
            {**asdict(prediction), "node_dedup_pays": prediction.node_dedup_pays}
            for prediction in predictions
        ],
        "published": [
            {**asdict(entry), "relative_error": error} for entry, error in published_errors()
        ],
    }


def show(fleet: Fleet, predictions: list[Prediction], *, as_json: bool) -> None:
    """Write to standard output."""
    if as_json:
        print(json.dumps(document(fleet, predictions), indent=2))
        return
    console = Console()
    table = Table(
        title=f"{fleet.tokens} tokens, hidden {fleet.hidden}, top-{fleet.topk}: "
        "predicted per rank, times in us"
    )
    for heading in ("EP", "NIC rows", "NIC MB", "dispatch", "combine", "by node", "QPs", "MB"):
        table.add_column(heading, justify="right")
    for prediction in predictions:
        mark = "~" if prediction.memory_is_extrapolated else ""
        by_node = f"{prediction.node_dedup_dispatch_us:.0f}/{prediction.node_dedup_combine_us:.0f}"
        table.add_row(
            str(prediction.ranks),
            f"{prediction.dispatch.nic_messages:.0f}",
            f"{prediction.dispatch.nic_bytes / 1e6:.1f}",
            f"{prediction.dispatch_us:.0f}",
            f"{prediction.combine_us:.0f}",
            by_node if prediction.node_dedup_pays else "-",
            str(prediction.queue_pairs),
            f"{mark}{prediction.memory_bytes / 1e6:.0f}",
        )
    console.print(table)
    errors = [abs(error) for _, error in published_errors()]
    console.print(
        f"Error against {len(errors)} published figures (EP 16 to 256): mean "
        f"{sum(errors) / len(errors):.0%}, worst {max(errors):.0%}. "
        "NIC rows and MB: dispatch. By node: dispatch/combine with one copy of a row per node. "
        "MB: symmetric memory.",
        highlight=False,
    )
