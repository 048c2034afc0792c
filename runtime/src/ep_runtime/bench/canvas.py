"""What pictures are drawn on: one look for all, as SVG for the page or as PNG for elsewhere.

An SVG takes its colours and fonts from the page: it is drawn with placeholder colours, each of
which becomes a CSS variable, so that one picture serves the light, the dark and the printed page.
"""

from __future__ import annotations

import io
import re
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any

from ep_runtime.bench.results import ReportError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PNG_DPI = 160


@dataclass(frozen=True)
class Palette:
    """Colours by what they are for; the names are those of the page's CSS variables."""

    ink: str
    muted: str
    line: str
    accent: str
    other: str
    warn: str


ON_PAGE = Palette(*(f"#0a0b0{number}" for number in range(1, 7)))
ON_WHITE = Palette("#15191f", "#5b6470", "#dde1e6", "#2f6fdb", "#0e7a63", "#b45309")


def require(option: str) -> None:
    """Raise ``ReportError`` when matplotlib is missing, saying how to install it."""
    try:
        import matplotlib  # noqa: F401, PLC0415 - an optional dependency
    except ImportError as error:
        raise ReportError(
            f"{option} needs matplotlib, which is not installed: pip install 'ep-runtime[report]'."
        ) from error


def new_axes(palette: Palette, width_in: float, height_in: float) -> tuple[Figure, Axes]:
    """Make a figure of one plot in the common look."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(palette.muted)
    axes.tick_params(
        which="both", colors=palette.muted, labelcolor=palette.muted, labelsize=10, length=3
    )
    axes.yaxis.grid(visible=True, color=palette.line, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def svg(figure: Figure, salt: str) -> str:
    """Write a figure in ``ON_PAGE`` without anything that clashes with others on the page."""
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency

    stream = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt, "image.composite_image": False}
    with mpl.rc_context(settings):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for field, colour in zip(fields(ON_PAGE), astuple(ON_PAGE)):
        text = text.replace(colour, f"var(--{field.name})")
    return text


def png(figure: Figure) -> bytes:
    """Write a figure in ``ON_WHITE``, sharp enough for print."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_PNG_DPI, facecolor="white", metadata={"Software": ""})
    return stream.getvalue()
