# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of a log: declared by the text that the programs print, and found in a file."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Pattern, Tuple

from ..model import SEVERITIES

_MAX_LINE = 4000
_SHOWN_LINES = 3
_SHOWN_CHARACTERS = 300
# Formats of printf, which the catalogue has as the source does; "..." stands for anything.
_FORMATS = re.compile(r"%(?:l|ll|z)?[dux]|%s| ?\.\.\. ?")


class Message(NamedTuple):
    """``rules`` names the findings of hosts that this message comes from."""

    id: str
    severity: str
    title: str
    texts: Tuple[str, ...]
    pattern: Pattern[str]
    hints: Tuple[str, ...]
    consequence: str
    fix: str
    rules: Tuple[str, ...]
    subject: str


MESSAGES: Dict[str, Message] = {}


def add(
    subject: str,
    identity: str,
    severity: str,
    title: str,
    texts: Tuple[str, ...],
    consequence: str,
    fix: str,
    rules: Tuple[str, ...] = (),
) -> None:
    """Register a message by the ``texts`` it is printed with, as printf has them."""
    if identity in MESSAGES:
        raise ValueError(f"two messages are called {identity}")
    pattern = re.compile("|".join(_expression(text) for text in texts))
    # The longest fixed part of each text: looked for first, since that is so much faster.
    hints = tuple(max(_FORMATS.split(text), key=len) for text in texts)
    MESSAGES[identity] = Message(
        identity,
        severity,
        title,
        texts,
        pattern,
        hints,
        consequence,
        fix,
        rules,
        subject.rsplit(".", 1)[-1],
    )


def text_pattern(text: str) -> Pattern[str]:
    """The pattern of one text as printf has it."""
    return re.compile(_expression(text))


def _expression(text: str) -> str:
    parts, end = [], 0
    for match in _FORMATS.finditer(text):
        word = {"%s": r"\S+", "...": ".*?"}.get(match.group().strip(), r"-?[\da-fx]+")
        parts += [re.escape(text[end : match.start()]), word]
        end = match.end()
    return "".join([*parts, re.escape(text[end:])])


def explain(stream: Iterable[str], name: str) -> List[Dict[str, Any]]:
    """The findings of a log, errors first; a message is one finding, however often it is there.

    Evidence shows its first lines. Findings have the keys of a host's; ``rules`` names the host
    findings to look at.
    """
    lines: Dict[str, List[Tuple[int, str]]] = {}
    counts: Dict[str, int] = {}
    for number, text in enumerate(stream, 1):
        line = text[:_MAX_LINE].rstrip()
        for message in MESSAGES.values():
            if any(hint in line for hint in message.hints) and message.pattern.search(line):
                counts[message.id] = counts.get(message.id, 0) + 1
                kept = lines.setdefault(message.id, [])
                if len(kept) < _SHOWN_LINES:
                    kept.append((number, line.strip()[:_SHOWN_CHARACTERS]))
    found = [_finding(MESSAGES[key], kept, counts[key], name) for key, kept in lines.items()]
    return sorted(found, key=lambda item: (SEVERITIES.index(item["severity"]), item["id"]))


def _finding(
    message: Message, lines: List[Tuple[int, str]], count: int, name: str
) -> Dict[str, Any]:
    evidence: List[Dict[str, Any]] = [
        {"where": f"{name}:{number}", "seen": line, "wanted": None} for number, line in lines
    ]
    if count > len(lines):
        more = f"{count - len(lines)} more such lines"
        evidence.append({"where": name, "seen": more, "wanted": None})
    return {
        "id": message.id,
        "severity": message.severity,
        "title": message.title,
        "hosts": [],
        "evidence": evidence,
        "consequence": message.consequence,
        "fix": message.fix,
        "role": None,
        "rules": list(message.rules),
    }
