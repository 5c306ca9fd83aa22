"""Figures as SVG, drawn by matplotlib, which comes with the extra `study` and is imported when the first is drawn."""

from __future__ import annotations

import importlib
import importlib.util
import io
from typing import Any

from tfkit.core.extras import optional

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#9f6b53", "#787774", "#cb912f", "#337ea9", "#d44c47")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def matplotlib_figure() -> Any:
    """The class of figures that need no display; raises UsageError that says how to install it."""
    return optional("matplotlib.figure", "study", "pictures need").Figure


def svg(figure: Any, name: str) -> str:
    """A figure as SVG without a date, so that the same data gives the same text; ids begin with `name`."""
    matplotlib = importlib.import_module("matplotlib")
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def finished(axes: Any) -> None:
    """Give axes a grid and, where lines have labels, a legend."""
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        axes.legend(handles, labels, fontsize=8, frameon=False)
