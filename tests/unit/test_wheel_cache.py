"""A cache entry is whole or it is not used."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import wheel_cache

ABOUT = {"payload": "p", "inputs": {"source": "s"}, "built_on": "n1"}
NAME = "ep_runtime-0.1.0-cp311-cp311-linux_x86_64.whl"
WHEEL = b"wheel" * 1000


@pytest.fixture
def cache(tmp_path):
    return str(tmp_path / "cache")


def store(cache, content=WHEEL):
    return wheel_cache.store(cache, "key", NAME, content, ABOUT)


def names(cache):
    return sorted(path.name for path in Path(cache).iterdir())


def test_what_was_stored_is_found(cache):
    assert wheel_cache.lookup(cache, "key") == (None, "not built yet")
    entry = store(cache)
    assert wheel_cache.lookup(cache, "key") == (entry, "")
    assert Path(entry["path"]).read_bytes() == WHEEL
    assert (entry["size"], entry["built_on"]) == (len(WHEEL), "n1")
    assert names(cache) == ["key"]


def damage_cut(directory):
    (directory / NAME).write_bytes(WHEEL[:-1])


def damage_flip(directory):
    (directory / NAME).write_bytes(b"W" + WHEEL[1:])


def damage_no_wheel(directory):
    (directory / NAME).unlink()


def damage_no_manifest(directory):
    (directory / wheel_cache.MANIFEST).unlink()


def damage_half_manifest(directory):
    path = directory / wheel_cache.MANIFEST
    path.write_text(path.read_text()[:20])


def damage_other_schema(directory):
    path = directory / wheel_cache.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 0}))


def damage_list(directory):
    (directory / wheel_cache.MANIFEST).write_text("[]")


DAMAGES = [
    damage_cut,
    damage_flip,
    damage_no_wheel,
    damage_no_manifest,
    damage_half_manifest,
    damage_other_schema,
    damage_list,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_not_used_but_named_and_replaced(cache, damage):
    store(cache)
    damage(Path(cache) / "key")
    entry, problem = wheel_cache.lookup(cache, "key")
    assert entry is None
    assert str(Path(cache) / "key") in problem
    assert store(cache, b"again")["size"] == 5
    assert names(cache) == ["key"]


def test_a_whole_entry_of_another_controller_stays(cache):
    first = store(cache)
    assert store(cache, b"other build") == first


def _store_often(cache, content):
    for _turn in range(20):
        store(cache, content)


def test_two_controllers_at_once_leave_one_whole_entry(cache):
    writers = [
        multiprocessing.Process(target=_store_often, args=(cache, content))
        for content in (b"one" * 5000, b"two" * 5000)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    entry, _problem = wheel_cache.lookup(cache, "key")
    assert Path(entry["path"]).read_bytes() in (b"one" * 5000, b"two" * 5000)


def _store_forever(cache):
    for turn in range(10**6):
        wheel_cache.store(cache, f"key{turn}", NAME, WHEEL, ABOUT)


def test_a_killed_controller_leaves_only_whole_entries(cache):
    for pause in (0.05, 0.08, 0.11, 0.14):
        writer = multiprocessing.Process(target=_store_forever, args=(cache,))
        writer.start()
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    for name in names(cache) if Path(cache).is_dir() else []:
        if not name.startswith("."):
            assert wheel_cache.lookup(cache, name)[0] is not None


def test_old_leftovers_are_swept_and_fresh_ones_left(cache):
    store(cache)
    for name in (".new-old", ".bad-old", ".new-fresh"):
        (Path(cache) / name).mkdir()
    for name in (".new-old", ".bad-old"):
        os.utime(Path(cache) / name, (1, 1))
    wheel_cache.store(cache, "key2", NAME, WHEEL, ABOUT)
    assert names(cache) == [".new-fresh", "key", "key2"]


def test_a_full_disk_leaves_the_cache_as_it_was(cache, monkeypatch):
    first = store(cache)

    def full(_path, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel_cache, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        wheel_cache.store(cache, "key2", NAME, WHEEL, ABOUT)
    assert names(cache) == ["key"]
    assert wheel_cache.lookup(cache, "key")[0] == first
