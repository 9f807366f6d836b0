"""CUDA text run on the CPU: a CTA a thread, in which its own take turns; the few device primitives are given in C++.

Slow, and no proof about a GPU's memory model; but indices, tails, masks, roundings, reductions and meetings between
ranks are those of the text that runs there.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coconet_lab.kernels.cuda_abi import PAD_BYTES, STATE_BYTES, peer_tensors
from coconet_lab.kernels.cuda_launch import (
    Scratch,
    Staging,
    Team,
    arguments,
    bucket_tables,
    half_words,
    partial_words,
    staging_bytes,
)
from coconet_lab.kernels.cuda_printer import CudaSource
from coconet_lab.kernels.kernel import Kernel

THREADS = 64

DEVICE = r"""
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <ucontext.h>
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
struct uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim, blockDim;
static int my_rank;
struct Barrier { unsigned expected, here; };
static Barrier whole, warps[32];
static void meet(Barrier& barrier);
static void step_aside();
static void __syncthreads() { meet(whole); }
static void __syncwarp() { meet(warps[threadIdx.x / 32]); }
static void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
template <class T> static T __ldcs(const T* p) { return *p; }
template <class T> static void __stwb(T* p, T x) { *p = x; }
template <class T> static T __ldcg(const T* p) {
  if constexpr (sizeof(T) <= 8) return *(volatile const T*)p;
  T x;
  for (unsigned n = 0; n < sizeof(T) / 4; ++n) ((unsigned*)&x)[n] = ((volatile const unsigned*)p)[n];
  return x;
}
template <class A, class B> static B bits(A a) { B b; std::memcpy(&b, &a, sizeof(B)); return b; }
static float __uint_as_float(unsigned x) { return bits<unsigned, float>(x); }
static unsigned __float_as_uint(float x) { return bits<float, unsigned>(x); }
static float __int_as_float(int x) { return bits<int, float>(x); }
static double __longlong_as_double(long long x) { return bits<long long, double>(x); }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static float __double2float_rz(double x) {
  float y = (float)x;
  return std::fabs((double)y) > std::fabs(x) ? std::nextafter(y, 0.0f) : y;
}
template <class T> static T toward_zero(double x) {
  const double top = -(double)std::numeric_limits<T>::min();
  return x >= top ? std::numeric_limits<T>::max() : x <= -top ? std::numeric_limits<T>::min() : (T)x;
}
static int __float2int_rz(float x) { return toward_zero<int>(x); }
static int __double2int_rz(double x) { return toward_zero<int>(x); }
static long long __float2ll_rz(float x) { return toward_zero<long long>(x); }
static long long __double2ll_rz(double x) { return toward_zero<long long>(x); }
static unsigned atomicAdd(unsigned* p, unsigned x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); }
static unsigned atomicCAS(unsigned* p, unsigned old, unsigned x) {
  __atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
template <class T> static T __shfl_down_sync(unsigned, T x, int step) {
  static T lanes[1024];
  lanes[threadIdx.x] = x;
  meet(warps[threadIdx.x / 32]);
  const T found = threadIdx.x % 32 + step < 32 ? lanes[threadIdx.x + step] : x;
  meet(warps[threadIdx.x / 32]);
  return found;
}
"""

# Threads of a CTA take turns from barrier to barrier, each time in another order: a text that lacks a barrier is wrong
# in some. Threads of the system, started one after the other, would seldom show it.
RUN = r"""
struct Fiber { ucontext_t context; Barrier* waits; bool ended; char stack[1 << 17]; };
static Fiber fibers[THREADS];
static ucontext_t home;
static unsigned left, dice;
static const Args* given;
static void next() {
  const unsigned from = threadIdx.x, start = (dice = dice * 1664525 + 1013904223) >> 16;
  for (unsigned n = 0; n < THREADS; ++n) {
    const unsigned to = (start + n) % THREADS;
    if (fibers[to].waits || fibers[to].ended) continue;
    threadIdx.x = to;
    if (to != from) swapcontext(&fibers[from].context, &fibers[to].context);
    return;
  }
  setcontext(&home);
}
static void meet(Barrier& barrier) {
  if (++barrier.here < barrier.expected) {
    fibers[threadIdx.x].waits = &barrier;
  } else {
    barrier.here = 0;
    for (auto& fiber : fibers) if (fiber.waits == &barrier) fiber.waits = nullptr;
  }
  next();
}
static void step_aside() {
  std::this_thread::yield();
  next();
}
static void body() {
  KERNEL(*given);
  fibers[threadIdx.x].ended = true;
  if (--left) next();
}
extern "C" unsigned run(unsigned cta, unsigned ctas, int rank, const Args* args) {
  my_rank = rank;
  blockIdx.x = cta;
  gridDim.x = ctas;
  blockDim.x = THREADS;
  left = THREADS;
  given = args;
  whole = {THREADS, 0};
  for (auto& warp : warps) warp = {32, 0};
  for (auto& fiber : fibers) {
    fiber.waits = nullptr;
    fiber.ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack, 0, sizeof fiber.stack};
    fiber.context.uc_link = &home;
    makecontext(&fiber.context, body, 0);
  }
  volatile bool started = false;
  getcontext(&home);
  if (!started) {
    started = true;
    threadIdx.x = 0;
    setcontext(&fibers[0].context);
  }
  return left;
}
"""

PRIMITIVES = {
    "float up(fp16 x)": "{ _Float16 y; std::memcpy(&y, &x, 2); return (float)y; }",
    "void down(float x, fp16& y)": "{ _Float16 z = (_Float16)x; std::memcpy(&y, &z, 2); }",
    "void down(float x, bf16& y)": (
        "{ u32 b = __float_as_uint(x); y.bits = x != x ? 0x7FFF : (b + 0x7FFF + ((b >> 16) & 1)) >> 16; }"
    ),
    "void post(u32* flag, u32 value)": "{ __atomic_store_n(flag, value, __ATOMIC_RELEASE); }",
    "void post_arrival(u32* flag, u32 value)": "{ __atomic_store_n(flag, value, __ATOMIC_RELEASE); }",
    "u32 seen(const u32* flag)": "{ step_aside(); return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }",
    "u64 clock_ns()": "{ timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }",
}


class Text(Protocol):
    """A kernel's text and the name of its function."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...


def host_text(source: Text) -> str:
    """The kernel's text with C++ in place of PTX."""
    text = source.text
    for signature, body in PRIMITIVES.items():
        start = text.index(signature) + len(signature)
        depth, end = 0, start
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0 and text[end - 1] == "}":
                break
        text = f"{text[:start]} {body}{text[end:]}"
    half = r'fp16 y; asm\("cvt\.rn\.f16\.f64[^;]*;"[^;]*; return up\(y\);'
    text, count = re.subn(half, "fp16 y; _Float16 z = (_Float16)x; std::memcpy(&y, &z, 2); return up(y);", text)
    assert count == 1
    assert "asm" not in text
    inside = f"using namespace in_{source.name};\n" if f"namespace in_{source.name}" in text else ""
    return '#include "device.hpp"\n' + text + inside + RUN.replace("KERNEL", source.name)


def build(source: Text, folder: Path, unroll: int = 2, threads: int = THREADS, form: str = "read") -> Path:
    """Compile the text, once for all ranks."""
    digest = hashlib.blake2b((DEVICE + RUN + source.text).encode(), digest_size=6).hexdigest()
    path = folder / f"{source.name}-{digest}-{unroll}-{threads}-{form}.so"
    with _building:
        if path.exists():
            return path
        code = folder / f"{path.stem}.cpp"
        defines = ["-DRANK=my_rank", f"-DUNROLL={unroll}", f"-DTHREADS={threads}"]
        defines += [f"-DDEFER={form == 'turns':d}", f"-DPUSH={form == 'push':d}"]
        options = ["-O0", "-std=c++20", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-fPIC"]
        header = folder / f"device-{hashlib.blake2b(DEVICE.encode(), digest_size=4).hexdigest()}.hpp"
        code.write_text(host_text(source).replace("device.hpp", header.name))
        if not header.exists():
            header.write_text(DEVICE)
            _compile([*options, "-x", "c++-header", str(header)])
        made = path.with_suffix(f".{os.getpid()}")
        _compile([*options, "-shared", *defines, "-o", str(made), str(code), "-lpthread"])
        made.replace(path)
    return path


def _compile(arguments: list[str]) -> None:
    subprocess.run(["g++", *arguments], check=True, capture_output=True, timeout=120)


_building = threading.Lock()


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


class Kept:
    """Zeroed memory at chosen places, kept alive."""

    def __init__(self) -> None:
        self._all: list[np.ndarray] = []

    def take(self, nbytes: int, shift: int = 0) -> np.ndarray:
        """Bytes at a multiple of 256, and `shift` further."""
        raw = np.zeros(nbytes + shift + 512, np.uint8)
        self._all.append(raw)
        start = -address(raw) % 256 + shift
        return raw[start : start + nbytes]


def at_once(function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
    """What a function returns for each item, each in a thread of its own, since they may wait for each other."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        return list(pool.map(function, *items))


class OnHost:
    """One kernel on one rank: `ctas` copies of its library, since a CTA's shared memory is static there."""

    def __init__(
        self, source: Text, rank: int, folder: Path, ctas: int = 2, unroll: int = 2, threads: int = THREADS,
        form: str = "read",
    ) -> None:  # fmt: skip
        self.source, self.rank, self.ctas = source, rank, ctas
        built = build(source, folder, unroll, threads, form)
        self.libraries = []
        self._copies = tempfile.TemporaryDirectory()
        for cta in range(ctas):
            copy = Path(self._copies.name) / f"{built.stem}.{rank}.{cta}.so"
            shutil.copy(built, copy)
            self.libraries.append(ctypes.CDLL(str(copy)))

    def run(self, packed: np.ndarray, ctas: int | None = None) -> None:
        """All CTAs at once; the error word is in the state that `packed` names."""
        grid = ctas or self.ctas
        place = ctypes.c_void_p(packed.ctypes.data)
        left = at_once(lambda cta: self.libraries[cta].run(cta, grid, self.rank, place), range(grid))
        assert not any(left), f"of rank {self.rank} {max(left)} threads wait at a barrier to which not all of them come"


class Launcher:
    """Runs one kernel on all ranks of its group, with pads and counters that stay from launch to launch."""

    def __init__(self, source: CudaSource, folder: Path, *, ctas: int = 2, unroll: int = 2, form: str = "read") -> None:
        self.source, self.kernel, self.ranks = source, source.kernel, source.kernel.space.ranks
        self.memory = Kept()
        self.on_rank = [OnHost(source, rank, folder, ctas, unroll, form=form) for rank in range(self.ranks)]
        self.pads = [self.memory.take(PAD_BYTES) for _ in range(self.ranks)]
        self.states = [self.memory.take(STATE_BYTES) for _ in range(self.ranks)]
        self.half = half_words(source)
        self.exchange = [self.memory.take(16 * self.half + 8) for _ in range(self.ranks)]
        nbytes = staging_bytes(source, ctas, THREADS, unroll) if form == "push" else 0
        self.staging = [self.memory.take(nbytes) for _ in range(self.ranks)]
        self.partials = [self.memory.take(8 * partial_words(source, r)[1] + 8) for r in range(self.ranks)]

    def launch(self, tensors, scalars=(), *, meets: bool = True, limit_s: float = 20.0, chunk=None, absent=()) -> None:
        """`tensors[t][rank]` are arrays; `scalars` are 8-byte arrays. Ranks in `absent` do not come."""
        peers = peer_tensors(self.kernel)
        ranks, given = sorted(set(range(self.ranks)) - set(absent)), []
        for rank in ranks:
            team = Team(
                tuple(map(address, self.pads)), address(self.states[rank]), int(limit_s * 1e9),
                meets and self.kernel.opens, meets and self.kernel.closes,
            )  # fmt: skip
            scratch = Scratch(
                address(self.partials[rank]), tuple(map(address, self.exchange)), self.half,
                device_tables(self.kernel, rank, self.memory),
            )  # fmt: skip
            places = [
                [address(a) for a in arrays] if t in peers else [address(arrays[rank])]
                for t, arrays in enumerate(tensors)
            ]
            given.append(
                arguments(
                    self.source, rank, tensors=places, scalars=[address(s) for s in scalars],
                    team=team, scratch=scratch, staging=self.far(chunk) if team.opens else None, chunk=chunk,
                )
            )  # fmt: skip
        at_once(lambda rank, packed: self.on_rank[rank].run(packed), ranks, given)

    def far(self, chunk) -> Staging | None:
        """Where ranks write to their peers, if this text is compiled for that."""
        if not self.staging[0].size:
            return None
        tables = [device_tables(self.kernel, rank, self.memory, chunk) for rank in range(self.ranks)]
        return Staging(tuple(map(address, self.staging)), tables)

    def error(self, rank: int) -> int:
        """The error word of a rank."""
        return int(self.states[rank][:4].view(np.uint32)[0])


def device_tables(kernel: Kernel, rank: int, memory: Kept, chunk=None, shifts=None) -> dict[str, int]:
    """Addresses of a list kernel's bucket tables."""
    found = {}
    for name, table in bucket_tables(kernel, rank, chunk, shifts).items() if kernel.space.pieces else ():
        place = memory.take(table.nbytes + 8)
        place[: table.nbytes] = table.view(np.uint8)
        found[name] = address(place)
    return found
