"""Replacing an image: the old one stays unless a right new one is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import rebuild as subject
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import initramfs
from trees import KERNEL, OUR_FILE, OUR_LINE, image, kernel, write

IMAGE = f"boot/initrd.img-{KERNEL}"


class Builder:
    """Stands for mkinitramfs, dracut and run-parts; writes ``content`` where it is asked to."""

    def __init__(self, content: bytes | None, code: int = 0, hook_code: int = 0) -> None:
        self.content, self.code, self.hook_code = content, code, hook_code
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if command[0] == "run-parts":
            return self.hook_code, "", "the hook broke"
        output = command[2] if command[0] == "mkinitramfs" else command[-1]
        if self.content is not None:
            Path(output).write_bytes(self.content)
        return self.code, "", "No space left on device" if self.code else ""


@pytest.fixture(params=["usr/sbin/mkinitramfs", "usr/bin/dracut"])
def host(request, tmp_path):
    files = {**kernel(), IMAGE: image(True, None), OUR_FILE: OUR_LINE, request.param: ""}
    made = write(tmp_path, files)
    (tmp_path / IMAGE).chmod(0o600)
    return made


def run(host, builder):
    (entry,) = initramfs.facts(host, "nvidia", False)
    assert entry["state"] == "stale"
    subject.rebuild(host, entry, "nvidia", False, builder)


def leftovers(host) -> list[str]:
    found = [
        *Path(host.path("/boot")).iterdir(),
        *Path(host.path(subject.WORK_DIRECTORY)).iterdir(),
    ]
    return [path.name for path in found if path.name not in (Path(IMAGE).name, "lock")]


def test_a_right_image_takes_the_place_of_the_old_one(host):
    run(host, Builder(image(True, OUR_LINE)))
    (entry,) = initramfs.facts(host, "nvidia", False)
    assert entry["state"] == "current"
    assert Path(host.path(IMAGE)).stat().st_mode & 0o777 == 0o600
    assert leftovers(host) == []


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (Builder(None, code=1), "exit code 1.*No space left on device"),
        (Builder(b"half", code=1), "exit code 1"),
        (Builder(None), "it printed nothing"),
        (Builder(image(True, None)), "is not right.*NVreg_EnableStreamMemOPs is missing"),
        (Builder(b"junk"), "is not right"),
    ],
)
def test_a_wrong_image_leaves_the_old_one(host, builder, words):
    before = Path(host.path(IMAGE)).read_bytes()
    with pytest.raises(subject.RebuildError, match=words) as failure:
        run(host, builder)
    assert KERNEL in str(failure.value)
    assert "the old image is still in place" in str(failure.value)
    assert Path(host.path(IMAGE)).read_bytes() == before
    assert leftovers(host) == []


def test_a_full_boot_file_system_leaves_the_old_image(host, monkeypatch):
    before = Path(host.path(IMAGE)).read_bytes()
    monkeypatch.setattr(initramfs, "free_bytes", lambda _path: 100)
    with pytest.raises(subject.RebuildError, match=f"No room .*kernel {KERNEL}.*100 bytes free"):
        run(host, Builder(image(True, OUR_LINE)))
    assert Path(host.path(IMAGE)).read_bytes() == before
    assert leftovers(host) == []


def test_a_failing_copy_leaves_the_old_image(host, monkeypatch):
    before = Path(host.path(IMAGE)).read_bytes()

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(subject.shutil, "copyfileobj", full)
    with pytest.raises(subject.RebuildError, match=f"kernel {KERNEL} was not replaced"):
        run(host, Builder(image(True, OUR_LINE)))
    assert Path(host.path(IMAGE)).read_bytes() == before
    assert leftovers(host) == []


def test_what_a_killed_run_left_is_no_obstacle(host):
    Path(host.path(subject.WORK_DIRECTORY)).mkdir(parents=True)
    Path(host.path(f"{subject.WORK_DIRECTORY}/{Path(IMAGE).name}")).write_bytes(b"half")
    Path(host.path(f"/boot/.{Path(IMAGE).name}.epfleet-new")).write_bytes(b"half")
    run(host, Builder(image(True, OUR_LINE)))
    assert leftovers(host) == []


def test_an_image_that_another_run_finished_is_left_alone(host):
    (entry,) = initramfs.facts(host, "nvidia", False)
    Path(host.path(IMAGE)).write_bytes(image(True, OUR_LINE))
    builder = Builder(None)
    subject.rebuild(host, entry, "nvidia", False, builder)
    assert builder.commands == []


def test_boot_loader_hooks_run_for_initramfs_tools(tmp_path):
    files = {**kernel(), IMAGE: image(True, None), OUR_FILE: OUR_LINE, "sbin/mkinitramfs": ""}
    host = write(tmp_path, {**files, "etc/initramfs/post-update.d/loader": ""})
    builder = Builder(image(True, OUR_LINE), hook_code=3)
    with pytest.raises(subject.RebuildError, match=r"is new, but a hook .* the hook broke"):
        run(host, builder)
    assert builder.commands[-1][:2] == ["run-parts", f"--arg={KERNEL}"]


def test_a_host_without_a_tool_is_told_so(tmp_path):
    host = write(tmp_path, {**kernel(), IMAGE: image(True, None), OUR_FILE: OUR_LINE})
    with pytest.raises(subject.RebuildError, match="neither initramfs-tools nor dracut"):
        run(host, Builder(None))
