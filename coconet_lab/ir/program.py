"""A program: an immutable dataflow graph whose operations name each other, with the type of every value."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coconet_lab.arguments import shown
from coconet_lab.errors import ProgramError
from coconet_lab.ir import ops as o
from coconet_lab.ir.rules import infer
from coconet_lab.ir.types import TensorType
from coconet_lab.ir.value import ProgramValue

if TYPE_CHECKING:
    from coconet_lab.ir.ancestry import Ancestry
    from coconet_lab.ir.order import OrderGraph

NameLike = Any  # a name, a Value of the language, or a ProgramValue


@dataclass(frozen=True, slots=True)
class Fusion:
    """Values computed by one kernel: an annotation that changes no value. `named` by the user, or made up."""

    name: str
    members: tuple[str, ...]
    named: bool = False


@dataclass(frozen=True, slots=True)
class Overlap:
    """A chain of values or fused groups that run at once, chunk by chunk: an annotation."""

    name: str
    stages: tuple[str, ...]
    named: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a dropped name went: the step that dropped it, and what carries the value now."""

    step: str
    now: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """An immutable dataflow graph over the ranks of one or more process groups.

    Parameters
    ----------
    name : str
    ops : mapping of name to Op
        In program order: operands come before their readers. Inputs are operations too.
    types : mapping of name to TensorType
    outputs : tuple of names
    ranks, groups : int
        `groups` groups of ``ranks // groups`` consecutive ranks each.
    fusions, overlaps
        Annotations: what shares a kernel, what runs at once.
    """

    name: str
    ops: Mapping[str, o.Op]
    types: Mapping[str, TensorType]
    outputs: tuple[str, ...]
    ranks: int
    groups: int = 1
    fusions: tuple[Fusion, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    moved: Mapping[str, Moved] = field(default_factory=dict, repr=False)
    handles: Mapping[object, str] = field(default_factory=dict, repr=False)
    rebuild: Callable[..., Program] | None = field(default=None, repr=False)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def group_ranks(self) -> int:
        """Ranks of one group: what layouts, blocks and collectives count."""
        return self.ranks // self.groups

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in the order they were listed; the implicit seed comes last."""
        return tuple(name for name, op in self.ops.items() if isinstance(op, o.Input))

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """For every name, the operations that read it, in program order."""
        found: dict[str, list[str]] = {name: [] for name in self.ops}
        for name, op in self.ops.items():
            for source in dict.fromkeys(op.sources):
                found[source].append(name)
        return MappingProxyType({name: tuple(readers) for name, readers in found.items()})

    @cached_property
    def position(self) -> Mapping[str, int]:
        """For every name, its place in program order."""
        return {name: at for at, name in enumerate(self.ops)}

    @cached_property
    def fusion_of(self) -> Mapping[str, Fusion]:
        """For every member of a fused group, the group."""
        return {member: fusion for fusion in self.fusions for member in fusion.members}

    @cached_property
    def fusion_named(self) -> Mapping[str, Fusion]:
        """Fused groups by name."""
        return {fusion.name: fusion for fusion in self.fusions}

    @cached_property
    def overlap_of(self) -> Mapping[str, Overlap]:
        """For every value that is, or is in, a stage of an overlap: the overlap."""
        found: dict[str, Overlap] = {}
        for overlap in self.overlaps:
            for stage in overlap.stages:
                fusion = self.fusion_named.get(stage)
                found.update(dict.fromkeys(fusion.members if fusion else (stage,), overlap))
        return found

    @cached_property
    def order(self) -> OrderGraph:
        """The order graph: data edges, and from every reader of a tensor to the update of it."""
        from coconet_lab.ir.order import order_graph

        return order_graph(self)

    @cached_property
    def ancestry(self) -> Ancestry:
        """What every value depends on."""
        from coconet_lab.ir.ancestry import ancestry

        return ancestry(self)

    @cached_property
    def unit_of(self) -> Mapping[str, str]:
        """For every value in an overlap or fused group, the name of what runs as one (the overlap, else the group)."""
        units = {member: fusion.name for member, fusion in self.fusion_of.items()}
        units.update({member: overlap.name for member, overlap in self.overlap_of.items()})
        return units

    @cached_property
    def unit_position(self) -> Mapping[str, int]:
        """Place of every value, fused group or overlap in an order where groups and overlaps run as one."""
        from coconet_lab.ir.order import unit_positions

        return unit_positions(self)

    @cached_property
    def output_set(self) -> frozenset[str]:
        """The outputs, for looking up."""
        return frozenset(self.outputs)

    def has_name(self, name: str) -> bool:
        """Whether a value, fused group or overlap is called `name`."""
        return name in self.ops or name in self.fusion_named or any(name == v.name for v in self.overlaps)

    def names_taken(self) -> set[str]:
        """Every name of a value, fused group or overlap."""
        return {*self.ops, *self.fusion_named, *(overlap.name for overlap in self.overlaps)}

    def resolve(self, item: NameLike) -> str:
        """The name of a value, given by name or as the Value itself; unknown names say where the value went."""
        name = self._name_of(item)
        if name in self.ops:
            return name
        raise self.unknown(name)

    def resolve_any(self, item: NameLike) -> str:
        """As `resolve`, for the name of a value, a fused group or an overlap."""
        name = self._name_of(item)
        return name if name in self.fusion_named or name in {v.name for v in self.overlaps} else self.resolve(name)

    def _name_of(self, item: NameLike) -> str:
        if isinstance(item, str):
            return item
        token = getattr(item, "token", None)
        found = self.handles.get(token) or getattr(item, "name", None)
        if isinstance(found, str):
            return found
        raise ProgramError(
            f"{shown(item)} is no value of program {self.name!r}",
            rule="a value is named by a string or by the Value itself",
            where=f"program {self.name!r}",
            hint=f"one of {', '.join(list(self.ops)[:6])}",
        )

    def unknown(self, name: str) -> ProgramError:
        """The error for a name this program does not have."""
        moved = self.moved.get(name)
        if moved is not None:
            rule = f"{moved.step} dropped it"
            hint = " or ".join(repr(now) for now in moved.now) or "the schedule before that step"
        else:
            rule = "every name is a value or group of the program"
            close = difflib.get_close_matches(name, self.names_taken(), n=3, cutoff=0.5)
            hint = ", ".join(map(repr, close or list(self.ops)[:6]))
        return ProgramError(
            f"program {self.name!r} has no value {name!r}", rule=rule, where=f"program {self.name!r}", hint=hint
        )

    def __contains__(self, item: NameLike) -> bool:
        return self._name_of(item) in self.ops

    def __getitem__(self, item: NameLike) -> ProgramValue:
        name = self.resolve(item)
        return ProgramValue(name, self.ops[name], self.types[name], self.group_ranks)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.ops)

    # -- equality ------------------------------------------------------------------------------------------------

    def key(self) -> str:
        """A text that two programs share iff they are equal but for made-up names."""
        from coconet_lab.ir.key import program_key

        return program_key(self)

    def _parts(self) -> tuple[Any, ...]:
        return (self.name, self.outputs, self.ranks, self.groups, self.fusions, self.overlaps, dict(self.ops))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Program) and self._parts() == other._parts())

    def __hash__(self) -> int:
        return hash((self.name, self.outputs, self.ranks, tuple(self.ops)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Handles are identities of this process; caches are rebuilt.
        return Program, (
            self.name, dict(self.ops), dict(self.types), self.outputs, self.ranks, self.groups,
            self.fusions, self.overlaps, dict(self.moved),
        )  # fmt: skip

    # -- changing ------------------------------------------------------------------------------------------------

    def edit(
        self,
        ops: Mapping[str, o.Op] | None = None,
        *,
        touched: Iterable[str] = (),
        inferred: Mapping[str, TensorType] | None = None,
        outputs: tuple[str, ...] | None = None,
        fusions: tuple[Fusion, ...] | None = None,
        overlaps: tuple[Overlap, ...] | None = None,
        moved: Mapping[str, Moved] | None = None,
    ) -> Program:
        """A new program with other operations or annotations, re-typed where an operand's type changed, verified.

        Parameters
        ----------
        ops : mapping or None
            All operations of the new program, operands before readers; None keeps them.
        touched : names
            Operations that are new or differ from this program's.
        inferred : mapping or None
            Types of the new program that its step has inferred already.
        moved : mapping
            Names this edit drops, and what carries their values now.

        Raises
        ------
        LayoutError, ProgramError
            The result is no program; this one is untouched.
        """
        from coconet_lab.ir.verify import verify

        types = self.types if ops is None else retyped(ops, self.types, set(touched), self.group_ranks, inferred)
        result = replace(
            self,
            ops=self.ops if ops is None else ops,
            types=types,
            outputs=self.outputs if outputs is None else outputs,
            fusions=self.fusions if fusions is None else fusions,
            overlaps=self.overlaps if overlaps is None else overlaps,
            moved={**self.moved, **moved} if moved else self.moved,
            rebuild=None,
        )
        verify(result)
        return result

    def __call__(self, **sizes: int) -> Program:
        """The program of a decorated function, written again with other sizes: ``prog(B=16)``."""
        if self.rebuild is None:
            raise ProgramError(
                f"program {self.name!r} was not written by a function of sizes",
                rule="@cl.program on a function with keyword-only sizes makes a program that can be rebuilt",
                hint="def prog(x: cl.spec(cl.FP32, ('B',), cl.Local), *, B=8): …",
            )
        return self.rebuild(**sizes)

    def with_ranks(self, ranks: int, groups: int | None = None) -> Program:
        """The same program on another number of ranks, checked again.

        Raises
        ------
        LayoutError
            A sliced dim that does not divide among the new ranks.
        """
        from coconet_lab.ir.verify import check_ranks, verify

        ranks, groups = check_ranks(self.name, ranks, self.groups if groups is None else groups)
        types = retyped(self.ops, {}, set(self.ops), ranks // groups)
        result = replace(self, ranks=ranks, groups=groups, types=types)
        verify(result)
        return result

    def to_networkx(self) -> Any:
        """The dataflow graph as a networkx.DiGraph: nodes carry `op` and `type`, edges run from operand to reader."""
        import networkx as nx

        graph = nx.DiGraph(name=self.name)
        for name, op in self.ops.items():
            graph.add_node(name, op=op, type=self.types[name])
            graph.add_edges_from((source, name) for source in op.sources)
        return graph

    def __repr__(self) -> str:
        from coconet_lab.ir.text import program_text

        return program_text(self)


def retyped(
    ops: Mapping[str, o.Op],
    known: Mapping[str, TensorType],
    touched: set[str],
    ranks: int,
    inferred: Mapping[str, TensorType] | None = None,
) -> dict[str, TensorType]:
    """Types of `ops`: as `inferred` already, else inferred for `touched` ones and where an operand's type changed."""
    types: dict[str, TensorType] = {}
    dirty: set[str] = set()
    given = inferred or {}
    for name, op in ops.items():
        old = known.get(name)
        if name in given:
            types[name] = given[name]
            if given[name] != old:
                dirty.add(name)
            continue
        if old is not None and name not in touched and (not dirty or dirty.isdisjoint(op.operands)):
            types[name] = old
            continue
        new = _infer_in(ops, op, types, ranks)
        types[name] = new
        if new != old:
            dirty.add(name)
    return types


def _infer_in(ops: Mapping[str, o.Op], op: o.Op, types: Mapping[str, TensorType], ranks: int) -> TensorType:
    from coconet_lab.errors import CoconetError

    try:
        return infer(op, [types[x] if isinstance(x, str) else None for x in op.operands], ranks)
    except KeyError as missing:
        raise ProgramError(
            f"{op.name!r} reads {missing.args[0]!r}, which does not come before it",
            rule="a program has no cycle, and every operand is one of its values",
            hint="build the program from its outputs with cl.program",
        ) from None
    except CoconetError as error:
        if not error.where:
            error.where = f"{op.name!r} = {op.kind}" + (f" at {op.site}" if op.site else "")
            error.args = (error.found, error.rule, error.where, error.hint)
        raise
