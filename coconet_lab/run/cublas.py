"""Products by cuBLAS through its C interface: CuPy's own calls refuse to be captured into a graph."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from coconet_lab.errors import ToolError
from coconet_lab.ir.dtypes import BF16, FP16, FP32, FP64, DType
from coconet_lab.run.cuda_device import import_cupy

# cudaDataType_t, and the compute type of each: float sums for 16 bits, never TF32
TYPES: dict[DType, int] = {FP32: 0, FP64: 1, FP16: 2, BF16: 14}
_COMPUTE_32F, _COMPUTE_64F, _DEFAULT, _PLAIN = 68, 70, -1, 0
_NAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")
WORKSPACE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Product:
    """Row-major ``C = A B`` in batches of rows.

    Parameters
    ----------
    batches, rows, columns, inner : int
    step_a, step_b, step_c : int
        Elements from row to row.
    batch_a, batch_c : int
        Elements from batch to batch; B is the same for all.
    dtype : DType
    """

    batches: int
    rows: int
    columns: int
    inner: int
    step_a: int
    step_b: int
    step_c: int
    batch_a: int
    batch_c: int
    dtype: DType


class Cublas:
    """A cuBLAS handle with a workspace of its own, so that nothing is allocated while a graph is captured.

    Parameters
    ----------
    workspace : int
        Address of `WORKSPACE_BYTES` of device memory.

    Raises
    ------
    ToolError
        No cuBLAS, or one that does not start.
    """

    def __init__(self, workspace: int) -> None:
        self._library = load_library()
        handle = ctypes.c_void_p()
        self._check(self._library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
        self._handle, self._workspace = handle, workspace
        # The two factors are read at each call: they must live as long as the handle.
        self._factors = {wide: np.array([1, 0], np.float64 if wide else np.float32) for wide in (False, True)}

    def multiply(self, what: Product, a: int, b: int, c: int, stream: Any) -> None:
        """Enqueue one product on `stream`; `a`, `b` and `c` are addresses."""
        library, wide = self._library, what.dtype == FP64
        pointer, kind = ctypes.c_void_p, TYPES[what.dtype]
        one = self._factors[wide].ctypes.data
        zero = one + self._factors[wide].itemsize
        self._check(library.cublasSetStream_v2(self._handle, pointer(stream.ptr)), "cublasSetStream")
        # Setting the stream puts the handle back to a workspace of cuBLAS's own.
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        self._check(library.cublasSetWorkspace_v2(self._handle, pointer(self._workspace), size), "cublasSetWorkspace")
        long = ctypes.c_longlong
        status = library.cublasGemmStridedBatchedEx(
            # Row-major C = A B is cuBLAS's column-major Cᵀ = Bᵀ Aᵀ.
            self._handle, _PLAIN, _PLAIN, what.columns, what.rows, what.inner, pointer(one),
            pointer(b), kind, what.step_b, long(0), pointer(a), kind, what.step_a, long(what.batch_a), pointer(zero),
            pointer(c), kind, what.step_c, long(what.batch_c), what.batches,
            _COMPUTE_64F if wide else _COMPUTE_32F, _DEFAULT,
        )  # fmt: skip
        self._check(status, "cublasGemmStridedBatchedEx")

    def close(self) -> None:
        """Give the handle and its workspace back."""
        if self._handle:
            self._library.cublasDestroy_v2(self._handle)
            self._handle = ctypes.c_void_p()

    @staticmethod
    def _check(status: int, call: str) -> None:
        if status:
            raise ToolError(
                f"{call} answered {status}",
                rule="a call of cuBLAS answers 0",
                where="the CUDA engine",
                hint="coconet-lab doctor shows the versions; backend='cpu' runs the same Plan",
            )


def load_library() -> Any:
    """The cuBLAS that CuPy has loaded."""
    # CuPy knows where its cuBLAS lies and has loaded it by then: the name alone finds that one.
    import_cupy().cuda.device.get_cublas_handle()
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ToolError(
        f"none of {', '.join(_NAMES)} can be loaded",
        rule="products on the GPU are cuBLAS's",
        where="the CUDA engine",
        hint="pip install nvidia-cublas",
    )
