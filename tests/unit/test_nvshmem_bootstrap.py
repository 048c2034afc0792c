"""A copy of NVSHMEM is loaded by a process of its own, and what it says is told.

The library is a small one of ours, compiled here, with the two functions that are called; the real
ones are called on the hosts of molecule/lifecycle.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    nvshmem_bootstrap as subject,
)

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch)
{
    *major = 3; *minor = 8; *patch = 0;
}
int nvshmemx_get_uniqueid(int *identity)
{
    const char *name = getenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME");
    if (identity[0] != (1 << 16) + 128) return 9;
    if (getenv("NVSHMEM_STALE")) abort();
    if (name && name[0] == 'x') {
        fprintf(stderr, "bootstrap_uid.cpp:41: No socket interface found\\n");
        return 7;
    }
    if (!name || name[0] != 'e') identity[3] = 5;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    assert compiler, "the unit tests need a C compiler"
    folder = tmp_path_factory.mktemp("nvshmem")
    (folder / "host.c").write_text(SOURCE)
    target = folder / "libnvshmem_host.so.3"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(target), str(folder / "host.c")], check=True
    )
    return str(target)


def run(command, environment):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_the_version_is_the_librarys_own(library):
    assert subject.check(library, {}, run) == "3.8.0"


def test_variables_of_the_shell_do_not_count(library, monkeypatch):
    monkeypatch.setitem(os.environ, "NVSHMEM_STALE", "1")
    assert subject.check(library, {}, run) == "3.8.0"


def test_settings_count_and_the_librarys_words_are_told(library):
    settings = subject.settings_environment({"BOOTSTRAP_UID_SOCK_IFNAME": "x0"})
    with pytest.raises(subject.BootstrapError, match="No socket interface found"):
        subject.check(library, settings, run)


def test_an_id_that_was_not_made_is_an_error(library):
    settings = subject.settings_environment({"BOOTSTRAP_UID_SOCK_IFNAME": "e0"})
    with pytest.raises(subject.BootstrapError):
        subject.check(library, settings, run)


def test_a_library_that_ends_its_process_is_an_error(library):
    with pytest.raises(subject.BootstrapError, match="ended its process"):
        subject.check(library, {"NVSHMEM_STALE": "1"}, run)


def test_a_library_that_is_not_there_is_named(tmp_path):
    with pytest.raises(subject.BootstrapError, match="cannot open shared object file"):
        subject.check(str(tmp_path / "libnvshmem_host.so.3"), {}, run)
