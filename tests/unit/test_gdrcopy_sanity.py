"""GDRCopy's test runs once for what it tests, and its first failing test is the error."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    gdrcopy_sanity as subject,
)
from trees import loaded, write

PATH = "/usr/local/bin/gdrcopy_sanity"
FILES = {
    PATH.lstrip("/"): "program",
    "usr/local/lib/libgdrapi.so.2": "library",
    "sys/module/gdrdrv/version": "2.5.2\n",
    **loaded(),
}
# As 2.5 ends.
NEWER = """CUDA error: CUDA_ERROR_INVALID_DEVICE
Assertion "CUDA_SUCCESS == result" failed at sanity.cpp:67
Total: 28, Passed: 26, Failed: 2, Waived: 0

List of failed tests:
    basic_with_tokens
    invalidation_fork_access_after_gdr_map
"""
# As versions with the library check end.
OLDER = """Running suite(s): Sanity
96%: Checks: 27, Failures: 1, Errors: 0
sanity.cpp:815:F:Basic:basic_cumemalloc:0: Assertion failed
"""


class Program:
    def __init__(self, code=0, output=""):
        self.code, self.output, self.runs = code, output, 0

    def __call__(self, command):
        assert command[0] == "timeout"
        self.runs += 1
        return self.code, self.output, ""


def test_it_is_found_where_packages_and_the_archive_put_it(tmp_path):
    assert subject.program(write(tmp_path, {})) is None
    assert subject.program(write(tmp_path, FILES)) == PATH


def test_what_passed_is_known_until_something_changes(tmp_path):
    host, program = write(tmp_path, FILES), Program()
    tested = subject.subject(host, PATH)
    assert (tested["driver"], tested["gdrdrv"]) == ("580.159.04", "2.5.2")
    assert not subject.has_passed(host, tested)
    subject.run_tests(host, PATH, tested, program)
    assert subject.has_passed(host, subject.subject(host, PATH))
    write(tmp_path, {"usr/local/lib/libgdrapi.so.2": "another library"})
    assert not subject.has_passed(host, subject.subject(host, PATH))


@pytest.mark.parametrize(
    ("code", "output", "told"),
    [
        (1, NEWER, "test basic_with_tokens failed: CUDA error: CUDA_ERROR_INVALID_DEVICE"),
        (1, OLDER, "test basic_cumemalloc failed: Assertion failed"),
        (1, "gdr_open error: no gdrdrv\n", "gdr_open error: no gdrdrv"),
        (139, "", "exit code 139"),
        (124, "", "it did not end in 300 s"),
    ],
)
def test_the_first_failing_test_is_the_error(tmp_path, code, output, told):
    host = write(tmp_path, FILES)
    tested = subject.subject(host, PATH)
    with pytest.raises(subject.SanityError) as caught:
        subject.run_tests(host, PATH, tested, Program(code, output))
    assert str(caught.value) == told
    assert not subject.has_passed(host, tested)
