"""What is written belongs to who runs; others may read it at most, whatever umask or archive."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import fetch, wheel_cache
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    RECORD_FILE,
    Record,
    note_boot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    read_wheel,
)
from test_ep_runtime_install import call
from test_ep_runtime_shared_venv import make_wheel

INIT = "def build_info():\n    return {'version': '0.1.0'}\n"


@pytest.fixture(params=[0o000, 0o077], ids=["umask 000", "umask 077"], autouse=True)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def wrong(folder):
    """What others may write to below `folder`, or can't read, or have for their own."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            continue
        needed = 0o555 if path.is_dir() else 0o444
        foreign = (about.st_uid, about.st_gid) != (os.geteuid(), os.getegid())
        if foreign or about.st_mode & 0o6022 or about.st_mode & needed != needed:
            found.append((str(path), oct(about.st_mode), about.st_uid))
    return found


def hostile_archive(path):
    """Another user's files, one of them setuid and for everybody to write."""
    with tarfile.open(path, "w:gz") as tar:
        for name, mode, kind in (
            ("top", 0o777, tarfile.DIRTYPE),
            ("top/tool", 0o6777, tarfile.REGTYPE),
            ("top/text", 0o666, tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.gid = kind, mode, 12345, 12345
            member.uname = member.gname = "nobody"
            member.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x"))
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_of_another_user(tmp_path):
    checksum = hostile_archive(tmp_path / "archive.tar.gz")
    dest = tmp_path / "dest"
    url = str(tmp_path / "archive.tar.gz")
    assert call("unpacked_archive", url=url, checksum=checksum, dest=str(dest))["changed"]
    assert wrong(dest) == []
    assert (dest / "tool").stat().st_mode & 0o100


def test_a_tree_that_is_built_from(tmp_path):
    hostile_archive(tmp_path / "archive.tar.gz")
    before = os.umask(0o022)
    fetch.unpack(str(tmp_path / "archive.tar.gz"), str(tmp_path / "tree"))
    os.umask(before)
    assert wrong(tmp_path / "tree") == []


def test_a_wheel_and_an_environment(tmp_path):
    wheel = make_wheel(tmp_path, "ep-runtime", "0.1.0", files={"ep_runtime/__init__.py": INIT})
    answer = call(
        "ep_runtime_install",
        venv=str(tmp_path / "venv"),
        python=sys.executable,
        key="k",
        source="s",
        cache="/x",
        wheel=str(wheel),
        payload=read_wheel(str(wheel))["payload"],
        act=True,
    )
    assert answer.get("changed"), answer
    assert wrong(tmp_path / "venv") == []
    dest = tmp_path / "dest"
    links = ["--no-index", "--find-links", str(tmp_path)]
    python = str(tmp_path / "venv/bin/python")
    unpacked = call(
        "unpacked_wheel",
        requirement="ep-runtime==0.1.0",
        dest=str(dest),
        python=python,
        pip_args=links,
    )
    assert unpacked.get("changed"), unpacked
    assert wrong(dest) == []


def test_the_cache_of_the_controller(tmp_path, umask):
    about = {"payload": "p", "inputs": {"source": "s"}, "built_on": "n1"}
    cache = tmp_path / "cache"
    os.umask(0o022 if umask else 0)
    wheel_cache.store(str(cache), "one", "a.whl", b"x", about)
    assert wrong(cache / "one") == []


def test_the_record_is_for_root_alone(tmp_path):
    host = HostRoot(str(tmp_path))
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("abc\n")
    record = Record(host)
    record.section("packages")["x"] = {"before": {}}
    record.save()
    note_boot(host)
    target = tmp_path / RECORD_FILE.lstrip("/")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in target.parent.iterdir()}
    assert modes == {"record.json": 0o600, "changes.json": 0o644}
