"""DKMS: what is built, for which kernels, and which failures are new."""

from __future__ import annotations

import os

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import dkms as subject
from trees import write

GCC = """\
make -C /lib/modules/6.1.0-57-amd64/build M=/var/lib/dkms/nvidia/535.261.03/build modules
  CC [M]  /var/lib/dkms/nvidia/535.261.03/build/nvidia/nv-pci.o
warning: the compiler differs from the one used to build the kernel
/var/lib/dkms/nvidia/580.1/build/nv-pci.c: In function 'nv_resize_pcie_bars':
/var/lib/dkms/nvidia/580.1/build/nv-pci.c:238:9: error: too few arguments to function 'resize'
/var/lib/dkms/nvidia/580.1/build/nv-pci.c:240:9: error: another one
make[2]: *** [scripts/Makefile.build:250: nv-pci.o] Error 1
"""


def tree(tmp_path):
    base = "var/lib/dkms/nvidia/580.1"
    return write(
        tmp_path,
        {
            f"{base}/source/dkms.conf": "",
            f"{base}/6.1.0-57-amd64/x86_64/module/nvidia.ko": "",
            f"{base}/build/make.log": GCC,
            **{f"lib/modules/{k}/modules.dep": "" for k in ("6.1.0-57-amd64", "6.1.0-9-amd64")},
            "lib/modules/6.1.0-9-amd64/build/Makefile": "",
        },
    )


def test_kernels_that_have_it_and_kernels_that_could(tmp_path):
    host = tree(tmp_path)
    (source,) = subject.sources(host)
    assert source == ("nvidia", "580.1", ["6.1.0-57-amd64"])
    assert source.label == "nvidia/580.1"
    assert subject.buildable(host) == ["6.1.0-9-amd64"]


def test_old_failures_are_left_out(tmp_path):
    host = tree(tmp_path)
    log = host.path("/var/lib/dkms/nvidia/580.1/build/make.log")
    os.utime(log, (1000, 1000))
    (error,) = subject.failures(host, 999).values()
    assert error.endswith("error: too few arguments to function 'resize'")
    assert subject.failures(host, 1001) == {}
