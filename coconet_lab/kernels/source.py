"""The text of kernels for people: exactly what runs, and which value of the program each line belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from coconet_lab.arguments import shown
from coconet_lab.errors import CodegenError
from coconet_lab.kernels.cuda_printer import prelude, print_kernel
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_printer import numba_lines, print_numba
from coconet_lab.kernels.plan import Plan

_REGISTER = re.compile(r"\b\w+ r(\d+) = ")
_BLANK = "\n\n"


def plan_source(plan: Plan, target: str) -> str:
    """The text of every kernel of a Plan, in the order they are first launched.

    Parameters
    ----------
    plan : Plan
    target : "cpu" or "cuda"

    Raises
    ------
    CodegenError
        An unknown target, or an operation with no form there.
    """
    kernels = plan.kernels()
    if _target(target) == "cpu":
        return _BLANK.join(f"# {_title(kernel)}\n{print_numba(kernel)}" for kernel in kernels)
    if not kernels:
        return ""
    bodies = _BLANK.join(print_kernel(kernel).body for kernel in kernels)
    return f"#define RANKS {plan.placement.local}\n{prelude()}{bodies}"


def kernel_source(kernel: Kernel, target: str) -> str:
    """The text of one kernel for ``"cpu"`` (Python for Numba) or ``"cuda"`` (CUDA C++ without the common prelude).

    Raises
    ------
    CodegenError
        An unknown target, or an operation with no form there.
    """
    return print_numba(kernel) if _target(target) == "cpu" else print_kernel(kernel).body


def line_origins(kernel: Kernel, target: str) -> list[str]:
    """For every line of `kernel_source`, the program's value it computes, loads or stores; "" for none."""
    if _target(target) == "cpu":
        return [line.origin for line in numba_lines(kernel)]
    source = print_kernel(kernel)
    return [_cuda_origin(line, source.kernel.origin) for line in source.body.splitlines()]


def _cuda_origin(line: str, origins: Sequence[str]) -> str:
    found = _REGISTER.search(line)
    register = int(found[1]) if found else len(origins)
    return origins[register] if register < len(origins) else ""


def _title(kernel: Kernel) -> str:
    return f"kernel of {kernel.name!a}"


def _target(target: str) -> str:
    if not isinstance(target, str) or target not in ("cpu", "cuda"):
        raise CodegenError(
            f"no code for target {shown(target)}",
            rule="kernels are printed as Python for Numba and as CUDA C++",
            where="code",
            hint='code("cpu"), code("cuda")',
        )
    return target
