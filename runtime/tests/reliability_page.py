"""The tables of docs/reliability.md, each between two marks of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def markdown(about: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown below a line ``about`` the run."""
    lines = [about, "", " | ".join(head).join("||"), "|".join("---" for _ in head).join("||")]
    lines += [" | ".join(row).join("||") for row in rows]
    return "\n".join(lines)


def write(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the marks of ``name``. ValueError where the page has none."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no marks '{begin}' and '{end}'.")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")
