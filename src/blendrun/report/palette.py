"""Colours that colour-blind readers can tell apart (Okabe and Ito 2008), and marks beside them."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
