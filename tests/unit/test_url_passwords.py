"""A password in the address of an index or a mirror shows nowhere, and still opens it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    inputs,
    url_passwords,
)
from conftest import COLLECTIONS
from test_ep_runtime_install import MODULES, call
from test_ep_runtime_shared_venv import make_wheel

SECRET = "s3cr@t!x"
CODED = "s3cr%40t%21x"
URL = f"https://robot:{CODED}@index.example.org/simple"


def shown(text):
    return any(form in text for form in (SECRET, CODED, "robot:"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"Looking in {URL}, twice", "Looking in https://****@index.example.org/simple, twice"),
        ("https://t0ken@host/x", "https://****@host/x"),
        ("https://user:p@ss@host:8080/x", "https://****@host:8080/x"),
        ("['https://u:p@h/a', 'http://v:q@h']", "['https://****@h/a', 'http://****@h']"),
        ("https://host/a@b", "https://host/a@b"),
        ("mail someone@host, see https://host/", "mail someone@host, see https://host/"),
    ],
)
def test_redacted(text, told):
    assert url_passwords.redacted(text) == told


@pytest.mark.parametrize(
    ("arguments", "plain", "variables"),
    [
        (["--no-index", "-f", "/srv"], ["--no-index", "-f", "/srv"], {}),
        (["--index-url", URL, "--pre"], ["--pre"], {"PIP_INDEX_URL": URL}),
        ([f"--index-url={URL}"], [], {"PIP_INDEX_URL": URL}),
        ([f"-i{URL}"], [], {"PIP_INDEX_URL": URL}),
        (["--proxy", "http://u:p@proxy"], [], {"PIP_PROXY": "http://u:p@proxy"}),
        # All of one kind together, others stay where they are.
        (
            ["--extra-index-url", "https://a/", "--extra-index-url", URL, "-f", "/srv"],
            ["-f", "/srv"],
            {"PIP_EXTRA_INDEX_URL": f"https://a/ {URL}"},
        ),
    ],
)
def test_pips_command_line_has_none(arguments, plain, variables):
    assert url_passwords.split_pip_arguments(arguments) == (plain, variables)


def test_a_mirror_with_a_password_is_no_argument_either():
    arguments = inputs.pip_arguments(["--pre"], "https://u:p@mirror/")
    plain, variables = url_passwords.split_pip_arguments(arguments)
    assert plain == ["--no-index", "--pre"]
    assert variables == {"PIP_FIND_LINKS": "https://u:p@mirror/wheels"}


def test_a_wrong_value_is_named_without_it():
    for variables in ({"epfleet_pip_args": URL}, {"epfleet_mirror": f"ftp://u:{CODED}@host"}):
        (problem,) = inputs.host_problems(variables, inputs.settings(variables))
        assert "****@" in problem
        assert not shown(problem)


class Index(SimpleHTTPRequestHandler):
    """The wheels of a folder, for who gives the password."""

    def do_GET(self):
        wanted = base64.b64encode(f"robot:{SECRET}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {wanted}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="index"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def index(tmp_path):
    """Address, with a placeholder for who asks, of an index with one wheel."""
    folder = tmp_path / "index"
    (folder / "simple" / "tool").mkdir(parents=True)
    wheel = make_wheel(folder / "simple" / "tool", "tool")
    page = f'<a href="{wheel.name}">{wheel.name}</a>'
    (folder / "simple" / "tool" / "index.html").write_text(page)
    (folder / "archive.tar.gz").write_bytes(b"no archive")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://{}127.0.0.1:" + str(server.server_port)
    server.shutdown()
    server.server_close()


def unpack(index, who, tmp_path, **changes):
    arguments = {
        "requirement": "tool==1.0",
        "dest": str(tmp_path / "dest"),
        "python": sys.executable,
        "pip_args": ["--index-url", index.format(who) + "/simple"],
    }
    return call("unpacked_wheel", **{**arguments, **changes}, _ansible_verbosity=4, index=True)


@pytest.fixture(autouse=True)
def no_other_index(monkeypatch):
    """Nor any that this machine is set up with."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)


def test_an_index_with_a_password_serves_and_nothing_tells_it(index, tmp_path):
    answer = unpack(index, f"robot:{CODED}@", tmp_path)
    assert answer["changed"], answer
    assert (tmp_path / "dest" / "tool.py").exists()
    assert "invocation" in answer
    assert not shown(json.dumps(answer))


def test_a_wrong_password_is_not_told_with_the_failure(index, tmp_path):
    answer = unpack(index, f"robot:{CODED}x@", tmp_path)
    assert answer["failed"]
    assert "No matching distribution" in answer["msg"]
    assert not shown(json.dumps(answer))
    assert not (tmp_path / "dest").exists()


def test_an_archive_that_can_not_be_fetched(index, tmp_path):
    url = index.format(f"robot:{CODED}@") + "/archive.tar.gz"
    for checksum in ("sha256:" + "0" * 64, "sha256:" + hashlib.sha256(b"no archive").hexdigest()):
        dest = str(tmp_path / "x")
        answer = call("unpacked_archive", url=url, checksum=checksum, dest=dest)
        assert answer["failed"]
        assert "127.0.0.1" in answer["msg"] or "no readable archive" in answer["msg"]
        assert not shown(json.dumps(answer))


def test_a_runtime_that_can_not_be_installed(index, tmp_path):
    address = index.format(f"robot:{CODED}@") + "/simple"
    answer = call(
        "ep_runtime_install",
        venv=str(tmp_path / "venv"),
        python=sys.executable,
        key="k",
        source="s",
        cache="/nonexistent",
        version="0.1.0",
        pip_args=["--extra-index-url", address, f"--index-url={address}"],
        act=True,
        _ansible_verbosity=4,
        index=True,
    )
    assert answer["failed"]
    assert not shown(json.dumps(answer))


LOGGING = """
import json, runpy, sys
from ansible.module_utils import basic
basic.AnsibleModule.log = lambda self, text, log_args=None: sys.stderr.write(text)
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": json.loads(sys.argv[2])}).encode()
basic._ANSIBLE_PROFILE = "legacy"
runpy.run_path(sys.argv[1], run_name="__main__")
"""
ARGUMENTS = {
    "ep_runtime_build": {
        "key": "k",
        "inputs": {},
        "cache": "/x",
        "python": "/x",
        "directory": "/x",
        "pip_args": ["--index-url", URL],
    },
    "ep_runtime_install": {"venv": "/x", "state": "absent", "pip_args": ["-i", URL]},
    "unpacked_wheel": {"requirement": "x", "dest": "/x", "python": "/x", "pip_args": ["-i", URL]},
    "unpacked_archive": {"url": URL, "checksum": "x", "dest": "/x"},
    "gdrcopy_source": {"url": URL, "state": "absent"},
    "recorded_packages": {"owner": "x", "state": "absent", "repository": URL},
}


@pytest.mark.parametrize("module", ARGUMENTS)
def test_nothing_of_it_is_in_the_hosts_log(module):
    """What a module writes to the host's log when it begins, before it can hide anything."""
    given = json.dumps({**ARGUMENTS[module], "_ansible_check_mode": True, "_ansible_verbosity": 4})
    done = subprocess.run(
        [sys.executable, "-c", LOGGING, str(MODULES / f"{module}.py"), given],
        env={**os.environ, "PYTHONPATH": str(COLLECTIONS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Invoked with" in done.stderr, done.stdout + done.stderr
    assert "index.example.org" not in done.stderr
    assert not shown(done.stdout + done.stderr)


def test_a_whole_run_tells_it_nowhere(tmp_path):
    """The check of the input, and a role whose pip finds nothing: all that is said and written."""
    address = f"http://robot:{CODED}@127.0.0.1:9"
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "epfleet_become": False,
        "epfleet_mirror": f"{address}/bundle",
        "epfleet_pip_args": ["--extra-index-url", f"{address}/simple", "--retries", "0"],
        "ep_runtime_python": sys.executable,
        "ep_runtime_venv": str(tmp_path / "venv"),
        "ep_runtime_cache": str(tmp_path / "cache"),
        "ep_runtime_version": "0.1.0",
        "ep_benchmark_output_dir": str(tmp_path / "out"),
    }
    inventory = {"all": {"children": {"ep_fleet": {"hosts": {"node": host}}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    (tmp_path / "play.yml").write_text(
        "- import_playbook: epfleet.expert_parallel.check\n"
        "- hosts: all\n"
        "  gather_facts: false\n"
        "  roles: [epfleet.expert_parallel.ep_runtime]\n"
    )
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.json"]
    done = subprocess.run(
        [*command, "-vvvv", "--diff", "play.yml"],
        cwd=tmp_path,
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_LOG_PATH": str(tmp_path / "log"),
            "ANSIBLE_CACHE_PLUGIN": "ansible.builtin.jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "facts"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 2
    assert "epfleet_settings" in output
    assert re.search(r"No matching distribution|Could not find a version", output), output[-4000:]
    assert not shown(output)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.name == "facts" for path in written)
    given = {"hosts.json"}
    telling = [str(p) for p in written if p.name not in given and shown(p.read_text("latin-1"))]
    assert telling == []
