"""Kernels written by hand, and how to launch them on threads as ranks without a Plan."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from coconet_lab.ir.dtypes import FP32, DType
from coconet_lab.kernels import kernel as k
from coconet_lab.kernels.numba_compile import compile_numba
from coconet_lab.kernels.signals import pad_bytes
from coconet_lab.run.engine_memory import accumulator_elements, run_time_extents


class Hand:
    """Statements one after the other; every method that makes a register returns its number."""

    def __init__(self, shape: tuple[int, ...], dim: int | None = None, ranks: int = 1, **space: Any) -> None:
        self.space = k.Space(shape, dim, ranks, **space)
        self.tensors: list[k.TensorParam] = []
        self.scalars: list[k.ScalarParam] = []
        self.dtypes: list[DType] = []
        self.origin: list[str] = []
        self.body: list[k.Statement] = []
        self.phases: list[k.Phase] = []
        self.accumulators: list[k.Accumulator] = []

    def tensor(self, value: str, dtype: DType, shape=None, placement="whole", **flags: bool) -> int:
        self.tensors.append(
            k.TensorParam(value, dtype, self.space.shape if shape is None else shape, placement, **flags)
        )
        return len(self.tensors) - 1

    def scalar(self, value: str, dtype: DType) -> int:
        self.scalars.append(k.ScalarParam(value, dtype))
        return len(self.scalars) - 1

    def register(self, dtype: DType, name: str = "") -> int:
        self.dtypes.append(dtype)
        self.origin.append(name)
        return len(self.dtypes) - 1

    def add(self, form: type, dtype: DType, *rest: Any, name: str = "") -> int:
        out = self.register(dtype, name)
        self.body.append(form(out, *rest))
        return out

    def load(self, tensor: int) -> int:
        return self.add(k.Load, self.tensors[tensor].dtype, tensor, name=self.tensors[tensor].value)

    def combine(self, tensor: int, reduction: str = "+") -> int:
        return self.add(k.Combine, self.tensors[tensor].dtype, tensor, reduction, name=f"{reduction} over ranks")

    def number(self, value: float, dtype: DType = FP32) -> int:
        return self.add(k.Number, dtype, value)

    def apply(self, fn: str, *args: int, dtype: DType | None = None, name: str = "") -> int:
        return self.add(k.Apply, dtype or self.dtypes[args[-1]], fn, args, name=name)

    def convert(self, arg: int, dtype: DType, name: str = "") -> int:
        return self.add(k.Convert, dtype, arg, name=name)

    def store(self, tensor: int, arg: int, form: type = k.Store) -> None:
        self.body.append(form(tensor, arg))

    def output(self, arg: int, value: str = "out", placement="whole") -> int:
        tensor = self.tensor(value, self.dtypes[arg], placement=placement, written=True)
        self.store(tensor, arg)
        return tensor

    def accumulate(self, arg: int, fn: str, dims=None, crosses: bool = False, per_piece: bool = False) -> int:
        self.accumulators.append(k.Accumulator(fn, self.dtypes[arg], dims, crosses, per_piece))
        self.body.append(k.Accumulate(len(self.accumulators) - 1, arg))
        return len(self.accumulators) - 1

    def result(self, accumulator: int) -> int:
        dtype = self.accumulators[accumulator].dtype
        return self.add(k.Result, dtype, accumulator, name=f"result {accumulator}")

    def end_phase(self) -> None:
        self.phases.append(k.Phase(tuple(self.body)))
        self.body = []

    def kernel(self, name: str = "by hand", meets: bool = False) -> k.Kernel:
        self.end_phase()
        return k.Kernel(
            name, self.space, tuple(self.tensors), tuple(self.scalars), tuple(self.dtypes), tuple(self.phases),
            tuple(self.accumulators), meets, meets, tuple(self.origin),
        )  # fmt: skip


def launch(kernel: k.Kernel, buffers: list[list[Any]], scalars=(), chunk=None, times: int = 1) -> None:
    """Run a kernel on threads: ``buffers[rank][tensor]`` are written in place; `scalars` in the kernel's order."""
    function, ranks = compile_numba(kernel), kernel.space.ranks
    pads = [np.zeros(pad_bytes(ranks), np.uint8) for _ in range(ranks)]
    sizes = [24 * accumulator_elements(kernel, at) for at in range(len(kernel.accumulators))]
    scratch = [[np.zeros(size, np.uint8) for size in sizes] for _ in range(ranks)]
    table = np.array([[array.ctypes.data for array in (*buffers[r], *scratch[r])] for r in range(ranks)], np.int64)
    pointers, pad_table = np.ascontiguousarray(table.T), np.array([pad.ctypes.data for pad in pads], np.int64)
    given = list(zip(kernel.scalars, scalars))
    floats = np.array([value for param, value in given if param.dtype.is_float], np.float64)
    integers = np.array([value for param, value in given if not param.dtype.is_float], np.int64)
    meets, (lo, hi) = int(kernel.opens), chunk or (0, 0)
    found = [-1] * ranks

    def work(rank: int) -> None:
        for turn in range(times):
            found[rank] = function(
                pointers.copy(), run_time_extents(kernel), floats, integers, rank, lo, hi, turn % 2, pad_table,
                100 * turn, 10**10, meets, meets,
            )  # fmt: skip

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * ranks


def same(found: Any, expected: Any) -> bool:
    """Equal to the bit, but for which NaN it is."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind in "iu":
        return bool((found == expected).all())
    kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[found.dtype.itemsize]
    nan = np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    return bool(((found.view(kind) == expected.view(kind)) | nan).all())
