"""CuPy's and NCCL's names over NumPy and threads: enough to run the CUDA engine without a GPU."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import types
import weakref
from pathlib import Path

import nccl_on_host
import numpy as np
from cuda_on_host import THREADS, OnHost, address

from coconet_lab.run import cublas, cuda_kernels, cuda_memory
from coconet_lab.run.world import ThreadWorld

_HERE = threading.local()


def at(place: int, nbytes: int) -> np.ndarray:
    """Bytes at an address."""
    return np.frombuffer((ctypes.c_uint8 * max(nbytes, 1)).from_address(place), np.uint8)[:nbytes]


def cupy_runtime():
    return sys.modules["cupy"].cuda.runtime


class Array(np.ndarray):
    """An array that tells its address as CuPy's do."""

    @property
    def data(self):
        return types.SimpleNamespace(ptr=address(self))

    def get(self):
        return np.array(self)


class World(ThreadWorld):
    """Threads that exchange as MPI's ranks do."""

    @property
    def mpi(self):
        return types.SimpleNamespace(allgather=self._all.exchange)


class Runtime:
    """Memory by address, never given back before the test ends."""

    memcpyHostToDevice, memcpyDeviceToHost = 1, 2
    CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {})

    def __init__(self, gpus: int) -> None:
        self.gpus, self.kept, self.reachable, self.broken = gpus, [], True, 0

    def getDeviceCount(self):
        return self.gpus

    def deviceCanAccessPeer(self, a, b):
        return self.reachable

    def setDevice(self, number):
        pass

    def getDeviceProperties(self, number):
        return {"name": b"host", "major": 9, "minor": 0, "multiProcessorCount": 1}

    def memGetInfo(self):
        return 1 << 30, 2 << 30

    def malloc(self, nbytes):
        raw = np.full(nbytes + 512, 0xCD, np.uint8)
        self.kept.append(raw)
        return address(raw) + -address(raw) % 256

    def free(self, place):
        pass

    def memset(self, place, value, nbytes):
        at(place, nbytes)[:] = value

    def memcpy(self, to, source, nbytes, kind):
        ctypes.memmove(to, source, nbytes)

    def memcpyAsync(self, to, source, nbytes, kind, stream):
        ctypes.memmove(to, source, nbytes)

    def ipcGetMemHandle(self, place):
        return place.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle):
        return int.from_bytes(handle, "little")

    def ipcCloseMemHandle(self, place):
        pass

    def deviceSynchronize(self):
        pass

    def streamQuery(self, number):
        return self.broken or (0 if Stream.known[number].is_done else 600)


class Stream:
    """Runs at once what it is given; while it captures, keeps it, and so do streams that wait for it.

    It is done unless something on it `hangs`: an event that is set when that has been ended.
    """

    _numbers = itertools.count(1)
    known = weakref.WeakValueDictionary()

    def __init__(self, non_blocking=False):
        self.ptr, self.captured, self.hangs = next(self._numbers), None, []
        self.known[self.ptr] = self

    @property
    def is_done(self):
        return all(ended.is_set() for ended in self.hangs)

    def give(self, action):
        """Do it, or keep it for the graph."""
        if self.captured is None:
            action()
        else:
            self.captured.append(action)

    def __enter__(self):
        _HERE.stream = self

    def __exit__(self, *error):
        _HERE.stream = None

    def record(self, event=None):
        event.of, event.hangs = self, list(self.hangs)
        return event

    def wait_event(self, event):
        if event.of.captured is not None and self.captured is None:
            self.captured = event.of.captured
            self.captured.joined.append(self)
        self.hangs += event.hangs

    def synchronize(self):
        assert self.is_done, "whoever waits for this in the driver waits for ever"
        if cupy_runtime().broken:
            raise cupy_runtime().CUDARuntimeError("an illegal memory access was encountered")

    def begin_capture(self):
        self.captured = Capture()

    def end_capture(self):
        steps = self.captured
        for stream in (self, *steps.joined):
            stream.captured = None
        return types.SimpleNamespace(upload=lambda stream: None, launch=lambda stream: [step() for step in steps])


class Capture(list):
    """What a graph does, in the order it was issued."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = []


class Event:
    def __init__(self, disable_timing=False) -> None:
        pass

    def record(self, stream):
        pass

    def synchronize(self):
        pass

    @property
    def done(self):
        return all(ended.is_set() for ended in self.hangs)


class Module:
    """A "cubin" is the kernel that runs on the host."""

    def load(self, code):
        self.kernel = code

    def get_function(self, name):
        return Function(self.kernel)


class Function:
    ptr = 0

    def __init__(self, kernel: OnHost) -> None:
        self.kernel = kernel

    def __call__(self, grid, block, args):
        assert 1 <= grid[0] <= self.kernel.ctas
        _HERE.stream.give(lambda: self.kernel.run(args[0], grid[0]))


class Cublas:
    """In place of libcublas: what `run.cublas` calls, with its ctypes arguments."""

    def cublasCreate_v2(self, handle):
        return 0

    def cublasDestroy_v2(self, handle):
        return 0

    def cublasSetStream_v2(self, handle, stream):
        return 0

    def cublasSetWorkspace_v2(self, handle, workspace, nbytes):
        return 0

    def cublasGemmStridedBatchedEx(self, handle, ta, tb, *arguments):
        m, n, k, _one, b, kind, ldb, _sb, a, _a, lda, sa, _zero, c, _c, ldc, sc, batches, _compute, _algo = (
            getattr(x, "value", x) for x in arguments
        )
        item = np.dtype({0: np.float32, 1: np.float64, 2: np.float16}[kind])

        def matrix(place, rows, columns, step, batch, stride):
            start = place + batch * stride * item.itemsize
            flat = at(start, ((rows - 1) * step + columns) * item.itemsize).view(item)
            return np.lib.stride_tricks.as_strided(flat, (rows, columns), (step * item.itemsize, item.itemsize))

        for batch in range(batches):
            left, right = matrix(a, n, k, lda, batch, sa), matrix(b, k, m, ldb, batch, 0)
            out = matrix(c, n, m, ldc, batch, sc)
            out[...] = (left.astype(np.float64) @ right.astype(np.float64)).astype(item)
        return 0


def make(gpus: int) -> types.ModuleType:
    """A module to be called ``cupy``."""
    module = types.ModuleType("cupy")
    memory = types.SimpleNamespace(
        UnownedMemory=lambda place, nbytes, owner: place, MemoryPointer=lambda place, offset: place + offset
    )
    cuda = types.ModuleType("cupy.cuda")
    cuda.runtime, cuda.memory, cuda.Stream, cuda.nccl = (
        Runtime(gpus),
        memory,
        Stream,
        nccl_on_host.Nccl(at, Stream.known),
    )
    cuda.Event = Event
    cuda.get_elapsed_time = lambda a, b: 1.0
    cuda.function = types.SimpleNamespace(Module=Module)
    cuda.driver = types.SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda f, threads, shared: 2)
    module.cuda = cuda

    def ndarray(shape, dtype, place):
        return at(place, int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape).view(Array)

    module.ndarray = ndarray
    module.asarray = lambda x: np.asarray(x).view(Array)
    module.ascontiguousarray = lambda x: np.ascontiguousarray(x).view(Array)
    module.matmul, module.int64, module.split, module.float32 = np.matmul, np.int64, np.split, np.float32
    module.maximum, module.minimum, module.uint32 = np.maximum, np.minimum, np.uint32
    module.random = types.SimpleNamespace(default_rng=np.random.default_rng)
    module.pool = types.SimpleNamespace(given_back=0)
    module.pool.free_all_blocks = lambda: setattr(module.pool, "given_back", module.pool.given_back + 1)
    module.get_default_memory_pool = lambda: module.pool
    return module


def compiler(folder: Path):
    """In place of `compile_kernel` and `compile_text`."""

    def kernel(source, variant):
        return OnHost(source, variant.rank, folder, ctas=2, unroll=variant.unroll, threads=THREADS, form=variant.form)

    def text(name, text, variant, what):
        return OnHost(types.SimpleNamespace(name=name, text=text), 0, folder, ctas=1, unroll=1, threads=32)

    return kernel, text


def installed(monkeypatch, pytestconfig, gpus: int = 4) -> types.ModuleType:
    """`make(gpus)` in CuPy's place, and kernels that run here, on two CTAs."""
    module = make(gpus)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda", module.cuda)
    kernel, text = compiler(pytestconfig.cache.mkdir("cuda_on_host"))
    monkeypatch.setattr(cuda_kernels, "compile_kernel", kernel)
    monkeypatch.setattr(cuda_kernels, "compile_text", text)
    monkeypatch.setattr(cublas, "load_library", Cublas)
    for user in (cublas, cuda_memory):  # nobody works there, and to touch megabytes takes longer than the plans
        monkeypatch.setattr(user, "WORKSPACE_BYTES", 1 << 12)
    monkeypatch.setattr(cuda_kernels, "wanted_ctas", lambda *facts: 2)
    return module
