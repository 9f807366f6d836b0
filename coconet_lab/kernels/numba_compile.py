"""Printed CPU kernels as functions: compiled once for all ranks, kept on disk by the hash of what they are made of.

A kernel's file is written under a name that contains the hash of its code, of the runtime it calls and of Numba's
version, and put in place whole; beside it Numba keeps the machine code for each processor. Ranks that compile at once
do the same work twice at worst.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coconet_lab.errors import CodegenError, ToolError
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_printer import print_numba, text_name

Compiled = Callable[..., int]
CACHE_VARIABLE = "COCONET_LAB_CACHE"
# Nobody calls kernels from C: the wrapper for that is a twelfth of the time that compiling takes.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

_lock = threading.Lock()  # threads of one process would compile the same text at once


def compile_numba(kernel: Kernel) -> Compiled:
    """The machine code of a kernel, from this process, from disk or compiled now.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    callable
        As `numba_printer` describes; it runs without Python's lock.
    """
    text = print_numba(kernel)
    with _lock:
        return _compiled(text_name(text), text, str(cache_directory()))


def compile_file(path: Path, name: str) -> Compiled:
    """The machine code of a kernel that was written to a file, as the file is now.

    Parameters
    ----------
    path : Path
    name : str
        The function's.

    Raises
    ------
    ToolError
        There is no such file.
    """
    with _lock:
        return _machine_code(_imported(path, name), on_disk=os.access(path.parent, os.W_OK))


def compile_share(kernels: Sequence[Kernel], rank: int, ranks: int) -> None:
    """Compile this rank's share of a Plan's kernels to disk; after a barrier every rank finds all of them there."""
    for kernel in kernels[rank::ranks]:
        compile_numba(kernel)


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``COCONET_LAB_CACHE``, the user's cache, or a private temporary folder.

    Raises
    ------
    ToolError
        None of them can be written to by this user alone.
    """
    named = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    private = os.path.join(tempfile.gettempdir(), f"coconet_lab-{os.getuid()}")
    for path in [named] if named else [os.path.join(home, "coconet_lab", "kernels"), private]:
        with contextlib.suppress(OSError):
            os.makedirs(path, mode=0o700, exist_ok=True)
            if os.access(path, os.W_OK | os.X_OK) and os.stat(path).st_uid == os.getuid():
                return Path(path)
    raise ToolError(
        "no folder for compiled kernels can be written to",
        rule="kernels are kept in a folder of the user's own",
        where="compile_numba",
        hint=f"{CACHE_VARIABLE}=/some/folder",
    )


@functools.lru_cache(maxsize=1024)
def _compiled(name: str, text: str, directory: str) -> Compiled:
    from numba.core.errors import NumbaError

    path = Path(directory) / f"{name}_{_runtime_digest()}.py"
    function = _loaded(path, name, text)
    try:
        return _machine_code(function, on_disk=True)
    except NumbaError as error:
        raise CodegenError(
            f"kernel {name} does not compile: {str(error).splitlines()[0]}",
            rule="every printed kernel compiles",
            where=path.name,
            hint='plan.code("cpu")',
        ) from error
    except Exception:  # a full disk, a file cut short: what is kept there is a convenience
        return _machine_code(function, on_disk=False)


def _loaded(path: Path, name: str, text: str) -> Any:
    """The Python function of a printed kernel, from its file."""
    _place(path, text)
    return _imported(path, name)


def _imported(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolError(f"{path.name} cannot be loaded", where="compile_numba", hint=f"remove {path.name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where Numba looks for it when it loads machine code from disk
    spec.loader.exec_module(module)
    return getattr(module, name)


def _machine_code(function: Any, on_disk: bool) -> Compiled:
    """Compiled for the one signature that kernels have."""
    from numba import float64, int64, njit

    table, numbers = int64[:, ::1], int64[::1]
    arguments = (table, numbers, float64[::1], numbers, *[int64] * 4, numbers, *[int64] * 4)
    compiled: Compiled = njit(int64(*arguments), cache=on_disk, **_OPTIONS)(function)
    return compiled


def _place(path: Path, text: str) -> None:
    """Put `text` at `path` whole. A file that is there already stays: Numba trusts its date."""
    with contextlib.suppress(OSError):
        # Comments may differ, they name another program's values; the code may not.
        if _code(path.read_text(encoding="utf-8")) == _code(text):
            return
    descriptor, made = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(made, path)


def _code(text: str) -> list[str]:
    return [line.split("# ")[0].rstrip() for line in text.splitlines()]


@functools.cache
def _runtime_digest() -> str:
    """What a kernel's machine code depends on beside its own text."""
    import llvmlite
    import numba

    from coconet_lab.kernels import numba_math, numba_runtime, signals

    digest = hashlib.blake2b(f"{numba.__version__} {llvmlite.__version__} {_OPTIONS}".encode(), digest_size=6)
    for module in (numba_math, numba_runtime, signals):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()
