"""The six element types of the language and what arithmetic on each of them means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Parameters
    ----------
    name : str
        As printed: ``FP16``.
    numpy : numpy.dtype
        How a NumPy array holds it (bfloat16 comes from ml_dtypes).
    eps : float
        Distance from 1 to the next value; 0 for integers.
    exact_limit : int
        Sums of integers are exact in any order while the sum of magnitudes stays at or below this.
    """

    name: str
    numpy: np.dtype[Any]
    eps: float
    exact_limit: int

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        """Whether division, roots and norms exist for it."""
        return self.eps > 0

    @property
    def compute(self) -> np.dtype[Any]:
        """The type one operation is computed in before it is rounded: float32 for the 16-bit types."""
        return np.dtype(np.float32) if self.itemsize == 2 else self.numpy

    def __repr__(self) -> str:
        return self.name


FP16 = DType("FP16", np.dtype(np.float16), 2.0**-10, 2**11)
BF16 = DType("BF16", np.dtype(ml_dtypes.bfloat16), 2.0**-7, 2**8)
FP32 = DType("FP32", np.dtype(np.float32), 2.0**-23, 2**24)
FP64 = DType("FP64", np.dtype(np.float64), 2.0**-52, 2**53)
INT32 = DType("INT32", np.dtype(np.int32), 0.0, 2**31 - 1)
INT64 = DType("INT64", np.dtype(np.int64), 0.0, 2**63 - 1)

DTYPES: dict[str, DType] = {d.name: d for d in (FP16, BF16, FP32, FP64, INT32, INT64)}
