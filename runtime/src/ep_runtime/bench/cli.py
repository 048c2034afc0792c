"""The command line: ``low-latency`` runs the benchmark, ``report`` renders its document, ``model``
predicts what larger fleets will take.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from ep_runtime.bench import model_table
from ep_runtime.bench.expected import Rates
from ep_runtime.bench.model import Fleet, predict
from ep_runtime.bench.options import (
    BACKENDS,
    COMBINE_DTYPES,
    DTYPES,
    OptionError,
    Parameters,
    check,
    read_sweep,
)
from ep_runtime.bench.patterns import FORMS
from ep_runtime.bench.results import ReportError
from ep_runtime.bench.world import World, world_from

EXIT_BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    """Says one sentence about bad input instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message} (--help lists the options)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ep-bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser(
        "low-latency",
        help="check and time dispatch and combine",
        description="Check, then time, the low-latency dispatch and combine over all ranks of "
        "torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or of srun's or Open "
        "MPI's with MASTER_ADDR and MASTER_PORT, or alone without one. EP_BENCH_HOST overrides the "
        "host's name in the results; EP_BENCH_PROGRESS names a file to keep a line in on how far "
        "the run is. Exit status: 0 passed, 1 wrong results, 2 bad input, 3 failed, 124 out of "
        "time.",
    )
    run.add_argument("--num-tokens", type=int, default=128, help="tokens per rank (%(default)s)")
    run.add_argument("--hidden", type=int, default=7168, help="channels per token (%(default)s)")
    run.add_argument("--num-experts", type=int, default=32, help="over all ranks (%(default)s)")
    run.add_argument("--num-topk", type=int, default=8, help="experts per token (%(default)s)")
    run.add_argument("--dtype", choices=DTYPES, default="fp8", help="of dispatch (%(default)s)")
    run.add_argument(
        "--combine-dtype", choices=COMBINE_DTYPES, default="bf16", help="(%(default)s)"
    )
    run.add_argument(
        "--routing",
        default="uniform",
        metavar="PATTERN",
        help=f"which experts tokens select: {FORMS}, a .npy or .pt of topk_idx (%(default)s)",
    )
    run.add_argument("--iters", type=int, default=100, help="timed rounds, at least (%(default)s)")
    run.add_argument(
        "--warmup",
        type=int,
        default=20,
        help="untimed rounds before; from 20 on as many more as it takes until rounds are steady, "
        "at most ten times as many (%(default)s)",
    )
    run.add_argument(
        "--p99-within",
        type=float,
        default=0.0,
        metavar="PERCENT",
        help="add rounds until the 95 %% interval of the p99 is so narrow; 0: don't (%(default)g)",
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=N,N,...",
        help="also take num-tokens, hidden, num-experts or num-topk through these values, the "
        "others as they are; may be repeated",
    )
    run.add_argument(
        "--full",
        action="store_true",
        help="also measure kernels alone, end to end, back to back and by hook, and torch's "
        "all_to_all of the same tokens",
    )
    run.add_argument("--seed", type=int, default=0, help="of inputs and routing (%(default)s)")
    run.add_argument("--backend", choices=BACKENDS, default="auto", help="(%(default)s)")
    run.add_argument(
        "--pairwise",
        type=int,
        default=0,
        help="calls of each pair of hosts in a sweep over all pairs afterwards (none)",
    )
    run.add_argument("--output", type=Path, help="JSON document, written by rank 0")
    run.add_argument("--per-rank-dir", type=Path, help="folder for each rank's rank-N.json")
    run.add_argument("--run-id", default="", help="marks all results of this run (random)")
    run.add_argument(
        "--timeout", type=float, default=600.0, help="seconds for the whole run (%(default)g)"
    )

    report = commands.add_parser("report", help="render a JSON document as table and HTML")
    report.add_argument("--input", type=Path, required=True, help="document to render")
    report.add_argument("--html", type=Path, help="self-contained page to write")
    report.add_argument("--png", type=Path, metavar="FOLDER", help="pictures to write")
    report.add_argument("--markdown", type=Path, help="text for a ticket to write")
    report.add_argument("--junit", type=Path, help="JUnit XML for CI to write")
    report.add_argument("--prometheus", type=Path, help="text file for monitoring to write")
    report.add_argument("--baseline", type=Path, help="kept document to compare with")
    report.add_argument("--findings", type=Path, help="of ep-doctor --format json, for culprits")
    report.add_argument("--output", type=Path, help="document to write, with what was added")
    _add_rates(report)
    _add_model(commands)
    return parser


def _add_model(commands: argparse._SubParsersAction[_Parser]) -> None:
    model = commands.add_parser(
        "model",
        help="predict times, bytes, queue pairs and memory at other EP sizes",
        description="Arithmetic from bytes per link, messages and fixed costs; nothing is run. "
        "Its error against published figures is printed with it.",
    )
    model.add_argument(
        "--ep", default="8,16,32,64,128,256,512,1024,2048", help="ranks (%(default)s)"
    )
    defaults = Fleet()
    model.add_argument("--num-tokens", type=int, default=defaults.tokens, help="(%(default)s)")
    model.add_argument("--hidden", type=int, default=defaults.hidden, help="(%(default)s)")
    model.add_argument("--num-experts", type=int, default=defaults.experts, help="(%(default)s)")
    model.add_argument("--num-topk", type=int, default=defaults.topk, help="(%(default)s)")
    model.add_argument(
        "--gpus-per-node", type=int, default=defaults.gpus_per_node, help="(%(default)s)"
    )
    _add_rates(model)
    model.add_argument("--json", action="store_true", help="print JSON")


def _add_rates(command: argparse.ArgumentParser) -> None:
    """Add what the wires carry, for the model's times and the wire's limit."""
    defaults = Fleet()
    for option, default, unit in (
        ("--nvlink-gbps", defaults.nvlink_gbps, "GB/s, one way"),
        ("--nic-gbps", defaults.nic_gbps, "GB/s a GPU, one way"),
    ):
        command.add_argument(option, type=float, default=default, help=f"{unit} (%(default)s)")


def _rates(arguments: argparse.Namespace) -> Rates:
    rates = Rates(nvlink_gbps=arguments.nvlink_gbps, nic_gbps=arguments.nic_gbps)
    for name, value in asdict(rates).items():
        if not value > 0:
            raise OptionError(f"--{name.replace('_', '-')} must be positive, got {value:g}")
    return rates


def _model(arguments: argparse.Namespace) -> int:
    fleet = Fleet(
        tokens=arguments.num_tokens,
        hidden=arguments.hidden,
        experts=arguments.num_experts,
        topk=arguments.num_topk,
        gpus_per_node=arguments.gpus_per_node,
        nvlink_gbps=arguments.nvlink_gbps,
        nic_gbps=arguments.nic_gbps,
    )
    for name, value in asdict(fleet).items():
        if value <= 0:
            raise OptionError(f"{name} must be positive, got {value}")
    if fleet.topk > fleet.experts:
        raise OptionError(f"--num-topk {fleet.topk} is more than --num-experts {fleet.experts}")
    try:
        sizes = [int(text) for text in arguments.ep.split(",")]
        predictions = [predict(fleet, size) for size in sizes]
    except ValueError as error:
        raise OptionError(str(error)) from None
    model_table.show(fleet, predictions, as_json=arguments.json)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "report":
            return _report(arguments)
        if arguments.command == "model":
            return _model(arguments)
        return _low_latency(arguments)
    except (OptionError, ReportError) as error:
        print(f"ep-bench {arguments.command}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _low_latency(arguments: argparse.Namespace) -> int:
    world = world_from(os.environ)
    parameters = Parameters(
        num_tokens=arguments.num_tokens,
        hidden=arguments.hidden,
        num_experts=arguments.num_experts,
        num_topk=arguments.num_topk,
        dtype=arguments.dtype,
        combine_dtype=arguments.combine_dtype,
        routing=arguments.routing,
        p99_within=arguments.p99_within,
        full=arguments.full,
        sweep=read_sweep(arguments.sweep),
        iters=arguments.iters,
        warmup=arguments.warmup,
        seed=arguments.seed,
        backend=arguments.backend,
        timeout_s=arguments.timeout,
        pairwise=arguments.pairwise,
    )
    check(parameters, world.size)
    _check_places(arguments, world)

    from ep_runtime.bench.run import Request, run  # noqa: PLC0415 - imports torch, which is slow

    request = Request(parameters, arguments.output, arguments.per_rank_dir, arguments.run_id)
    return run(request, world)


def _check_places(arguments: argparse.Namespace, world: World) -> None:
    """Refuse places for results that could not be written to once the run is over."""
    if arguments.output is not None and world.rank == 0:
        if arguments.output.is_dir():
            raise OptionError(f"--output {arguments.output} is a folder, not a file.")
        _check_folder("--output", arguments.output.absolute().parent)
    if arguments.per_rank_dir is not None:
        _check_folder("--per-rank-dir", arguments.per_rank_dir.absolute())


def _check_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            f"{option}: the folder {folder} cannot be made: {error.strerror}."
        ) from None
    if not os.access(folder, os.W_OK):
        raise OptionError(f"{option}: the folder {folder} is not writable.")


def _report(arguments: argparse.Namespace) -> int:
    from ep_runtime.bench import (  # noqa: PLC0415 - as above
        baseline,
        exports,
        findings,
        pictures,
        results,
        table,
    )
    from ep_runtime.bench.html import render  # noqa: PLC0415

    report = results.load(arguments.input)
    if arguments.baseline is not None:
        report["baseline"] = baseline.compare(report, results.load(arguments.baseline))
    if arguments.findings is not None:
        findings.attach(report, findings.load(arguments.findings))
    if arguments.output is not None:
        results.write_json(arguments.output, report)
    rates = _rates(arguments)
    # matplotlib would otherwise leave its font cache in the user's home.
    with TemporaryDirectory(prefix="ep-bench-") as folder:
        os.environ.setdefault("MPLCONFIGDIR", folder)
        if arguments.html is not None:
            results.write(arguments.html, render(report, rates))
        if arguments.png is not None:
            pictures.write(arguments.png, report, rates)
    for path, write in (
        (arguments.markdown, exports.markdown),
        (arguments.junit, exports.junit),
        (arguments.prometheus, exports.prometheus),
    ):
        if path is not None:
            results.write(path, write(report))
    table.show(report)
    if arguments.html is not None:
        print(f"page: {arguments.html}")
    if arguments.png is not None:
        print(f"pictures: {arguments.png}")
    return 0
