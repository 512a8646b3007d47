"""Figures as SVG whose colours the page around them chooses, so that they are light and dark."""

import io
import re

from matplotlib import rc_context
from matplotlib.figure import Figure

# what a figure is drawn with stands for a variable of the page's style sheet
INK, SOFT, LINE = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707", "#080808")
_VARIABLES = {
    INK: "ink",
    SOFT: "soft",
    LINE: "line",
    **{colour: f"c{number}" for number, colour in enumerate(SERIES)},
}
STYLE = {
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "font.size": 10,
    "svg.fonttype": "path",  # the same everywhere: nothing moves where a font is missing
}


def themed_svg(figure: Figure, name: str, about: str) -> str:
    """An SVG element for a page that defines --ink, --soft, --line and --c0 to --c4.

    Args:
        name: of the picture, with which its ids begin; a page may hold several.
        about: what it shows, for those who do not see it; escaped already.
    """
    file = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    head = f'<svg role="img" aria-label="{about}" '
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return head + text[len("<svg ") :]
