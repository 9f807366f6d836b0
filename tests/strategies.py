"""Random programs and random steps for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

import coconet_lab as cl
from coconet_lab.schedule.kinds import KINDS, make_step
from coconet_lab.transforms.moves import legal_moves

UNARY = [
    cl.abs,
    cl.neg,
    cl.relu,
    cl.copy,
    lambda x: x * 2,
    lambda x: 1 - x,
    lambda x: x * (1 / cl.GROUP.size),
    lambda x: cl.cast(cl.cast(x, cl.BF16), x.dtype),
]
BINARY = [cl.add, cl.sub, cl.mul, cl.maximum, lambda a, b: cl.where(a > b, a, b)]
REDUCTIONS = [cl.sum, cl.max, cl.norm, lambda x: cl.mean(x, dim=len(x.shape) - 1)]


def choice(draw, items):
    """One of a list. A strategy made anew for each example takes longer to check than what it draws takes to run."""
    return items[draw(st.integers(0, len(items) - 1))]


def shapes(draw, ranks):
    """One-dimensional of any size, a list of tensors, or with more dims of which one divides among the ranks."""
    kind = choice(draw, ["flat", "flat", "list", "matrix", "matrix"])
    if kind == "flat":
        return (draw(st.integers(1, 9)),)
    if kind == "list":
        return draw(st.lists(st.tuples(st.integers(1, 5)), min_size=1, max_size=3))
    return (ranks * draw(st.integers(1, 2)), draw(st.integers(1, 3)))


def inputs(draw, ranks):
    """Two Local values (one a product of slices, where they are matrices), two Replicated ones, a row, a scalar."""
    shape, dtype = shapes(draw, ranks), choice(draw, [cl.FP32, cl.FP16, cl.FP64])
    found = [cl.tensor(name, dtype, shape, cl.Local, bucket=2) for name in ("g", "h")]
    if len(found[0].shape) == 2 and draw(st.booleans()):
        x = cl.tensor("x", dtype, (shape[0], 2 * ranks), cl.Sliced(1))
        found[0] = cl.matmul(x, cl.tensor("k", dtype, (2 * ranks, shape[1]), cl.Sliced(0)), name="layer")
    found += [cl.tensor(name, dtype, shape, cl.Replicated, bucket=2) for name in ("w", "v")]
    if not found[0].type.pieces:
        found.append(cl.tensor("row", dtype, shape[-1:], cl.Replicated))
    found.append(cl.scalar("lr", dtype, low=-2, high=2))
    return found


@st.composite
def programs(draw, max_ops=8):
    """A program of up to `max_ops` random operations over all layouts, with updates, perhaps sent on to a group."""
    ranks = choice(draw, [1, 2, 3, 4])
    pool = inputs(draw, ranks)
    updatable = [value for value in pool if value.name in ("w", "v")]
    made = [cl.all_reduce(pool[0], name="total")]
    made.append(choice(draw, BINARY)(made[0], choice(draw, pool[2:])))
    pool += made
    for _ in range(draw(st.integers(3, max_ops))):
        value = operation(draw, pool, updatable)
        if value is not None:
            pool.append(value)
            made.append(value)
    outputs = _joined(made[-1], made[1], updatable if draw(st.booleans()) else [])
    more = [choice(draw, made)] if draw(st.booleans()) else []
    groups = 1
    if draw(st.integers(0, 3)) == 3 and outputs[0].type.group is not None:
        groups, outputs[0] = 2, cl.send(outputs[0], to=cl.GROUP + 1, name="sent")
    outputs = list(dict.fromkeys([*outputs, *more]))
    return cl.program("random", outputs=outputs, ranks=ranks * groups, groups=groups)


def _joined(last, first, updatable):
    """Outputs that depend on the AllReduce, so that there is something to transform; an update where one fits."""
    outputs = [last, first]
    try:
        outputs = [cl.add(last, first)]
        if not updatable:
            return outputs
        value = cl.update(updatable[0], outputs[0])
        return [cl.all_gather(value) if value.layout.is_sliced else value]
    except cl.LayoutError:
        return outputs


def operation(draw, pool, updatable):
    """One more value over those of `pool`, or None where the operation drawn does not take the values drawn."""
    kind = choice(draw, ["unary", "binary", "binary", "binary", "collective", "dropout", "reduction", "update"])
    # The newest values most often, so that programs are deep.
    x = pool[-1 - min(choice(draw, [0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6]), len(pool) - 1)]
    try:
        if kind == "unary":
            return choice(draw, UNARY)(x)
        if kind == "binary":
            return choice(draw, BINARY)(x, choice(draw, pool))
        if kind == "collective":
            return _communicated(x, draw(st.integers(0, 2)))
        if kind == "dropout":
            return cl.dropout(x, 0.25)
        if kind == "reduction":
            return choice(draw, REDUCTIONS)(x)
        return _updated(x, pool, updatable)
    except cl.LayoutError:
        return None


def _communicated(x, choice):
    if x.layout.is_local:
        dim = 0
        return (cl.all_reduce(x), cl.all_gather(cl.reduce_scatter(x, dim)), cl.reduce_scatter(x, dim))[choice]
    return cl.all_gather(x) if x.layout.is_sliced else None


def _updated(x, pool, updatable):
    """The old value leaves the pool: nothing below its update may read it."""
    if not updatable or x is updatable[-1]:
        return None
    target = updatable[-1]
    value = cl.update(target, x)
    updatable.remove(target)
    pool.remove(target)
    return cl.all_gather(value) if value.layout.is_sliced else value


def legal_step(draw, program):
    """One of the legal moves, those that change operations more often; None where there is none."""
    kinds = {}
    for step in legal_moves(program):
        kinds.setdefault(step.kind, []).append(step)
    if not kinds:
        return None
    weighted = [kind for kind in sorted(kinds) for _ in range(1 if kind in ("fuse", "overlap") else 4)]
    return choice(draw, kinds[choice(draw, weighted)])


def any_step(draw, program):
    """A step with random targets: most are illegal."""
    names = st.sampled_from([*program.ops, *program.fusion_named, *(v.name for v in program.overlaps)])
    kind = choice(draw, list(KINDS))
    some = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    if kind == "split":
        dim, into = choice(draw, [None, 0, 1]), choice(draw, ["rs_ag", "reduce_broadcast"])
        return make_step(program, kind, some[:1], {"dim": dim, "into": into})
    if kind == "reorder":
        return make_step(program, kind, some[:1], {"past": draw(st.lists(names, min_size=1, max_size=2))})
    if kind == "dead":
        return make_step(program, kind, [], {"name": draw(st.none() | names)})
    return make_step(program, kind, some, {})
