# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Many host names in few characters: gpu[001-012,020], login."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Optional, Tuple

_NUMBERED = re.compile(r"^(.*?)(\d+)(\D*)$")


def compact(names: Iterable[str]) -> str:
    """Fold names that differ in their last number into ranges; zeros in front are kept apart."""
    groups: Dict[Tuple[str, str, int], List[int]] = {}
    rest: List[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.match(name)
        if match is None:
            rest.append(name)
            continue
        # The width matters only where numbers are padded: gpu9 and gpu10 are one range.
        width = len(match.group(2)) if match.group(2).startswith("0") else 0
        key = (match.group(1), match.group(3), width)
        groups.setdefault(key, []).append(int(match.group(2)))
    _join_padded(groups)
    parts = []
    for (head, tail, width), numbers in sorted(groups.items()):
        ranges = _ranges(sorted(numbers), width)
        single = len(ranges) == 1 and "-" not in ranges[0]
        body = ranges[0] if single else f"[{','.join(ranges)}]"
        parts.append(f"{head}{body}{tail}")
    return ", ".join([*parts, *rest])


def _join_padded(groups: Dict[Tuple[str, str, int], List[int]]) -> None:
    """gpu100 belongs to gpu001's range: it is as wide as the padded ones."""
    for head, tail, width in [key for key in groups if key[2] == 0]:
        for other in [key for key in groups if key[:2] == (head, tail) and key[2]]:
            fitting = [n for n in groups[head, tail, width] if len(str(n)) == other[2]]
            groups[other] += fitting
            left = [n for n in groups[head, tail, width] if n not in fitting]
            groups[head, tail, width] = left
        if not groups[head, tail, width]:
            del groups[head, tail, width]


def _ranges(numbers: List[int], width: int) -> List[str]:
    parts: List[str] = []
    first: Optional[int] = None
    for index, number in enumerate(numbers):
        first = number if first is None else first
        if index + 1 < len(numbers) and numbers[index + 1] == number + 1:
            continue
        low, high = str(first).zfill(width), str(number).zfill(width)
        parts.append(low if first == number else f"{low}-{high}")
        first = None
    return parts
