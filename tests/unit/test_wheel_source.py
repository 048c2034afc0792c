"""The source digest follows what a build reads and nothing else."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import wheel_source


@pytest.fixture
def root(tmp_path):
    for path, text in {
        "pyproject.toml": "[project]",
        "csrc/core/a.cpp": "int a;",
        "src/pkg/__init__.py": "",
        "src/pkg/build/inner.py": "x",
        "src/pkg/__pycache__/a.cpython-311.pyc": "x",
        "src/pkg/_core.so": "x",
        "tests/test_a.py": "x",
        "build/left": "x",
        ".clang-format": "x",
        ".git/config": "x",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def digest(root):
    return wheel_source.source_digest(wheel_source.read_source(str(root)))


def test_only_what_a_build_reads_counts(root):
    wanted = ["csrc/core/a.cpp", "pyproject.toml", "src/pkg/__init__.py"]
    assert wheel_source.source_files(str(root)) == wanted


def test_the_digest_ignores_times_modes_and_caches(root):
    before = digest(root)
    os.utime(root / "csrc/core/a.cpp", (1, 1))
    (root / "csrc/core/a.cpp").chmod(0o755)
    (root / "src/pkg/__pycache__/new.pyc").write_text("x")
    (root / "tests/test_b.py").write_text("x")
    assert digest(root) == before


@pytest.mark.parametrize("change", ["content", "name", "new", "gone"])
def test_the_digest_follows_every_change_of_the_source(root, change):
    before = digest(root)
    source = root / "csrc/core/a.cpp"
    if change == "content":
        source.write_text("int b;")
    elif change == "name":
        source.rename(root / "csrc/core/b.cpp")
    elif change == "new":
        (root / "csrc/core/empty.cpp").write_text("")
    else:
        source.unlink()
    assert digest(root) != before


def test_the_archive_is_reproducible_and_whole(root):
    content = wheel_source.read_source(str(root))
    packed = wheel_source.source_archive(content)
    assert packed == wheel_source.source_archive(dict(reversed(list(content.items()))))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {item.name: archive.extractfile(item).read() for item in archive}
        assert {(item.mode, item.uid, item.uname) for item in archive.getmembers()} == {
            (0o644, 0, "")
        }
    assert members == content


def test_a_collection_without_the_runtime_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no pyproject\.toml"):
        wheel_source.read_source(str(tmp_path))
