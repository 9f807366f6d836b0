"""What a schedule costs a rank, counted from its Plan: the strip under the graph, and what a move would change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coconet_lab.errors import CoconetError
from coconet_lab.ir.program import Program
from coconet_lab.run.results import duration
from coconet_lab.viz.explorer.state import Measured
from coconet_lab.viz.scene import bytes_text

Tone = Literal["same", "better", "worse"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes and counts of one run, per rank."""

    wire_bytes: int
    memory_bytes: int
    held_bytes: int
    launches: int
    collectives: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the strip: what it is, its value, how it compares, and whether that is good."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "same"
    tooltip: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One cost that a move changes: ``memory``, ``+24 MiB``, worse."""

    label: str
    text: str
    tone: Tone


FIELDS = (
    ("wire", "wire_bytes", "on the wire", "Bytes a rank sends to the others"),
    ("memory", "memory_bytes", "through memory", "Bytes a rank reads from and writes to its own memory"),
    ("held", "held_bytes", "held at once", "Memory a rank reserves for a run: all its buffers"),
    ("launches", "launches", "launches", "Kernels and library calls a rank starts"),
)


def costs_of(program: Program) -> Costs | None:
    """Costs of a program's Plan; None where it has no Plan (an operation without a kernel form)."""
    from coconet_lab.kernels.lower import lower

    try:
        ledger = lower(program).ledger()
    except CoconetError:
        return None
    # What goes to another group is among the bytes on the wire.
    return Costs(ledger.wire_bytes, ledger.memory_bytes, ledger.held_bytes, ledger.launches, ledger.collectives)


def changes(before: Costs | None, after: Costs | None) -> tuple[Change, ...]:
    """Only the costs that change, in the strip's order.

    Examples
    --------
    >>> changes(Costs(8, 64 << 20, 0, 5, 1), Costs(8, 32 << 20, 0, 4, 1))[0]
    Change(label='memory', text='−32 MiB', tone='better')
    """
    if before is None or after is None:
        return ()
    found = []
    for label, name, _, _ in FIELDS:
        old, new = getattr(before, name), getattr(after, name)
        if new != old:
            amount = str(abs(new - old)) if name == "launches" else bytes_text(abs(new - old))
            found.append(Change(label, ("+" if new > old else "−") + amount, "worse" if new > old else "better"))
    return tuple(found)


def unchanged_text(found: Iterable[Change]) -> str:
    """What a card says of costs that stay: all of them, or nothing."""
    return "" if tuple(found) else "bytes and launches unchanged"


def strip(
    costs: Costs | None, start: Costs | None, measured: Measured | None, start_measured: Measured | None, ranks: int
) -> tuple[Cell, ...]:
    """The cost strip: wire, memory, held, launches, measured, predicted; each against the start."""
    cells = []
    for _, name, label, tooltip in FIELDS:
        if costs is None:
            cells.append(Cell(label, "–", tooltip="no kernel form for an operation here"))
            continue
        value = getattr(costs, name)
        text = str(value) if name == "launches" else bytes_text(value)
        note, tone = _against(value, getattr(start, name) if start is not None else value)
        cells.append(Cell(label, text, note, tone, tooltip))
    cells.append(_measured(measured, start_measured, ranks))
    cells.append(Cell("predicted", "–", tooltip="there is no cost model yet"))
    return tuple(cells)


def _against(value: int, start: int) -> tuple[str, Tone]:
    if value == start:
        return "=", "same"
    if not start:
        return "", "worse"
    share = abs(100 * (value - start) / start)
    tone: Tone = "worse" if value > start else "better"
    shown = f"{share:.0f}" if share >= 1 else f"{share:.1g}" if share >= 0.001 else "<0.001"
    return f"{'+' if value > start else '−'}{shown} %", tone


def _measured(found: Measured | None, start: Measured | None, ranks: int) -> Cell:
    label = f"measured, {ranks} ranks"
    if found is None or not found.samples_us:
        return Cell(label, "not run yet")
    spread = f"{duration(found.quantile_us(0.1))} – {duration(found.quantile_us(0.9))}"
    tooltip = f"median of {len(found.samples_us)}, p10 to p90: {spread}; {found.caption or found.backend}"
    if start is None or start is found or not start.samples_us:
        return Cell(label, duration(found.median_us), spread if len(found.samples_us) > 1 else "", "same", tooltip)
    ratio = start.median_us / found.median_us
    tone: Tone = "better" if ratio > 1.005 else "worse" if ratio < 0.995 else "same"
    return Cell(label, duration(found.median_us), f"{ratio:.2f}×", tone, tooltip)
