"""The drop-in ``deep_ep``: its surface, what it refuses, and what it leaves behind."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import deep_ep
import deep_ep.buffer
import deep_ep.utils
import deep_ep_cpp
import ep_runtime
import pytest
import torch

RUNTIME = Path(__file__).parents[1]
BUFFER_KEYWORDS = {"use_fabric"}  # of the last V1 version only, and there not the last
STREAM = "previous_event=None, async_finish=False, allocate_on_comm_stream=False"
DISPATCH = (
    "x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, "
    "is_token_in_rank=None, num_tokens_per_expert=None, topk_idx=None, topk_weights=None, "
    f"expert_alignment=1, num_worst_tokens=0, config=None, {STREAM}"
)
COMBINE = f"x, handle, topk_weights=None, bias=None, config=None, {STREAM}"

# DeepEP V1's public names, arguments in order and with their defaults.
SIGNATURES = {
    "Buffer": "group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, "
    "num_qps_per_rank=24, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False, "
    "explicitly_destroy=False, enable_shrink=False, comm=None",
    "Buffer.destroy": "",
    "Buffer.is_sm90_compiled": "",
    "Buffer.set_num_sms": "new_num_sms",
    "Buffer.capture": "",
    "Buffer.get_low_latency_rdma_size_hint": "num_max_dispatch_tokens_per_rank, hidden, "
    "num_ranks, num_experts",
    "Buffer.get_comm_stream": "",
    "Buffer.get_local_buffer_tensor": "dtype, size=None, offset=0, use_rdma_buffer=False",
    "Buffer.get_dispatch_config": "num_ranks",
    "Buffer.get_combine_config": "num_ranks",
    "Buffer.get_dispatch_layout": f"topk_idx, num_experts, {STREAM}",
    "Buffer.dispatch": DISPATCH,
    "Buffer.combine": COMBINE,
    "Buffer.internode_dispatch": DISPATCH,
    "Buffer.internode_combine": COMBINE,
    "Buffer.clean_low_latency_buffer": "num_max_dispatch_tokens_per_rank, hidden, num_experts",
    "Buffer.low_latency_dispatch": "x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, "
    "cumulative_local_expert_recv_stats=None, dispatch_wait_recv_cost_stats=None, use_fp8=True, "
    "round_scale=False, use_ue8m0=False, async_finish=False, return_recv_hook=False",
    "Buffer.low_latency_combine": "x, topk_idx, topk_weights, handle, use_logfmt=False, "
    "zero_copy=False, async_finish=False, return_recv_hook=False, out=None, "
    "combine_wait_recv_cost_stats=None",
    "Buffer.low_latency_update_mask_buffer": "rank_to_mask, mask=False",
    "Buffer.low_latency_query_mask_buffer": "mask_status",
    "Buffer.low_latency_clean_mask_buffer": "",
    "Buffer.get_next_low_latency_combine_buffer": "handle",
    "Config": "num_sms=20, num_max_nvl_chunked_send_tokens=6, "
    "num_max_nvl_chunked_recv_tokens=256, num_max_rdma_chunked_send_tokens=6, "
    "num_max_rdma_chunked_recv_tokens=256",
    "Config.get_nvl_buffer_size_hint": "hidden_bytes, num_ranks",
    "Config.get_rdma_buffer_size_hint": "hidden_bytes, num_ranks",
    "EventHandle": "",
    "EventHandle.current_stream_wait": "",
    "EventOverlap": "event=None, extra_tensors=None",
    "EventOverlap.current_stream_wait": "",
    "utils.check_nvlink_connections": "group",
}


def parameters_of(path: str) -> tuple[list[str], set[str]]:
    """Positional parameters as they are written, and the names of those by keyword only."""
    thing = deep_ep
    for name in path.split("."):
        thing = getattr(thing, name)
    positional, keywords = [], set()
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "self":
            continue
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD), path
        if parameter.kind == parameter.KEYWORD_ONLY:
            assert parameter.default is not parameter.empty
            keywords.add(parameter.name)
        elif parameter.default is parameter.empty:
            positional.append(parameter.name)
        else:
            positional.append(f"{parameter.name}={parameter.default!r}")
    return positional, keywords


@pytest.mark.parametrize("path", SIGNATURES)
def test_signature(path: str) -> None:
    wanted = SIGNATURES[path].split(", ") if SIGNATURES[path] else []
    got, keywords = parameters_of(path)
    if path == "Buffer":
        assert keywords >= BUFFER_KEYWORDS
        assert got[0] == "group=None", "rank= and group_size= stand for a group"
        got[0] = "group"
    assert got == wanted


def test_every_public_method_is_listed_or_ours() -> None:
    ours = {"check", "transport_report"}
    public = {name for name in dir(deep_ep.Buffer) if not name.startswith("_")}
    listed = {path.split(".")[1] for path in SIGNATURES if path.startswith("Buffer.")}
    assert public - listed - {"num_sms"} == ours


def test_modules_hold_what_callers_import() -> None:
    for module in (deep_ep, deep_ep.utils, deep_ep_cpp):
        assert module.EventHandle is ep_runtime.EventHandle
    assert deep_ep.EventOverlap is deep_ep.utils.EventOverlap is ep_runtime.EventOverlap
    assert deep_ep.Config is deep_ep_cpp.Config is ep_runtime.Config
    assert deep_ep.topk_idx_t is deep_ep_cpp.topk_idx_t is torch.int64
    assert deep_ep.buffer.Buffer is deep_ep.Buffer
    assert issubclass(deep_ep.Buffer, ep_runtime.Buffer)
    assert deep_ep_cpp.is_sm90_compiled() == deep_ep.Buffer.is_sm90_compiled()
    hint = (128, 7168, 8, 256)
    assert deep_ep_cpp.get_low_latency_rdma_size_hint(
        *hint
    ) == deep_ep.Buffer.get_low_latency_rdma_size_hint(*hint)


@pytest.mark.parametrize("name", ["ElasticBuffer", "HybridEPBuffer"])
def test_what_is_not_served_is_not_there(name: str) -> None:
    """Callers ask for these to choose between V1 and the others."""
    assert not hasattr(deep_ep, name)


def test_arguments_of_forks_are_refused_by_name() -> None:
    buffer = deep_ep.Buffer(
        rank=0, group_size=1, num_rdma_bytes=128, low_latency_mode=True, explicitly_destroy=True
    )
    for call, fork in (
        (buffer.low_latency_dispatch, {"use_nvfp4": True, "x_global_scale": None}),
        (buffer.low_latency_combine, {"overlap": True, "num_sms": 3, "block_m": 64}),
        (buffer.low_latency_combine, {"src_signals": None, "src_signal_expect_value": 1}),
    ):
        with pytest.raises(TypeError, match=f"{call.__name__} has no argument {next(iter(fork))}:"):
            call(**fork)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        buffer.low_latency_dispatch(nonsense=1)
    buffer.destroy()


class Group:
    """As much of a process group as is asked here."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


def test_pcie_cards_have_nvlink_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    deep_ep.utils.check_nvlink_connections(Group(8))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100-PCIE-40GB")
    deep_ep.utils.check_nvlink_connections(Group(2))
    with pytest.raises(AssertionError, match="8 ranks"):
        deep_ep.utils.check_nvlink_connections(Group(8))


def fake(folder: Path, name: str, files: list[str], metadata_file: str = "RECORD") -> Path:
    """A distribution that another project could have installed in ``folder``."""
    info = folder / f"{name.replace('-', '_')}-9.8.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.8\n")
    (info / metadata_file).write_text("".join(f"{file},,\n" for file in files))
    return folder


def python(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


# What a server does: only an ImportError means that the module is not available.
TRY = "try:\n import deep_ep\nexcept ImportError as error:\n print(error)"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("deep_ep", ["deep_ep/__init__.py", "deep_ep_cpp.cpython-311-x86_64-linux-gnu.so"]),
        ("sgl-deep-ep", ["x.py", "deep_ep_cpp.abi3.so"]),
        ("uccl-wrapper", ["deep_ep/__init__.py"]),
        ("deep-ep", ["__editable__.deep_ep-9.8.pth"]),
    ],
)
def test_another_distribution_is_named(tmp_path: Path, name: str, files: list[str]) -> None:
    done = python(TRY, fake(tmp_path, name, files))
    assert done.returncode == 0, done.stderr
    assert f"so does {name} 9.8: uninstall both" in done.stdout


def test_a_checkout_on_the_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep/__init__.py").write_text("raise RuntimeError('the other one')")
    code = f"import sys; sys.path.append({str(tmp_path)!r})\n{TRY}"
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert f"another one in {tmp_path / 'deep_ep'}" in done.stdout


def test_distributions_that_only_sound_alike_are_let_be(tmp_path: Path) -> None:
    fake(tmp_path, "deep_ep_tools", ["deep_ep_tools/__init__.py", "not/deep_ep/__init__.py"])
    assert python("import deep_ep", tmp_path).returncode == 0


def test_whatever_stops_the_runtime_is_an_import_error() -> None:
    broken = (
        "import sys\n"
        "class Broken:\n"
        " def find_spec(self, name, path, target=None):\n"
        "  if name == 'ep_runtime': raise OSError('libcudart.so.13: not found')\n"
        "sys.meta_path.insert(0, Broken())\n"
    )
    done = python(broken + TRY)
    assert done.returncode == 0, done.stderr
    assert "ep_runtime, which serves deep_ep, can't be imported: libcudart.so.13" in done.stdout


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that sees this one's packages, and holds none of its own."""
    target = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True)
    lib = target / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    (lib / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return target


def build(venv: Path, into: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.path.insert(0, 'backend'); import refusing_backend; "
        f"print(refusing_backend.build_wheel({str(into)!r}))"
    )
    return subprocess.run(
        [str(venv / "bin/python"), "-c", code],
        cwd=RUNTIME / "shim",
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_not_built_into_an_environment_that_has_another(venv: Path, tmp_path: Path) -> None:
    lib = next(venv.glob("lib/*/site-packages"))
    fake(lib, "deep_ep", ["deep_ep/__init__.py"])
    refused = build(venv, tmp_path)
    assert refused.returncode != 0
    assert "so does deep_ep 9.8: uninstall both" in refused.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_uninstalling_leaves_nothing(venv: Path, tmp_path: Path) -> None:
    built = build(venv, tmp_path)
    assert built.returncode == 0, built.stderr
    wheel = tmp_path / built.stdout.split()[-1]
    assert wheel.name == "ep_runtime_deep_ep-0.1.0-py3-none-any.whl"
    before = {path for path in venv.rglob("*") if "__pycache__" not in path.parts}
    pip = [str(venv / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    # This environment's own copy is in sight, and stays.
    install = [*pip, "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    ask = "import importlib.util; print(importlib.util.find_spec('deep_ep').origin)"
    where = [str(venv / "bin/python"), "-c", ask]
    found = subprocess.run(where, capture_output=True, text=True, check=True).stdout
    assert str(venv) in found
    subprocess.run([*pip, "uninstall", "--yes", "ep-runtime-deep-ep"], check=True)
    assert {path for path in venv.rglob("*") if "__pycache__" not in path.parts} == before
