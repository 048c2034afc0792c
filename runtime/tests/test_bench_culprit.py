"""The verdict of real runs over four made hosts, one of them slowed on purpose (see slow_fleet)."""

from __future__ import annotations

import pytest
import slow_cases
import slow_fleet


@pytest.fixture(scope="module")
def fleet():
    lacking = slow_fleet.missing()
    if lacking:
        pytest.skip(f"slow hosts cannot be made here: {lacking} is missing")
    with slow_fleet.Network() as network, slow_fleet.Quota() as quota:
        yield network, quota


# The others, and many runs of each, by `python runtime/tests/slow_fleet.py --runs 20`.
@pytest.mark.parametrize("case", ["healthy", "sleeping sender"])
def test_the_right_host_and_kind_are_named(fleet, tmp_path, case):
    port = 29600 + list(slow_cases.CASES).index(case)
    report = slow_fleet.run(*fleet, case, port, tmp_path)
    slow_host = f"host-{slow_fleet.SLOW_HOST}"
    assert slow_cases.complaint(case, report, slow_host) == ""
