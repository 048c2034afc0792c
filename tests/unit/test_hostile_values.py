"""No text in a variable is ever run: real runs of the roles and modules with hostile values.

Each value would leave a mark if any shell, template engine or package manager evaluated it. Roles
run on this machine, in a mount namespace of their own: what they write to it goes with the test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import decisions, packages
from conftest import CHECKOUT, COLLECTIONS
from test_ep_runtime_install import NAME, call, make_wheel

# Every way out of a shell's quotes, on one line and on more; and a template.
LINE = "$(touch {mark}) `touch {mark}` ; touch {mark} ; ' ; touch {mark} ; \" ; touch {mark} ; ' #"
LINES = LINE + "\n touch {mark}\ninstall nvidia touch {mark}\n"
TEMPLATE = "{{{{ lookup('ansible.builtin.pipe', 'touch {mark}') }}}}"
APT = "-oDPkg::Pre-Invoke::=touch {mark}"
# The role runs, or refuses; either way nothing of it is run. Their modes make every part act.
COMMON = {
    "nvidia_driver": {"nvidia_driver_mode": "gpu"},
    "gdrcopy": {"gdrcopy_mode": "gpu"},
    "nvshmem": {
        "nvshmem_mode": "gpu",
        "nvshmem_source": "archive",
        "nvshmem_archive": "/nonexistent",
        "nvshmem_checksum": "sha256:" + "0" * 64,
    },
    "ep_benchmark": {},
    "ep_runtime": {"ep_runtime_cuda": "off"},
    # An earlier run has left the host out of service, so the hook that gives it back is run.
    "reboot": {"reboot_after": ["slurm_resume"]},
}
# Chosen only with another source than the one above.
SOURCES = {
    "nvidia_driver_repository": {"nvidia_driver_packages": ["no-such-package"]},
    "nvidia_driver_mirror": {"nvidia_driver_packages": ["no-such-package"]},
    "gdrcopy_archive": {"gdrcopy_source": "archive"},
    "gdrcopy_checksum": {"gdrcopy_source": "archive", "gdrcopy_archive": "/nonexistent"},
    "gdrcopy_version": {"gdrcopy_source": "archive", "gdrcopy_archive": "/nonexistent"},
    "nvshmem_packages": {"nvshmem_source": "packages"},
    "nvshmem_repository": {"nvshmem_source": "packages"},
    "nvshmem_existing": {"nvshmem_source": "existing"},
    "nvshmem_python": {"nvshmem_source": "wheel"},
    "nvshmem_pip_args": {"nvshmem_source": "wheel"},
    **{
        f"ep_runtime_{name}": {"ep_runtime_wheel": ""}
        for name in ("version", "cache", "build_dir", "mirror")
    },
    "ep_runtime_nvshmem": {"ep_runtime_wheel": "", "ep_runtime_cuda": "on"},
}
# A namespace in which the machine's folders are written to a small disk in memory.
ISOLATED = """
set -e
mount -t tmpfs none "$1"
for folder in etc opt var usr root srv boot; do
  mkdir -p "$1/$folder/upper" "$1/$folder/work"
  mount -t overlay overlay "/$folder" \\
    -o "lowerdir=/$folder,upperdir=$1/$folder/upper,workdir=$1/$folder/work"
done
shift
exec "$@"
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")


class Unsafe(str):
    """Text that Ansible may not take for a template."""


yaml.SafeDumper.add_representer(
    Unsafe, lambda dumper, text: dumper.represent_scalar("!unsafe", str(text), style='"')
)


def free_text(role):
    """Name and type of the role's variables that take any text."""
    spec = CHECKOUT / "roles" / role / "meta/argument_specs.yml"
    options = yaml.safe_load(spec.read_text())["argument_specs"]["main"]["options"]
    for name, option in options.items():
        if "choices" not in option and option["type"] in ("str", "path", "list", "dict"):
            yield name, option["type"]


def shaped(kind, text):
    if kind == "list":
        return [Unsafe(text)]
    return {"SOME_NAME": Unsafe(text), text: "1"} if kind == "dict" else Unsafe(text)


def cases(role, mark):
    for name, kind in free_text(role):
        texts = [LINES + TEMPLATE, *([APT] if kind == "list" else [])]
        texts += ["/nonexistent/" + LINE] if kind == "path" else []
        for text in texts:
            value = shaped(kind, text.format(mark=mark))
            yield {**COMMON[role], **SOURCES.get(name, {}), name: value}


def surroundings(role, folder):
    """Variables of every case, and what runs before the first."""
    if role == "ep_benchmark":
        return {"ep_benchmark_workdir": str(folder / "benchmark")}, []
    if role == "ep_runtime":
        # An environment that is there saves each case the making of one.
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        wheel = make_wheel(folder / "wheels" / NAME)
        return {"ep_runtime_venv": str(folder / "venv"), "ep_runtime_wheel": wheel}, []
    if role == "reboot":
        (folder / "bin").mkdir()
        (folder / "bin/scontrol").write_text("#!/bin/sh\nexit 0\n")
        (folder / "bin/scontrol").chmod(0o755)
        folders = {"path": "/var/lib/epfleet", "state": "directory", "mode": "0755"}
        note = {"dest": "/var/lib/epfleet/out-of-service", "content": "x", "mode": "0644"}
        return {}, [{"ansible.builtin.file": folders}, {"ansible.builtin.copy": note}]
    return {}, []


def play(role, mark, folder):
    base, tasks = surroundings(role, folder)
    before = len(tasks) + 1
    tasks.append({"epfleet.expert_parallel.host_facts": {}})
    for number, variables in enumerate(cases(role, mark)):
        act = {
            "ansible.builtin.include_role": {"name": f"epfleet.expert_parallel.{role}"},
            "vars": {**base, **variables},
        }
        note = {"ansible.builtin.debug": {"msg": f"refused {number}"}}
        tasks.append({"block": [act], "rescue": [note]})
    return [{"hosts": "all", "gather_facts": False, "tasks": tasks}], len(tasks) - before


@pytest.mark.parametrize("role", COMMON)
def test_roles_run_nothing_of_it(role, tmp_path):
    mark = tmp_path / "mark"
    content, count = play(role, mark, tmp_path)
    (tmp_path / "play.yml").write_text(yaml.safe_dump(content, allow_unicode=True))
    (tmp_path / "disk").mkdir()
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "node,"]
    command += ["-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", "play.yml"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ISOLATED, "sh", str(tmp_path / "disk"), *command],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "PIP_NO_INDEX": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    refused = {int(number) for number in re.findall(r"refused (\d+)", output)}
    assert count > 2
    # Each case has reached its role.
    included = rf"^included: epfleet\.expert_parallel\.{role} for node"
    assert len(re.findall(included, output, re.MULTILINE)) == count, output[-4000:]
    assert refused, output[-4000:]
    assert not mark.exists()


@pytest.mark.parametrize("text", [LINE, LINES, LINES + TEMPLATE])
def test_a_shell_that_gets_them_leaves_the_mark(text, tmp_path):
    mark = tmp_path / "mark"
    for quote in ("", "'", '"'):
        program = f"echo {quote}{text.format(mark=mark)}{quote}"
        subprocess.run(["sh", "-c", program], capture_output=True, check=False)
    assert mark.exists()


def test_a_template_engine_that_gets_them_leaves_the_mark(tmp_path):
    mark = tmp_path / "mark"
    value = (LINES + TEMPLATE).format(mark=mark)
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-c", "local"]
    command += ["-m", "ansible.builtin.debug", "-a", json.dumps({"msg": value})]
    subprocess.run(command, capture_output=True, check=False)
    assert mark.exists()


MODULES = {
    "unpacked_archive": {"url": "/nonexistent", "checksum": "sha256:" + "0" * 64, "dest": "/x/y"},
}
ARGUMENTS = [(module, name) for module, given in MODULES.items() for name in given]


@pytest.mark.parametrize(("module", "argument"), ARGUMENTS)
def test_modules_run_nothing_of_it(module, argument, tmp_path):
    mark = tmp_path / "mark"
    for text in (LINES, "-c import os; os.system('touch {mark}')"):
        value = text.format(mark=mark)
        given = MODULES[module][argument]
        changed = {argument: [value] if isinstance(given, list) else value}
        answer = call(module, **{**MODULES[module], **changed})
        assert "Traceback" not in json.dumps(answer)
    assert not mark.exists()


@pytest.mark.parametrize("name", [APT, "-y", "", "a b", "a\nb", "$(x)"])
def test_what_is_no_name_of_a_package(name):
    with pytest.raises(packages.PackageError, match="is no name of a package"):
        packages.missing([name], {})


@pytest.mark.parametrize("name", ["libc6", "libc6=2.36-9", "kernel-devel-5.14.0-1.el9.x86_64"])
def test_names_of_packages(name):
    assert packages.missing([name], {}) == [name]


@pytest.mark.parametrize("value", ["1\n", "1\ninstall nvidia touch x", "1 NVreg_Other=2", '"'])
def test_a_driver_option_is_one_word(value):
    assert decisions._bad_entries({"Name": value}, "nvidia_driver_options")
    assert decisions._bad_entries({value: "1"}, "nvidia_driver_options")
