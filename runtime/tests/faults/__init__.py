"""Faults injected into real rank processes, and what the other ranks make of them."""
