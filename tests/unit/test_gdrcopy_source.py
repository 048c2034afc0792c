"""GDRCopy from source: against which driver's sources, and when it is built anew."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    gdrcopy_source as subject,
)
from trees import write

OPEN = 'MODULE_LICENSE("Dual MIT/GPL");\n'
CLOSED = 'MODULE_LICENSE("NVIDIA");\n'


def sources(version, licence=OPEN, folder=""):
    base = f"usr/src/nvidia-{version}{folder}"
    return {f"{base}/nv-p2p.h": "", f"{base}/nv.c": licence}


def added(version):
    return {f"var/lib/dkms/nvidia/{version}/source/dkms.conf": ""}


@pytest.mark.parametrize(("licence", "opensource"), [(OPEN, True), (CLOSED, False)])
def test_the_flavour_is_the_sources_licence(tmp_path, licence, opensource):
    host = write(tmp_path, sources("580.1", licence, "/nvidia"))
    assert subject.driver(host) == ("/usr/src/nvidia-580.1/nvidia", opensource)


def test_the_sources_that_dkms_has_count(tmp_path):
    host = write(tmp_path, {**sources("570.1"), **sources("580.1"), **added("580.1")})
    assert subject.driver(host).directory == "/usr/src/nvidia-580.1"


@pytest.mark.parametrize("tree", [{}, {**sources("570.1"), **sources("580.1")}])
def test_none_or_several_are_refused(tmp_path, tree):
    with pytest.raises(subject.GdrcopyError, match="nvidia-kernel-source"):
        subject.driver(write(tmp_path, tree))


def test_another_driver_or_a_missing_file_makes_it_stale(tmp_path):
    asked = subject.wanted("2.5.2", "sha256:1", subject.Driver("/usr/src/nvidia-580.1", True))
    library = "/usr/local/lib/libgdrapi.so.2.5"
    marker = subject.json.dumps({**asked, "files": [library]})
    host = write(
        tmp_path,
        {
            "usr/src/gdrdrv-2.5.2/.epfleet.json": marker,
            "usr/src/gdrdrv-2.5.2/dkms.conf": "",
            "var/lib/dkms/gdrdrv/2.5.2/source/dkms.conf": "",
            library.lstrip("/"): "",
        },
    )
    assert subject.is_current(host, asked)
    assert not subject.is_current(host, {**asked, "driver": "/usr/src/nvidia-570.1"})
    (tmp_path / library.lstrip("/")).unlink()
    assert not subject.is_current(host, asked)
