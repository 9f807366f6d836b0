"""NCCL and CuPy as they are installed here, whatever their version: what the lab calls is there, and means the same."""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from coconet_lab.run import cuda_nccl
from coconet_lab.run.cuda_symmetric import (
    COLLECTIVE_SYMMETRIC,
    DESCRIPTOR,
    NCCL_CALLS,
    WINDOWS_SINCE,
    nccl_library,
    version_text,
)

CUPY = {
    "": ("get_default_memory_pool", "ndarray", "asarray", "ascontiguousarray", "matmul", "maximum", "minimum", "split"),
    "cuda": ("Event.done", "get_elapsed_time", "graph.Graph.launch", "graph.Graph.upload", "device.get_cublas_handle"),
    "cuda.Stream": ("begin_capture", "end_capture", "wait_event", "record", "synchronize"),
    "cuda.function.Module": ("load", "get_function"),
    "cuda.memory": ("UnownedMemory", "MemoryPointer"),
    "cuda.driver": ("occupancyMaxActiveBlocksPerMultiprocessor",),
    "cuda.runtime": (
        "malloc", "free", "memset", "memcpy", "memcpyAsync", "memcpyHostToDevice", "memcpyDeviceToHost", "memGetInfo",
        "deviceSynchronize", "streamQuery", "getDeviceCount", "getDeviceProperties", "deviceCanAccessPeer", "setDevice",
        "ipcGetMemHandle", "ipcOpenMemHandle", "ipcCloseMemHandle", "CUDARuntimeError",
    ),
    "cuda.nccl": ("get_version", "get_unique_id", "groupStart", "groupEnd", "NcclError"),
    "cuda.nccl.NcclCommunicator": (
        "comm", "allReduce", "allGather", "reduceScatter", "reduce", "broadcast", "send", "recv", "check_async_error",
        "abort",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def nccl():
    """The folder of the NCCL wheel: headers and library."""
    found = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    if found is None:
        pytest.skip("needs nvidia-nccl, which is not installed")
    return Path(next(iter(found.submodule_search_locations)))


@pytest.fixture(scope="module")
def cupy(nccl):
    if find_spec("cupy") is None:
        pytest.skip("needs CuPy, which is not installed")
    import cupy

    return cupy


def version_of(library) -> int:
    version = ctypes.c_int()
    assert library.ncclGetVersion(ctypes.byref(version)) == 0
    return version.value


def header(nccl: Path) -> str:
    return (nccl / "include" / "nccl.h").read_text()


def constant(text: str, name: str) -> int:
    found = re.search(rf"\b{name}\s*(?:=\s*)?(0x[0-9a-fA-F]+|\d+)", text)
    assert found, f"{name} is not in nccl.h"
    return int(found[1], 0)


def test_the_library_has_every_function_that_is_called_and_is_the_header_s_version(nccl):
    library = ctypes.CDLL(str(nccl / "lib" / "libnccl.so.2"))
    assert [name for name in NCCL_CALLS if not hasattr(library, name)] == []
    version = version_of(library)
    assert version == constant(header(nccl), "NCCL_VERSION_CODE") >= WINDOWS_SINCE
    parts = [constant(header(nccl), f"define NCCL_{part}") for part in ("MAJOR", "MINOR", "PATCH")]
    assert version_text(version) == ".".join(map(str, parts))


def test_numbers_of_types_reductions_and_flags_are_the_header_s(nccl):
    text = header(nccl)
    names = {"FP16": "Float16", "FP32": "Float32", "FP64": "Float64", "BF16": "Bfloat16", "INT32": "Int32",
             "INT64": "Int64"}  # fmt: skip
    assert {d.name: number for d, number in cuda_nccl._KINDS.items()} == {
        name: constant(text, f"nccl{theirs}") for name, theirs in names.items()
    }
    assert {
        sign: constant(text, f"nccl{theirs}") for sign, theirs in (("+", "Sum"), ("max", "Max"), ("min", "Min"))
    } == cuda_nccl._REDUCTIONS
    assert constant(text, "NCCL_WIN_COLL_SYMMETRIC") == COLLECTIVE_SYMMETRIC
    assert constant(text, "ncclInProgress") == cuda_nccl.IN_PROGRESS


def test_a_window_s_descriptor_begins_as_it_is_read(nccl):
    text = (nccl / "include" / "nccl_device" / "impl" / "core__types.h").read_text()
    body = re.search(r"struct ncclWindow_vidmem \{(.*?)\n\}", text, re.S)
    assert body
    members = re.findall(r"^\s*(\w+\s*\*?)\s*(\w+);", body[1], re.M)
    codes = {"void*": "Q", "char*": "Q", "int": "i", "uint32_t": "I"}
    first = {name: codes[kind.replace(" ", "")] for kind, name in members[: len(DESCRIPTOR)]}
    assert list(first.items()) == list(DESCRIPTOR.items())
    assert struct.calcsize("<" + "".join(first.values())) == struct.calcsize("@" + "".join(first.values()))


def test_cupy_has_every_name_that_is_used(cupy):
    import cupy.cuda.graph  # CuPy itself imports neither
    import cupy.cuda.nccl

    def has(path: str) -> bool:
        place = cupy
        for name in filter(None, path.split(".")):
            place = getattr(place, name, None)
        return place is not None

    wanted = [f"{place}.{name}" for place, names in CUPY.items() for name in names]
    assert [path for path in wanted if not has(path)] == []


def test_cupy_has_no_words_for_the_newest_results_of_nccl(cupy):
    from cupy.cuda.nccl import NcclError

    with pytest.raises(KeyError) as caught:
        NcclError(cuda_nccl.IN_PROGRESS)
    assert caught.value.args == (cuda_nccl.IN_PROGRESS,)
    assert "remote process exited" in str(NcclError(6))


def test_calls_go_through_cupy_s_own_module_to_the_copy_of_nccl_that_it_uses(cupy):
    from cupy.cuda import nccl as binding

    library = nccl_library()
    assert version_of(library) == binding.get_version()
    assert library._name == sys.modules[binding.NcclCommunicator.__module__].__file__
