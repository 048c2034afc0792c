from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from ranks import RankPool

if TYPE_CHECKING:
    from collections.abc import Iterator


# Busy machines are slow at times; that is no failure.
settings.register_profile("ep_runtime", deadline=None)
settings.load_profile("ep_runtime")


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Four rank processes for tests that leave them whole."""
    pool = RankPool(4)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def seed() -> int:
    """Fresh on every run; a failing assertion names it."""
    return int(os.environ.get("EP_TEST_SEED", secrets.randbelow(2**30)))
