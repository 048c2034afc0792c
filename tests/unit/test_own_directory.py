"""What is built or run as root lies nowhere that another user could have prepared."""

from __future__ import annotations

import os

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.own_directory import (
    NotOwnError,
    make_own_directory,
)


def test_it_is_made_and_found_again(tmp_path):
    path = tmp_path / "a" / "b"
    make_own_directory(str(path), "work")
    make_own_directory(str(path), "work")
    assert path.stat().st_mode & 0o022 == 0


def test_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotOwnError, match=r"work \(.*link\) is a link; remove it or choose"):
        make_own_directory(str(tmp_path / "link"), "work")


def test_one_that_others_may_write_to_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotOwnError, match=r"may be written to by others \(mode 0777\)"):
        make_own_directory(str(tmp_path / "open"), "work")


def test_somebody_elses_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotOwnError, match=rf"belongs to user {os.getuid()}"):
        make_own_directory(str(tmp_path), "work")
