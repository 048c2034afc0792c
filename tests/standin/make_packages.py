"""Makes the stand-ins' Debian packages and GDRCopy's archive.

Usage: make_packages.py FOLDER. Writes FOLDER/packages and FOLDER/archives.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# 580.2 does not build: it is what a driver too old for its kernel looks like.
BROKEN = "580.2"
VERSIONS = ("570.1", "580.1", BROKEN)
POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
/usr/lib/dkms/common.postinst nvidia {version} /usr/share/nvidia {arch} "$2"
"""
PRERM = """#!/bin/sh
set -e
dkms remove -m nvidia -v {version} --all || true
"""
DKMS = """PACKAGE_NAME="nvidia"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
BUILT_MODULE_NAME[1]="nvidia-peermem"
DEST_MODULE_LOCATION[1]="/updates/dkms"
AUTOINSTALL="yes"
MAKE[0]="'make' KVER=$kernelver NVIDIA_VERSION={version} modules"
"""
UNIT = """[Unit]
Description=Stand-in for {name}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""
# Package and version; the fabric manager's name lost its branch with 580.
SERVICES = (
    ("nvidia-persistenced", "580.1"),
    ("nvidia-fabricmanager-570", "570.0"),
    ("nvidia-fabricmanager-570", "570.1"),
    ("nvidia-fabricmanager", "580.1"),
)
CONTROL = """Package: {name}
Version: {version}
Architecture: all
Maintainer: epfleet tests <nobody@example.org>
{relations}Description: Stand-in for tests
"""


def package(folder: Path, name: str, version: str, relations: str, files: dict[str, str]) -> None:
    """Build one package; a name in `files` that begins with DEBIAN/ is a maintainer script."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        control = CONTROL.format(name=name, version=version, relations=relations)
        for path, text in {**files, "DEBIAN/control": control}.items():
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if path.startswith("DEBIAN/p") else 0o644)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def driver(folder: Path, version: str) -> None:
    """The driver as DKMS source, and a library that came as its dependency."""
    source = {path.name: path.read_text() for path in (HERE / "nvidia").iterdir()}
    if version == BROKEN:
        source["nvidia.c"] = source["nvidia.c"].replace(
            "proc_remove(directory);\n\t\treturn", "proc_remove(directory, 0);\n\t\treturn"
        )
    files = {f"usr/src/nvidia-{version}/{name}": text for name, text in source.items()}
    files[f"usr/src/nvidia-{version}/dkms.conf"] = DKMS.format(version=version)
    files["DEBIAN/postinst"] = POSTINST.format(version=version, arch="$(dpkg --print-architecture)")
    files["DEBIAN/prerm"] = PRERM.format(version=version)
    depends = "Depends: dkms, nvidia-standin-firmware\n"
    package(folder, "nvidia-standin-dkms", version, depends, files)


def service(folder: Path, name: str, version: str) -> None:
    """One of the driver's services, with its unit; the newer name takes the older one's place."""
    unit = name.replace("-570", "")
    relations = "Conflicts: nvidia-fabricmanager-570\n" if name == "nvidia-fabricmanager" else ""
    files = {f"usr/lib/systemd/system/{unit}.service": UNIT.format(name=unit)}
    package(folder, name, version, relations, files)


def archive(target: Path) -> None:
    """GDRCopy's sources as its release archive has them; the same bytes each time."""
    with (
        gzip.GzipFile(target, "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted((HERE / "gdrcopy").rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                member = tarfile.TarInfo(f"gdrcopy-2.5.2/{path.relative_to(HERE / 'gdrcopy')}")
                member.size, member.mode = len(data), 0o644
                tar.addfile(member, io.BytesIO(data))


def main() -> None:
    """Make everything below the folder given."""
    folder = Path(sys.argv[1])
    packages, archives = folder / "packages", folder / "archives"
    for directory in (packages, archives):
        directory.mkdir(parents=True, exist_ok=True)
    for version in VERSIONS:
        driver(packages, version)
    for name, version in SERVICES:
        service(packages, name, version)
    package(packages, "nvidia-standin-firmware", "1", "", {"usr/share/nvidia/firmware": "none\n"})
    made = archives / "gdrcopy-2.5.2.tar.gz"
    archive(made)
    (archives / "SHA256SUM").write_text(hashlib.sha256(made.read_bytes()).hexdigest() + "\n")


if __name__ == "__main__":
    main()
