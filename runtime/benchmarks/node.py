"""All GPUs of this host, a rank each: right results first, then times beside those of others.

    python runtime/benchmarks/node.py --output build/node

Three parts, none of which another needs: the GPU tests with one rank a GPU; this runtime, DeepEP
where it can be imported and torch's all_to_all on the same tokens in one set of processes; the
collection's own benchmark playbook where Ansible is installed. Leaves node.json, a table in
node.md and the playbook's report.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
import torch.distributed as dist
from contender import Case, Contender, hooked, shown, spread, together
from ep_runtime import Buffer, build_info
from ep_runtime.bench.exchange import AllToAll
from ep_runtime.bench.routing import Inputs

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "runtime" / "tests" / "cuda"
sys.path.insert(0, str(TESTS))

from pool import free_port  # noqa: E402

CASES = [
    *(Case(tokens, 256) for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    Case(128, 256, fp8=False),
    Case(128, 288),
    Case(128, 288, fp8=False),
]
ROUNDS = 3
# What a program on this host would set too: ranks reach each other over NVLink, no NIC is needed,
# and NVLink multicast stays off.
ENVIRONMENT = {
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_QP_DEPTH": "2048",  # DeepEP asks for 2 * (512 + 1), RDMA or not
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
}
TEST_LANES = {
    "peer": ["test_matrix.py", "test_api.py", "-k", "peer or test_api"],
    "nvshmem": ["test_matrix.py", "test_nvshmem.py", "-k", "nvshmem and not puts"],
    "nvshmem-puts": ["test_matrix.py", "test_nvshmem.py", "-k", "puts"],
    "faults": ["test_faults.py"],
}


def run_tests(output: Path, limit_s: float) -> dict[str, Any]:
    """Run the GPU tests, a process for each kind of backend; counts of outcomes."""
    started = {}
    for lane, selection in TEST_LANES.items():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection]
        with (output / f"tests-{lane}.txt").open("w") as log:
            started[lane] = subprocess.Popen(
                [*command, f"--junitxml={output}/tests-{lane}.xml"],
                cwd=TESTS,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    end = time.monotonic() + limit_s
    counts = {}
    for lane, process in started.items():
        try:
            process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its rank processes too
            counts[lane] = {"error": f"not finished within {limit_s:.0f} s"}
            continue
        suite = ElementTree.parse(output / f"tests-{lane}.xml").getroot().find("testsuite")
        assert suite is not None
        counts[lane] = {
            name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        }
    return counts


def measure_ranks(contender: Contender) -> dict[str, float]:
    """All figures of a contender on this rank, once.

    In a CUDA graph operations follow each other at the devices' pace; eager calls and the kernel
    times of a profiler hold the wait for the rank whose host is late.
    """
    eager = {
        "dispatch": contender.dispatch,
        "combine": contender.combine,
        "pair": contender.pair,
    }
    graphed = {
        **eager,
        "dispatch_hook": hooked(contender.dispatch),
        "combine_hook": hooked(contender.combine),
    }
    return {**together(graphed, "graph"), **together(eager, "eager")}


def measure_exchange(exchange: AllToAll) -> dict[str, float]:
    """All figures of torch's all_to_all on this rank, by the names of the contenders' figures."""
    graphed = {"dispatch": exchange.dispatch, "combine": exchange.combine, "pair": exchange.pair}
    return {**together(graphed, "graph"), **together({"pair": exchange.pair}, "eager")}


def compare_case(case: Case, classes: dict[str, Any]) -> dict[str, Any]:
    """Check all contenders, then let them take turns; medians over ranks of medians over rounds."""
    max_tokens = max(128, case.tokens)
    contenders = [Contender(name, kind, case, max_tokens) for name, kind in classes.items()]
    for contender in contenders:
        contender.check()
    samples: dict[str, list[dict[str, float]]] = {contender.name: [] for contender in contenders}
    samples["all_to_all"] = []
    first = contenders[0]
    exchange = AllToAll(Inputs(first.x, first.topk_idx, first.weights), first.local_experts)
    exchange.check()
    for _ in range(ROUNDS):
        for contender in contenders:
            samples[contender.name].append(measure_ranks(contender))
        samples["all_to_all"].append(measure_exchange(exchange))
    for contender in contenders:
        contender.buffer.destroy()
    mine = {
        name: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
        for name, turns in samples.items()
    }
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    figures = {
        name: {key: spread([rank[name][key] for rank in everyones]) for key in keys}
        for name, keys in mine.items()
    }
    return {"case": asdict(case), "figures": figures}


def time_rank(rank: int, ranks: int, port: int, output: Path) -> None:
    """Be one rank: time every case."""
    os.environ.update(ENVIRONMENT)
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=rank, world_size=ranks)
    classes: dict[str, Any] = {"ep_runtime": Buffer}
    if importlib.util.find_spec("deep_ep") is not None:
        classes["deep_ep"] = importlib.import_module("deep_ep").Buffer
    results = []
    for case in CASES:
        if case.experts % ranks == 0:
            results.append(compare_case(case, classes))
            if rank == 0:
                (output / "times.json").write_text(json.dumps(results, indent=2))
    dist.destroy_process_group()


def run_times(output: Path) -> list[dict[str, Any]]:
    """Time all contenders with a rank on each GPU."""
    ranks = torch.cuda.device_count()
    torch.multiprocessing.spawn(time_rank, (ranks, free_port(), output), nprocs=ranks)
    times: list[dict[str, Any]] = json.loads((output / "times.json").read_text())
    return times


def run_playbook(output: Path) -> dict[str, Any]:
    """Run the collection's benchmark over this host as a fleet of one; its report, or why not."""
    if shutil.which("ansible-playbook") is None:
        return {"error": "ansible-playbook is not installed"}
    ranks = torch.cuda.device_count()
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "epfleet_become": False,
        "ep_benchmark_venv": sys.prefix,
        "ep_benchmark_num_experts": 256,
        "ep_benchmark_ranks_per_host": ranks,
        "ep_benchmark_backend": "peer",
        "ep_benchmark_environment": ENVIRONMENT,
        "ep_benchmark_workdir": str(output / "work"),
        "ep_benchmark_output_dir": str(output / "playbook"),
    }
    inventory = output / "inventory.json"
    inventory.write_text(json.dumps({"ep_fleet": {"hosts": {"localhost": variables}}}))
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build" / "collections")}
    subprocess.run([ROOT / "scripts" / "collection"], cwd=ROOT, env=environment, check=True)
    command = ["ansible-playbook", "-i", str(inventory), "epfleet.expert_parallel.benchmark"]
    with (output / "playbook.txt").open("w") as log:
        status = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status != 0:
        return {"error": f"the play failed: {output}/playbook.txt"}
    return {"report": str(output / "playbook" / "report.json")}


def table(results: list[dict[str, Any]]) -> str:
    """All figures as Markdown."""
    names = list(results[0]["figures"]) if results else []
    lines = [
        f"| tokens | experts | dispatch | figure, us | {' | '.join(names)} |",
        f"|{'---|' * (4 + len(names))}",
    ]
    for result in results:
        case, figures = result["case"], result["figures"]
        for key in figures[names[0]]:
            cells = []
            for name in names:
                value = figures[name].get(key)
                cells.append(shown(value) if value else "")
            form = "FP8" if case["fp8"] else "BF16"
            lines.append(
                f"| {case['tokens']} | {case['experts']} | {form} | {key.removesuffix('_us')} | "
                f"{' | '.join(cells)} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the parts that were asked for, all by default."""
    parts = ("tests", "times", "playbook")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/node"))
    parser.add_argument("--only", choices=parts, action="append", help="a part; may be repeated")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "ep_runtime": build_info(),
        },
    }
    for part in options.only or parts:
        if part == "tests":
            document[part] = run_tests(output, limit_s=350)
        elif part == "times":
            document[part] = run_times(output)
            (output / "node.md").write_text(table(document[part]))
            print(table(document[part]))
        else:
            document[part] = run_playbook(output)
        print(part, document[part] if part != "times" else "done", flush=True)
        (output / "node.json").write_text(json.dumps(document, indent=2, default=str))


if __name__ == "__main__":
    main()
