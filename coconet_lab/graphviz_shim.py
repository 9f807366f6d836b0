"""Which Graphviz draws: the machine's own `dot`, or the libraries in the pygraphviz wheel behind `coconet-dot`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path

_SHIM = "coconet-dot"


def find_layout_engine() -> str | None:
    """The program that lays graphs out: the path of a real `dot`, else that of `coconet-dot`, else None.

    Returns
    -------
    str or None
        None where there is neither: the caller then draws without Graphviz.

    Examples
    --------
    >>> engine = find_layout_engine()
    >>> engine is None or "dot" in engine
    True
    """
    return shutil.which("dot") or _beside_python("dot") or _shim_path()


def ensure_dot() -> str | None:
    """Make ``graphviz.Source.pipe`` and ``render`` work on this machine; calling it again is harmless.

    A real `dot` on PATH is left alone, so that users of conda or of a system Graphviz get theirs.

    Returns
    -------
    str or None
        What `find_layout_engine` found; None means that the `graphviz` package cannot draw here.

    Examples
    --------
    >>> import graphviz
    >>> if ensure_dot():
    ...     assert "<svg" in graphviz.Source("digraph { a -> b }").pipe(format="svg", encoding="utf-8")
    """
    from graphviz.backend import dot_command

    engine = find_layout_engine()
    # The package has no public setting for its program; this module attribute is what its commands are built from.
    dot_command.DOT_BINARY = Path("dot" if engine is None or shutil.which("dot") else engine)
    return engine


def _shim_path() -> str | None:
    if importlib.util.find_spec("pygraphviz") is None:
        return None
    return _beside_python(_SHIM) or shutil.which(_SHIM)


def _beside_python(name: str) -> str | None:
    """A program of this Python's own environment: a kernel that was started by its path has no such PATH."""
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    return next(filter(None, (shutil.which(name, path=folder) for folder in folders)), None)
