"""Generated kernels for the page: their lines, which operation each belongs to, and their colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coconet_lab.kernels.plan import Launch, Plan
from coconet_lab.viz.explorer.html import tag, text


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel's text. `origins` has, for every line, the value it computes, or an empty string."""

    name: str
    ops: tuple[str, ...]
    launches: int
    lines: tuple[str, ...]
    origins: tuple[str, ...]


def kernel_texts(plan: Plan, target: str) -> list[KernelText]:
    """Every distinct kernel of a plan, in the order of their first launch.

    Raises
    ------
    CodegenError
        An operation with no form on `target`.
    """
    found = []
    for kernel in plan.kernels():
        entries = [entry for entry in plan.entries if isinstance(entry, Launch) and entry.kernel is kernel]
        entries = entries or [entry for entry in plan.entries if isinstance(entry, Launch) and entry.kernel == kernel]
        ops = tuple(dict.fromkeys(name for entry in entries for name in entry.ops))
        lines, origins = _cuda(kernel, ops) if target == "cuda" else _cpu(kernel)
        found.append(KernelText(entries[0].name, ops, len(entries), tuple(lines), tuple(origins)))
    return found


def _cpu(kernel: object) -> tuple[list[str], list[str]]:
    from coconet_lab.kernels.numba_printer import numba_lines

    printed = numba_lines(kernel)  # type: ignore[arg-type]
    return [line.shown for line in printed], [line.origin for line in printed]


def _cuda(kernel: object, ops: Sequence[str]) -> tuple[list[str], list[str]]:
    """CUDA lines; one belongs to the operation that its comment names."""
    from coconet_lab.kernels.cuda_phase import shown
    from coconet_lab.kernels.cuda_printer import print_kernel

    lines = print_kernel(kernel).body.rstrip("\n").split("\n")  # type: ignore[arg-type]
    names = {shown(name): name for name in ops}
    comments = ("", *(line.partition("//")[2].strip() for line in lines[1:]))  # the first names the kernel
    return lines, [names.get(comment, "") for comment in comments]


def kernel_of(found: Sequence[KernelText], selected: Sequence[str]) -> int:
    """The kernel that computes the selection, or the largest."""
    for name in selected:
        for at, kernel in enumerate(found):
            if name in kernel.ops:
                return at
    return max(range(len(found)), key=lambda at: len(found[at].ops), default=0)


def highlighted(kernel: KernelText, target: str, marked: Sequence[str]) -> str:
    """The kernel's lines as HTML: numbered, coloured, those of `marked` operations on a coloured ground."""
    chosen = set(marked)
    rows = []
    for number, (line, origin) in enumerate(zip(_coloured(kernel.lines, target), kernel.origins, strict=True), 1):
        classes = "cl-line marked" if origin and origin in chosen else "cl-line"
        rows.append(tag("span", f"{tag('i', str(number))}{line}\n", cls=classes, title=origin or None))
    return "".join(rows)


def _coloured(lines: Sequence[str], target: str) -> list[str]:
    """Lines with a span around each keyword, comment, number and text."""
    from pygments.lexers import CudaLexer, PythonLexer  # type: ignore[import-untyped]
    from pygments.token import Comment, Keyword, Literal, Name, Number  # type: ignore[import-untyped]

    kinds = ((Comment, "c"), (Keyword, "k"), (Number, "m"), (Literal, "s"), (Name.Builtin, "b"))
    done, current = [], ""
    lexer = (CudaLexer if target == "cuda" else PythonLexer)(stripnl=False, ensurenl=False)
    for kind, piece in lexer.get_tokens("\n".join(lines)):
        cls = next((name for parent, name in kinds if kind in parent), None)
        for at, part in enumerate(piece.split("\n")):
            if at:
                done.append(current)
                current = ""
            if part:
                current += tag("span", text(part), cls=f"tok-{cls}") if cls else text(part)
    done.append(current)
    return done
