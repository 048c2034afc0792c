"""The JSON document of a run: built on rank 0, written at once or not at all, read again.

Its shape is fixed by ``schema/report-3.json``; a change that breaks readers gets a new number.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench import culprits, overall
from ep_runtime.bench.kinds import ALL_TO_ALL, Kind
from ep_runtime.bench.options import SWEPT
from ep_runtime.bench.pairs import host_matrix
from ep_runtime.bench.physical import Sent, imbalance
from ep_runtime.bench.statistics import OPERATIONS, spread, summarize
from ep_runtime.bench.waits import TIMED, WaitFigures, lateness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ep_runtime.bench.options import Parameters
    from ep_runtime.bench.pace import Rounds
    from ep_runtime.bench.pairs import PairFigures
    from ep_runtime.bench.place import Place

SCHEMA_VERSION = 3
PASSED = "passed"

_ALWAYS = ("run_id", "backend", "device", "transport", "ranks", "correctness", "hosts")
_TIMED = (
    *(*OPERATIONS, "rounds", "load", "times", ALL_TO_ALL, "sweep"),
    *("skew", "waits", "culprits", "per_rank"),
)


class ReportError(Exception):
    """A report that cannot be read or written; the text names the file."""


@dataclass(frozen=True)
class Timing:
    """What one rank measured.

    ``samples``: operation -> microseconds of each timed call. ``barriers``: microseconds spent in
    each barrier. ``waits``: operation -> its waits for each rank. ``beside``: the kinds of time
    that were measured beside the main one, and ``ALL_TO_ALL``.
    """

    samples: Mapping[str, Sequence[float]]
    barriers: Sequence[float]
    waits: Mapping[str, WaitFigures]
    rounds: Rounds
    sent: Sent
    beside: Mapping[str, Kind]


@dataclass(frozen=True)
class PointTimes:
    """What one rank measured at one point of a sweep: which field was swept, and to what."""

    axis: str
    parameters: Parameters
    samples: Mapping[str, Sequence[float]]
    sent: Sent


@dataclass(frozen=True)
class Clock:
    """How the main figures were timed, in words, and which kind of time they are."""

    name: str
    kind: str


@dataclass(frozen=True)
class RankResult:
    """What one rank contributes.

    ``timing`` is None when the check failed, ``swept`` without a sweep over pairs of hosts.
    """

    rank: int
    host: str
    place: Place
    backend: str
    transport: str
    timing: Timing | None
    points: Sequence[PointTimes] = ()
    swept: PairFigures | None = None


def schema() -> dict[str, Any]:
    """Read the document's JSON schema, as shipped in the package."""
    text = resources.files("ep_runtime.bench").joinpath("schema/report-3.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _listed(values: Sequence[str]) -> str:
    """Join the distinct values in order of appearance."""
    return ", ".join(dict.fromkeys(values))


def _hosts(ranks: Sequence[RankResult]) -> list[dict[str, Any]]:
    by_name: dict[str, list[int]] = {}
    for result in ranks:
        by_name.setdefault(result.host, []).append(result.rank)
    return [{"name": name, "ranks": members} for name, members in by_name.items()]


def rank_document(parameters: Parameters, result: RankResult) -> dict[str, Any]:
    """Build one rank's part of the document, its samples included."""
    timing = _timing(result)
    sizes = overall.bytes_of(parameters)
    return {
        "rank": result.rank,
        "host": result.host,
        "device": result.place.device,
        "gpu": result.place.gpu,
        "nics": list(result.place.nics),
        **{name: summarize(timing.samples[name], sizes[name]) for name in OPERATIONS},
        "own_us": {name: timing.waits[name].own_us for name in TIMED},
        "samples": {name: list(timing.samples[name]) for name in OPERATIONS},
    }


def _timing(result: RankResult) -> Timing:
    assert result.timing is not None, "a passed run has times"
    return result.timing


def document(
    parameters: Parameters,
    run_id: str,
    correctness: str,
    clock: Clock,
    ranks: Sequence[RankResult],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Build the whole document; timings only when ``correctness`` is "passed"."""
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "correctness": correctness,
        "backend": _listed([result.backend for result in ranks]),
        "device": _listed([result.place.device_name for result in ranks]),
        "transport": _listed([result.transport for result in ranks]),
        "ranks": len(ranks),
        "hosts": _hosts(ranks),
        "parameters": parameters.as_dict(),
        "clock": clock.name,
        "versions": dict(versions),
    }
    if correctness != PASSED:
        return head
    per_rank = [rank_document(parameters, result) for result in ranks]
    timings = [_timing(result) for result in ranks]
    late = lateness([timing.barriers for timing in timings])
    for entry, times in zip(per_rank, late):
        entry["late_us"] = spread(times)
    hosts = [result.host for result in ranks]
    samples = [timing.samples for timing in timings]
    sent = [timing.sent for timing in timings]
    beside = [timing.beside for timing in timings]
    not_asked = Kind.not_measured(overall.NOT_ASKED)
    return {
        **head,
        **overall.operations(parameters, head["backend"], hosts, samples, sent),
        "rounds": asdict(timings[0].rounds),
        "load": imbalance(sent),
        "times": overall.times(clock.kind, clock.name, samples, beside),
        ALL_TO_ALL: overall.kind([rank.get(ALL_TO_ALL, not_asked) for rank in beside]),
        "sweep": [
            _point(head["backend"], hosts, points)
            for points in zip(*(result.points for result in ranks))
        ],
        "skew": spread(late.max(axis=0)),
        "waits": {
            name: _matrix([timing.waits[name].p50_us for timing in timings]) for name in TIMED
        },
        **_pairwise(parameters, ranks),
        "culprits": culprits.find(ranks, timings, late),
        "per_rank": per_rank,
    }


def _point(backend: str, hosts: Sequence[str], ranks: Sequence[PointTimes]) -> dict[str, Any]:
    """Sum up one point of the sweep over all ranks."""
    first = ranks[0]
    p = first.parameters
    figures = overall.operations(
        p, backend, hosts, [rank.samples for rank in ranks], [rank.sent for rank in ranks]
    )
    return {"axis": first.axis, **{name: getattr(p, name) for name in SWEPT}, **figures}


def _pairwise(parameters: Parameters, ranks: Sequence[RankResult]) -> dict[str, Any]:
    """Build the part about the sweep over pairs of hosts; nothing without one."""
    swept = [result.swept for result in ranks if result.swept is not None]
    if not swept:
        return {}
    hosts = [result.host for result in ranks]
    found: dict[str, Any] = {"iters": parameters.pairwise}
    for name in TIMED:
        waits = np.array([figures.p50[name] for figures in swept], dtype=np.float64)
        found["hosts"], found[name] = host_matrix(hosts, waits)
    return {"pairwise": found}


def _matrix(rows: Sequence[NDArray[np.float32]]) -> list[list[float | None]]:
    """Write rows as JSON can: tenths of a microsecond, null for what was never waited for."""
    return [
        [None if value != value else round(value, 1) for value in row.tolist()]  # noqa: PLR0124
        for row in rows
    ]


def blamed_ranks(report: Mapping[str, Any]) -> set[int]:
    """Give the ranks that a passed run's report blames; of a link, both ends."""
    return {rank for item in report["culprits"] for rank in item["ranks"] + item["peers"]}


def pooled(ranks: Sequence[Mapping[str, Any]], operation: str) -> list[float]:
    """Give the times of all calls of ``operation``, from entries of ``per_rank``."""
    return [value for entry in ranks for value in entry["samples"][operation]]


def write(path: Path, text: str) -> None:
    """``write_bytes`` for text."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` through a rename, so a reader sees all of it or the old file.

    Raises ``ReportError`` naming the path.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            # mkstemp makes files that only their owner can read.
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}.") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """``write`` for a document: one line for each key, so that matrices stay on few lines."""
    lines = (f"{json.dumps(key)}: {json.dumps(content)}" for key, content in value.items())
    write(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_json(path: Path) -> Any:
    """Read a file. ``ReportError`` with one sentence when it is missing or not JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}.") from error


def load(path: Path) -> dict[str, Any]:
    """Read a document that ``report`` can render.

    Raises ``ReportError`` with one sentence when it is missing, not JSON, or of another schema.
    """
    report = read_json(path)
    if not isinstance(report, dict) or report.get("schema_version") != SCHEMA_VERSION:
        raise ReportError(f"{path} is not a benchmark report of schema version {SCHEMA_VERSION}.")
    needed = _ALWAYS + (_TIMED if report.get("correctness") == PASSED else ())
    missing = [key for key in needed if key not in report]
    if missing:
        raise ReportError(f"{path} lacks {missing[0]!r}, which every such report has.")
    return report
