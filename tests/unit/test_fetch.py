"""Archives: only with the right checksum, and nothing leads out of them."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import fetch as subject


def archive(path, *members):
    """A tar file of ``(name, content or link target)``; a link's name ends in @."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name.rstrip("@"))
            if name.endswith("@"):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                data = content.encode()
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_a_path_and_a_file_url_are_fetched(tmp_path):
    source = tmp_path / "a"
    source.write_bytes(b"content")
    checksum = "sha256:" + hashlib.sha256(b"content").hexdigest()
    for url in (str(source), source.as_uri()):
        target = tmp_path / "target"
        subject.fetch(url, checksum, str(target))
        assert target.read_bytes() == b"content"


def test_another_content_is_refused_and_removed(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    target = tmp_path / "target"
    with pytest.raises(subject.FetchError, match="and not 0000"):
        subject.fetch(str(tmp_path / "a"), "sha256:" + "0" * 64, str(target))
    assert not target.exists()


@pytest.mark.parametrize("checksum", ["", "sha256:12", "md5:" + "0" * 64])
def test_without_a_checksum_nothing_is_fetched(tmp_path, checksum):
    with pytest.raises(subject.FetchError, match="sha256:HEX"):
        subject.fetch("/nowhere", checksum, str(tmp_path / "target"))


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(subject.FetchError, match="/nowhere can't be fetched"):
        subject.fetch("/nowhere", "sha256:" + "0" * 64, str(tmp_path / "target"))


def test_the_top_folder_goes(tmp_path):
    made = archive(tmp_path / "a", ("x-1/lib/a.so.1", "a"), ("x-1/lib/a.so@", "a.so.1"))
    subject.unpack(str(made), str(tmp_path / "out"))
    assert (tmp_path / "out/lib/a.so").read_text() == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]


@pytest.mark.parametrize(
    "members",
    [
        [("x/../../out", "a")],
        [("/etc/out", "a")],
        [("x/link@", "/etc/passwd")],
        [("x/link@", "../../out")],
        [("x/a", "a"), ("y/a", "a")],
    ],
)
def test_what_leads_out_or_has_several_tops_is_refused(tmp_path, members):
    made = archive(tmp_path / "a", *members)
    with pytest.raises(subject.FetchError):
        subject.unpack(str(made), str(tmp_path / "target"))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "target").exists()


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "a").write_text("<html>not found</html>")
    with pytest.raises(subject.FetchError, match="no readable archive"):
        subject.unpack(str(tmp_path / "a"), str(tmp_path / "target"))
