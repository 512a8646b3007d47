"""Array types of the cost formulas: whole numbers come in, float64 seconds go out."""

import numpy as np
import numpy.typing as npt

Numbers = npt.ArrayLike
Floats = npt.NDArray[np.float64]


def as_floats(values: Numbers) -> Floats:
    """float64 copy or view; keeps products of token counts from overflowing int32."""
    return np.asarray(values, dtype=np.float64)
