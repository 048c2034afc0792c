"""The benchmark of the low-latency operations: check, time, report.

``python -m ep_runtime.bench low-latency`` runs under torchrun's environment, or alone, and
writes one JSON document; ``python -m ep_runtime.bench report`` renders such a document.
"""
