"""Bad input is refused in one sentence that names it, before any process group starts."""

import pytest
from ep_runtime.bench import cli
from ep_runtime.bench.options import OptionError
from ep_runtime.bench.world import world_from

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in (*TORCHRUN, "LOCAL_RANK", "EP_BENCH_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--hidden", "7100", "--hidden must be a positive multiple of 128, not 7100."),
        ("--hidden", "0", "--hidden must be a positive multiple of 128, not 0."),
        ("--num-tokens", "0", "--num-tokens must be at least 1, not 0."),
        ("--num-experts", "0", "--num-experts must be at least 1, not 0."),
        ("--num-topk", "0", "--num-topk must be between 1 and 32, not 0."),
        ("--num-topk", "33", "--num-topk must be between 1 and 32, not 33."),
        ("--num-experts", "4", "--num-topk must not exceed --num-experts, and 8 is more than 4."),
        ("--iters", "0", "--iters must be at least 1, not 0."),
        ("--warmup", "-1", "--warmup must not be negative, and -1 is."),
        ("--seed", "-1", "--seed must not be negative, and -1 is."),
        ("--timeout", "0", "--timeout must be more than 0 seconds, not 0."),
        ("--dtype", "fp4", "argument --dtype: invalid choice: 'fp4'"),
        ("--backend", "magic", "argument --backend: invalid choice: 'magic'"),
        ("--p99-within", "-1", "--p99-within must not be negative, and -1 is."),
        ("--combine-dtype", "fp8", "argument --combine-dtype: invalid choice: 'fp8'"),
        ("--sweep", "seed=1,2", "--sweep must be NAME=N,N,... with a NAME of its own out of num-"),
        ("--sweep", "hidden=a", "--sweep must be NAME=N,N,... with a NAME of its own out of num-"),
        ("--sweep", "hidden=256,100", "--sweep hidden=100: --hidden must be a positive multiple"),
        ("--sweep", "num-topk=1,64", "--sweep num-topk=64: --num-topk must be between 1 and 32"),
        ("--iters", "many", "argument --iters: invalid int value: 'many'"),
    ],
)
def test_a_bad_option_is_named(capsys, option, value, sentence):
    try:
        status = cli.main(["low-latency", option, value])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_experts_that_ranks_cannot_share_are_named(monkeypatch, capsys):
    for name, value in {**TORCHRUN, "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["low-latency", "--num-experts", "32"]) == 2
    assert (
        "--num-experts must be divisible by the number of ranks, and 32 is not by 3."
        in capsys.readouterr().err
    )


def test_an_output_that_is_a_folder_is_refused(tmp_path, capsys):
    assert cli.main(["low-latency", "--output", str(tmp_path)]) == 2
    assert f"--output {tmp_path} is a folder" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["low-latency", "--output", str(tmp_path / "file" / "sub" / "x.json")]) == 2
    assert "--output: the folder" in capsys.readouterr().err


def test_without_torchrun_there_is_one_rank():
    world = world_from({"EP_BENCH_HOST": "node-7"})
    assert (world.rank, world.size, world.launched) == (0, 1, False)
    assert world.name == "rank 0 on node-7"


def test_torchruns_environment_is_read():
    world = world_from({**TORCHRUN, "LOCAL_RANK": "0"})
    assert (world.rank, world.size, world.local_rank, world.launched) == (1, 4, 0, True)
    assert world_from(TORCHRUN).local_rank == 1


@pytest.mark.parametrize("name", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(name):
    environment = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(OptionError, match=f"^{name} is not set"):
        world_from(environment)


MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29517"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize("launched", [MPIRUN, SRUN])
def test_other_launchers_environments_are_read(launched, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "nodeb")
    hosts = {"EP_BENCH_HOSTS": "n1=nodea,n2=nodeb"}
    found = world_from({**launched, **MEETING, **hosts})
    assert (found.rank, found.size, found.local_rank, found.host) == (3, 4, 1, "n2")
    assert found.launched


def test_a_batch_script_is_no_rank():
    assert not world_from({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).launched


def test_torchrun_inside_another_launcher_wins():
    inner = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    assert world_from({**SRUN, **inner, **MEETING}).size == 2


@pytest.mark.parametrize(
    ("hosts", "own", "name"),
    [
        ("n1=nodea,n2=nodeb", "nodeb", "n2"),
        ("n1=nodea,n2=nodeb", "nodea", "n1"),  # what the host says of itself, not the order
        ("n1=nodea,n2=nodeb", "nodec", "nodec"),
        ("n1=same,n2=same", "same", "n2"),  # several hosts of a test on one machine
    ],
)
def test_hosts_are_called_as_the_launcher_was_told(hosts, own, name, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: own)
    assert world_from({**SRUN, **MEETING, "EP_BENCH_HOSTS": hosts}).host == name


def test_a_rank_out_of_range_is_named():
    with pytest.raises(OptionError, match=r"^RANK must be between 0 and WORLD_SIZE - 1 = 3"):
        world_from({**TORCHRUN, "RANK": "4"})
    with pytest.raises(OptionError, match=r"^RANK must be an integer, not 'one'"):
        world_from({**TORCHRUN, "RANK": "one"})
