"""The text of kernels for people: exactly what runs, and which value of the program each line belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from coconet_lab.arguments import shown
from coconet_lab.errors import CodegenError
from coconet_lab.kernels.cuda_printer import prelude, print_kernel
from coconet_lab.kernels.kernel import Kernel
from coconet_lab.kernels.numba_printer import numba_lines, print_numba
from coconet_lab.kernels.plan import Launch, Plan

_REGISTER = re.compile(r"\b\w+ r(\d+) = ")
_BLANK = "\n\n"


def plan_source(plan: Plan, target: str, sites: Mapping[str, str] | None = None) -> str:
    """The text of every kernel of a Plan, in the order they are first launched.

    Parameters
    ----------
    plan : Plan
    target : "cpu" or "cuda"
    sites : mapping of value name to text
        Where the user wrote each value; the lines that a kernel came from stand above it.

    Raises
    ------
    CodegenError
        An unknown target, or an operation with no form there.
    """
    is_cpu = _target(target) == "cpu"
    written = _written(plan, sites or {})
    if is_cpu:
        return _BLANK.join(_head("#", [_title(k), *lines]) + print_numba(k) for k, lines in written.items())
    if not written:
        return ""
    bodies = _BLANK.join(_head("//", lines) + print_kernel(k).body for k, lines in written.items())
    return f"#define RANKS {plan.placement.local}\n{prelude()}{bodies}"


def _head(mark: str, lines: Sequence[str]) -> str:
    return "".join(f"{mark} {line}\n" for line in lines)


def _written(plan: Plan, sites: Mapping[str, str]) -> dict[Kernel, list[str]]:
    """For every kernel, the user's lines it computes, and what of it each is: ``layer.py:3: 'total_rs', 'total'``."""
    found: dict[Kernel, dict[str, dict[str, None]]] = {kernel: {} for kernel in plan.kernels()}
    for launch in (entry for entry in plan.entries if isinstance(entry, Launch)):
        for name in filter(sites.__contains__, launch.ops):
            found[launch.kernel].setdefault(sites[name], {})[ascii(name)] = None
    # As ASCII, so that no file's name ends a comment; the number of a line ends it, so no backslash does.
    return {
        kernel: [f"{ascii(site)[1:-1]}: {', '.join(names)}" for site, names in lines.items()]
        for kernel, lines in found.items()
    }


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
