# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The program ep-doctor: this host's findings, a log explained, or the state of IBGDA."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from typing import Any, Dict, List, Optional

from . import ibgda, page, report
from .diagnose import diagnose
from .host.facts import NVSHMEM_PREFIX, VENV, gather
from .intent import DEFAULTS, REMOTE_MODES
from .logs import explain
from .model import ERROR

OK, ERRORS, USAGE = 0, 1, 2
_MODES = ("auto", *REMOTE_MODES, "off")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ep-doctor",
        description="Say what keeps this host's GPUs from fast expert-parallel runs, and what fixes"
        " it. Reads only, and needs root for a part of it.",
        epilog="Exit status: 0 no errors found, 1 errors found, 2 wrong usage.",
    )
    _add_host(parser)
    _add_format(parser)
    parser.add_argument(
        "--mode", choices=_MODES, default="auto", help="how GPUs reach other hosts (default: auto)"
    )
    parser.add_argument(
        "--num-tokens", type=int, default=DEFAULTS["num_tokens"], help="tokens per rank (128)"
    )
    parser.add_argument(
        "--num-experts",
        type=int,
        default=DEFAULTS["num_experts"],
        help="experts of the model (256)",
    )
    parser.add_argument("--num-ranks", type=int, help="ranks of the run, to check its queue pairs")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    log = commands.add_parser("explain", help="say what the messages of a log mean")
    log.add_argument(
        "file", help="a log of NVSHMEM, NCCL, DeepEP, vLLM or SGLang; - reads the input"
    )
    _add_format(log)
    support = commands.add_parser("ibgda", help="say whether IBGDA works here, and how")
    _add_host(support)
    return parser


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default="/", help="read the host whose file tree is there")
    parser.add_argument("--venv", default=VENV, help=f"the runtime's environment ({VENV})")
    parser.add_argument("--nvshmem-prefix", default=NVSHMEM_PREFIX, help=f"({NVSHMEM_PREFIX})")


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("table", "json", "html"), default="table", help="(default: table)"
    )


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the program; the exit status is returned."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "explain":
        return _explain(options)
    if not os.path.isdir(options.root):
        parser.error(f"--root {options.root}: no such directory")
    facts = gather(options.root, nvshmem_prefix=options.nvshmem_prefix, venv=options.venv)
    if options.command == "ibgda":
        support, reasons = ibgda.answer(facts)
        print(f"IBGDA support: {support}")
        for reason in reasons:
            print(f"  {reason}")
        return ERRORS if support == ibgda.DISABLED else OK
    for name in ("num_tokens", "num_experts", "num_ranks"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more, got {value}")
    names = ("mode", "num_tokens", "num_experts", "num_ranks")
    host = socket.gethostname() if options.root == "/" else options.root
    intent = {name: getattr(options, name) for name in names}
    if not facts["nvidia"]["gpu_count"] and options.format == "table":
        print("There is no NVIDIA GPU; the reference backend needs nothing that is checked here.")
    return _show(diagnose(facts, intent, host), options.format, f"Findings on {host}")


def run() -> None:
    """The console script: ends the process with the exit status."""
    sys.exit(main())


def _explain(options: Any) -> int:
    if options.file == "-":
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        findings = explain(sys.stdin, "stdin")
    else:
        try:
            with open(options.file, encoding="utf-8", errors="replace") as stream:
                findings = explain(stream, options.file)
        except OSError as error:
            print(f"ep-doctor: {options.file}: {error.strerror}", file=sys.stderr)
            return USAGE
    return _show(findings, options.format, f"Messages in {options.file}")


def _show(findings: List[Dict[str, Any]], form: str, title: str) -> int:
    if form == "json":
        sys.stdout.write(report.as_json(findings))
    elif form == "html":
        sys.stdout.write(page.render(findings, 1, title))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(report.table(findings, 1, colour))
    return ERRORS if any(item["severity"] == ERROR for item in findings) else OK
