"""From CUDA text to machine code: NVRTC, through CuPy or through cuda-bindings, with a cache on disk by content.

No GPU is needed to compile, so every kernel is compiled in the tests. Pointwise arithmetic must match the oracle's
bits: no contraction, and division and roots as IEEE 754 says, which is NVRTC's default.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.kernels.cuda_printer import CudaSource, without_comments

OPTIONS = ("--std=c++17", "--fmad=false")
Form = Literal["read", "turns", "push"]
_NAME = re.compile(r"^(sm|compute)_\d+a?$")


@dataclass(frozen=True, slots=True)
class Variant:
    """What a kernel is compiled for.

    Parameters
    ----------
    arch : str
        ``sm_90``.
    rank : int
        Number of this rank in its group: peers are visited from it on, at no cost.
    unroll : int
        Vectors a thread has in flight.
    threads : int
        Threads of a CTA, a multiple of 32.
    form : "read", "turns" or "push"
        How peers' parts of a sum come: read as they are needed; so too, but with stores to all ranks after all reads;
        written into staging by the peers.
    """

    arch: str
    rank: int = 0
    unroll: int = 1
    threads: int = 512
    form: Form = "read"

    @property
    def defines(self) -> tuple[str, ...]:
        """What the text of a kernel leaves open."""
        numbers = {
            "RANK": self.rank, "UNROLL": self.unroll, "THREADS": self.threads,
            "DEFER": int(self.form == "turns"), "PUSH": int(self.form == "push"),
        }  # fmt: skip
        return tuple(f"-D{name}={number}" for name, number in numbers.items())

    @property
    def options(self) -> tuple[str, ...]:
        """NVRTC's command line."""
        if not _NAME.match(self.arch) or self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ToolError(
                f"no GPU target {self.arch!r} with {self.threads} threads",
                rule="an architecture is sm_ and a number; a CTA has 32 to 1024 threads in whole warps",
                where="the CUDA compiler",
                hint='Variant("sm_90")',
            )
        return (f"--gpu-architecture={self.arch}", *OPTIONS, *self.defines)


def compile_kernel(source: CudaSource, variant: Variant, *, cache: Path | None = None) -> bytes:
    """Machine code (a cubin) of a printed kernel, from the cache where it was compiled before.

    Parameters
    ----------
    source : CudaSource
    variant : Variant
    cache : Path or None
        Folder of compiled kernels; None: `cache_folder`.

    Raises
    ------
    ToolError
        No NVRTC is installed.
    CodegenError
        The compiler refused the text; its first errors are in the message.
    """
    return compile_text(source.name, source.text, variant, what=f"the kernel of {source.kernel.name!r}", cache=cache)


def compile_text(name: str, text: str, variant: Variant, *, what: str, cache: Path | None = None) -> bytes:
    """As `compile_kernel`, for text of any origin; `what` says in an error what it is."""
    version, compiler = find_nvrtc()
    folder = cache_folder() if cache is None else cache
    key = "\0".join((without_comments(text), *variant.options, version))
    digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    stored = folder / f"{name}-{digest}.cubin"
    if stored.is_file():
        return stored.read_bytes()
    code, log = compiler(text, variant.options)
    if code is None:
        raise _refused(f"{what} ({name})", variant, log)
    _keep(stored, code)
    return code


def cache_folder() -> Path:
    """Where compiled kernels are kept: ``coconet_lab/cuda`` in the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "coconet_lab" / "cuda"


def _keep(path: Path, code: bytes) -> None:
    """Written aside and renamed: ranks compile the same kernel at once. A cache that cannot be written is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return


def _refused(what: str, variant: Variant, log: str) -> CodegenError:
    errors = [line.strip() for line in log.splitlines() if "error" in line] or log.splitlines()[:3]
    is_unknown = "--gpu-architecture" in log  # a GPU that this NVRTC does not know, yet or any more
    return CodegenError(
        f"the CUDA compiler refused {what} for {variant.arch}: " + "; ".join(errors[:3]),
        rule="generated kernels compile with NVRTC for sm_80 and later",
        where=f"NVRTC with {' '.join(variant.options)}",
        hint="a newer nvidia-cuda-nvrtc, or backend='cpu'"
        if is_unknown
        else 's.code("cuda") shows the text; s.code("cpu") runs without a GPU',
    )


Compiler = Callable[[str, tuple[str, ...]], tuple[bytes | None, str]]


def find_nvrtc() -> tuple[str, Compiler]:
    """The compiler's name and version, and the compiler; CuPy's where there is CuPy.

    Raises
    ------
    ToolError
        Neither CuPy nor cuda-bindings has one.
    """
    for module, make in (("cupy", _through_cupy), ("cuda.bindings", _through_bindings)):
        try:
            if importlib.util.find_spec(module) is not None:
                return make()
        except (ImportError, RuntimeError):
            continue
    raise ToolError(
        "no NVRTC, the CUDA run-time compiler, was found",
        rule="CUDA kernels are compiled by NVRTC, through CuPy or cuda-bindings",
        where="the CUDA compiler",
        hint="pip install 'coconet-lab[gpu]', or cuda-bindings and nvidia-cuda-nvrtc",
    )


def _through_cupy() -> tuple[str, Compiler]:
    from cupy.cuda import nvrtc

    version = ".".join(map(str, nvrtc.getVersion()))

    def run(text: str, options: tuple[str, ...]) -> tuple[bytes | None, str]:
        program = nvrtc.createProgram(text, "kernel.cu", (), ())
        try:
            nvrtc.compileProgram(program, options)
            return bytes(nvrtc.getCUBIN(program)), ""
        except nvrtc.NVRTCError:
            return None, str(nvrtc.getProgramLog(program))
        finally:
            nvrtc.destroyProgram(program)

    return f"nvrtc {version}", run


def _through_bindings() -> tuple[str, Compiler]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()

    def run(text: str, options: tuple[str, ...]) -> tuple[bytes | None, str]:
        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                return None, _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
            return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), ""
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    return f"nvrtc {major}.{minor}", run


def _text(size: Callable[[Any], Any], get: Callable[[Any, bytes], Any], program: Any) -> bytes:
    count = int(size(program)[1])
    buffer = bytes(count)
    get(program, buffer)
    return buffer
