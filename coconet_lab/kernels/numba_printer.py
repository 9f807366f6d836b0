"""Kernels as Python for Numba: readable text that compiles to vector code without a compiler on the user's machine.

A printed kernel is called as ``kernel(pointers, extents, scalars, integers, rank, lo, hi, turn, pads, epoch,
deadline_ns, opens, closes)`` and returns 0, or k + 1 when rank k of the group did not come to a barrier in time:

pointers : int64[tensors + accumulators, ranks]
    ``[t, k]``: address of tensor t on rank k of the group that holds it (for a `StoreTo` the receiving group: the
    partner of rank k is its rank k). Where no peer is read only column `rank` counts. Then one row an accumulator:
    ``3 · accumulator_elements`` numbers of 8 bytes (two turns of partials, the results), symmetric where it crosses.
extents : int64[:]
    Of the space; for a list also the borders of its blocks, its tensors' starts and end, and for every scattered buffer
    what each tensor's flat indices are shifted by (`run_time_extents`).
scalars, integers : float64[:], int64[:]
    The scalar arguments of floating-point and of integer type, each in the order of `Kernel.scalars`.
rank : int
    Within the group; where the group spans hosts, of the rank whose block is walked: modulo `Space.ranks` it is this
    rank's number on its host, and `pointers` and `pads` are of the ranks of one host.
lo, hi : int
    The chunk, where the space has a chunk dim.
turn : 0 or 1
    Changes from launch to launch: a slow rank may still read the partials of the one before.
pads, epoch, deadline_ns : int64[:], int, int
    As `signals.barrier`; a launch uses epochs ``epoch + 1`` to ``epoch + barriers(kernel)``.
opens, closes : 0 or 1
    Whether to begin and to end with a barrier.
"""

from __future__ import annotations

import hashlib
import re

from coconet_lab.kernels.kernel import Accumulator, Kernel
from coconet_lab.kernels.numba_phase import PhasePrinter
from coconet_lab.kernels.numba_text import Frame, Line, Lines
from coconet_lab.kernels.numba_walk import walk

ARGUMENTS = "pointers, extents, scalars, integers, rank, lo, hi, turn, pads, epoch, deadline_ns, opens, closes"
_NAME = "k_name"
_MATH = re.compile(r"(sqrt|exp|log|tanh|erf|power)_f(32|64)")
_TYPES = {"f32": "np.float32", "f64": "np.float64", "i32": "np.int32", "i64": "np.int64", "u32": "np.uint32"}
_CALLED = re.compile(r"(?<![\w.])([a-z_]\w*)\(")


def print_numba(kernel: Kernel) -> str:
    """The Python text of a kernel, as it is compiled and shown.

    Raises
    ------
    CodegenError
        An operation with no form on the CPU.
    """
    return "\n".join(line.shown for line in numba_lines(kernel)) + "\n"


def numba_lines(kernel: Kernel) -> list[Line]:
    """The lines of `print_numba`, each with the value of the program it belongs to."""
    lines = Lines()
    frame = Frame(kernel, walk(kernel), lines)
    lines.add(f"def {_NAME}({ARGUMENTS}):", kernel.name)
    with lines.block():
        frame.print_prologue()
        _meet(lines, "opens", "epoch + 1", kernel.space.ranks, "until every rank's buffers may be read and written")
        phases = PhasePrinter(frame)
        crossings = 0
        for number, phase in enumerate(kernel.phases):
            if len(kernel.phases) > 1:
                lines.note(f"phase {number + 1} of {len(kernel.phases)}")
            phases.print(phase)
            used = frame.accumulated(phase)
            if any(kernel.accumulators[a].crosses for a in used):
                crossings += 1
                _meet(
                    lines, "", f"epoch + {1 + crossings}", kernel.space.ranks, "until every rank's partials are there"
                )
            for accumulator in used:
                _finish(frame, accumulator)
        _meet(lines, "closes", f"epoch + {barriers(kernel)}", kernel.space.ranks, "until every rank has stored")
        lines.add("return 0")
    return [*_header(kernel, lines.lines), *_named(lines.lines)]


def barriers(kernel: Kernel) -> int:
    """Barrier numbers a launch uses: to open, one a phase whose reductions cross the ranks, to close."""
    crossing = (
        any(kernel.accumulators[a].crosses for a in Frame.accumulated(phase)) for phase in kernel.phases
    )  # a barrier of the phase, not of each reduction
    return 2 + sum(crossing)


def kernel_name(kernel: Kernel) -> str:
    """The printed function's name: equal for kernels of equal code, whatever their values are called."""
    return text_name(print_numba(kernel))


def text_name(text: str) -> str:
    """The name of the function in a printed kernel."""
    start = text.index("\ndef ") + len("\ndef ")
    return text[start : text.index("(", start)]


def _named(lines: list[Line]) -> list[Line]:
    digest = hashlib.blake2b("\n".join(line.text for line in lines).encode(), digest_size=8).hexdigest()
    first = lines[0]
    return [Line(first.text.replace(_NAME, f"k_{digest}"), first.comment, first.origin), *lines[1:]]


def _header(kernel: Kernel, lines: list[Line]) -> list[Line]:
    """Imports of what the body calls, nothing else."""
    text = "\n".join(line.text for line in lines)
    called = sorted(set(_CALLED.findall(text)) - {"min", "max", "range", "abs", _NAME, *_TYPES})
    from_math = [name for name in called if _MATH.fullmatch(name)]
    from_signals = [name for name in called if name == "barrier"]
    from_runtime = [name for name in called if name not in from_math and name not in from_signals]
    header = [Line("import numpy as np")]
    for module, names in (
        ("coconet_lab.kernels.numba_math", from_math),
        ("coconet_lab.kernels.numba_runtime", from_runtime),
        ("coconet_lab.kernels.signals", from_signals),
    ):
        if names:
            header.append(Line(f"from {module} import {', '.join(names)}"))
    header.append(Line(""))
    header += [Line(f"{name} = {kind}") for name, kind in _TYPES.items() if f"{name}(" in text]
    return [*header, Line(""), Line("")]


def _meet(lines: Lines, condition: str, epoch: str, ranks: int, until: str) -> None:
    """A barrier, and a way out where a peer does not come."""
    if ranks < 2:
        return
    lines.note(f"wait {until}")
    if condition:
        lines.add(f"if {condition} != 0:")
    with lines.block(bool(condition)):
        lines.add(f"status = barrier(pads, rank, {ranks}, {epoch}, deadline_ns)")
        lines.add("if status != 0:")
        with lines.block():
            lines.add("return status")


def _finish(frame: Frame, at: int) -> None:
    """Combine the ranks' partials of a reduction in rank order, round once, keep the results."""
    kernel, lines = frame.kernel, frame.lines
    accumulator, origin = kernel.accumulators[at], frame.accumulator_origin(at)
    ranks = kernel.space.ranks if accumulator.crosses else 1
    kind = "fp64" if accumulator.dtype.is_float else "int64"
    sources = [f"s{at}_{k}" for k in range(ranks)] if accumulator.crosses else [f"s{at}"]
    lines.add(f"for i in range(z{at}):", origin)
    with lines.block():
        lines.add(f"total = get_{kind}({sources[0]}, i)", origin)
        for source in sources[1:]:
            lines.add(f"total = {_joined(accumulator, 'total', f'get_{kind}({source}, i)')}", origin)
        lines.add(f"put_{kind}(q{at}, i, {frame.finished(at, 'total')})", origin)


def _joined(accumulator: Accumulator, a: str, b: str) -> str:
    if accumulator.fn in ("max", "min"):
        return f"{'maximum' if accumulator.fn == 'max' else 'minimum'}({a}, {b})"
    return f"{a} + {b}"
