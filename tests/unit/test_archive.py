"""Reading images: several archives in one file, every compression, and damage."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import archive
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import cpio

FILES = {"etc/modprobe.d/x.conf": b"options nvidia a=1\n", "bin/busybox": b"\x7fELF" + b"z" * 9999}
PYTHON = {
    "none": lambda data: data,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),
}
PROGRAMS = {"zstd": ["zstd", "-qc"], "lz4": ["lz4", "-lqc"], "lz4 frame": ["lz4", "-qc"]}


def conf(name: str) -> bool:
    return name.endswith(".conf")


@pytest.mark.parametrize("early", [False, True], ids=["alone", "after microcode"])
@pytest.mark.parametrize("compression", [*PYTHON, *PROGRAMS])
def test_every_compression(tmp_path, compression, early):
    data = cpio(FILES)
    if compression in PYTHON:
        data = PYTHON[compression](data)
    else:
        command = PROGRAMS[compression]
        if shutil.which(command[0]) is None:
            pytest.skip(f"the program {command[0]} is missing")
        data = subprocess.run(command, input=data, capture_output=True, check=True).stdout
    if early:
        first = cpio({"kernel/x86/microcode/AuthenticAMD.bin": b"u" * 301})
        data = first + b"\0" * (-len(first) % 512) + data
    path = tmp_path / "initrd.img"
    path.write_bytes(data)
    image = archive.read_image(str(path), conf)
    assert image.kept == {"etc/modprobe.d/x.conf": b"options nvidia a=1\n"}
    assert image.names[-2:] == list(FILES)


def test_several_uncompressed_archives_before_the_last(tmp_path):
    path = tmp_path / "initrd.img"
    modules = cpio({"usr/lib/modules/1/nvidia.ko.zst": b"m"})
    path.write_bytes(cpio({"early": b""}) + b"\0" * 64 + modules + gzip.compress(cpio(FILES)))
    image = archive.read_image(str(path), conf)
    assert archive.module_names(image.names, "nvidia") == "usr/lib/modules/1/nvidia.ko.zst"
    assert "bin/busybox" in image.names


def test_links_and_leading_dots(tmp_path):
    path = tmp_path / "initrd.img"
    path.write_bytes(cpio({"./etc/a.conf": b"a"}, {"etc/b.conf": "/dev/null", "bin/sh": "dash"}))
    image = archive.read_image(str(path), conf)
    assert image.kept == {"etc/a.conf": b"a"}
    assert image.links == {"etc/b.conf": "/dev/null"}


@pytest.mark.parametrize(
    ("name", "is_module"),
    [
        ("lib/modules/1/nvidia.ko", True),
        ("lib/modules/1/nvidia.ko.xz", True),
        ("lib/modules/1/nvidia-drm.ko", False),
        ("lib/modules/1/i2c-nvidia.ko", False),
        ("lib/firmware/nvidia.konfig", False),
        ("nvidia.ko/README", False),
    ],
)
def test_module_names(name, is_module):
    assert bool(archive.module_names([name], "nvidia")) is is_module


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 2000,
        b"no image at all",
        b"070701" + b"x" * 200,
        cpio(FILES)[:-200],
        gzip.compress(cpio(FILES))[:-40],
        lzma.compress(cpio(FILES))[:-40],
        gzip.compress(b"no archive"),
        b"\x1f\x8b" + b"\xff" * 100,
        b"\x28\xb5\x2f\xfd" + b"junk" * 10,
        b"\x02\x21\x4c\x18" + b"junk" * 10,
        b"070701" + b"ffffffff" * 13 + b"a" * 100,
    ],
    ids=range(12),
)
def test_damage_is_an_error_in_words(tmp_path, data):
    path = tmp_path / "initrd.img"
    path.write_bytes(data)
    with pytest.raises(archive.ArchiveError):
        archive.read_image(str(path), conf)


def test_a_missing_program_is_named(tmp_path, monkeypatch):
    path = tmp_path / "initrd.img"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 100)
    monkeypatch.setattr(archive.shutil, "which", lambda *_args, **_kwargs: None)
    with pytest.raises(archive.ArchiveError, match="no zstd program"):
        archive.read_image(str(path), conf)


def test_a_missing_image_is_an_error_in_words(tmp_path):
    with pytest.raises(archive.ArchiveError, match=r"initrd\.img cannot be read"):
        archive.read_image(str(tmp_path / "initrd.img"), conf)


@given(data=st.binary(max_size=600), cut=st.integers(0, 700), place=st.integers(0, 700))
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_bytes_give_a_traceback(tmp_path, data, cut, place):
    whole = cpio({"etc/modprobe.d/x.conf": b"options nvidia a=1\n", "x": b"y" * 50})
    path = tmp_path / "initrd.img"
    for content in (data, whole[:cut], whole[:place] + data + whole[place:]):
        path.write_bytes(content)
        try:
            archive.read_image(str(path), conf)
        except archive.ArchiveError as error:
            assert str(error)
