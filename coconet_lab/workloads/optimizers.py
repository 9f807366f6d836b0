"""Data-parallel parameter updates: SGD, Adam and LAMB on gradients that are averaged over the ranks (paper §4, Fig. 6).

The mathematics is the standard one: bias correction, epsilon outside the root, decoupled weight decay in LAMB, and a
trust ratio of 1 where a norm is zero. With ``dtype="fp16"`` gradients and parameters are FP16 on the wire while the
master weights ``w`` and the state are FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coconet_lab.ir.dtypes import FP16, FP32
from coconet_lab.ir.layout import Local, Replicated
from coconet_lab.lang.build import program
from coconet_lab.lang.communicate import GROUP, all_reduce
from coconet_lab.lang.compute import add, cast, div, norm, scalar, sqrt, tensor, update, where
from coconet_lab.lang.value import Value
from coconet_lab.schedule.schedule import Schedule
from coconet_lab.workloads.workload import Workload, extent, wire_dtype

Elements = int | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Start:
    """What the three optimizers begin with: inputs, the averaged gradient, and how the new weights come out."""

    elements: Elements
    mixed: bool
    gradient: Value
    weight: Value
    mean_gradient: Value

    def shape(self) -> Sequence[int] | Sequence[Sequence[int]]:
        return [self.elements] if isinstance(self.elements, int) else self.elements

    def state(self, name: str, low: float | None = None) -> Value:
        return tensor(name, FP32, self.shape(), Replicated, low=low)


def _start(elements: Elements, dtype: str) -> _Start:
    wire = wire_dtype(dtype)
    if not isinstance(elements, Sequence) or isinstance(elements, str | bytes):
        elements = extent(elements, "elements")
    shape = [elements] if isinstance(elements, int) else elements
    gradient = tensor("g", wire, shape, Local)
    weight = tensor("w", FP32, shape, Replicated)
    total = all_reduce(gradient, name="total")
    mixed = wire is FP16
    wide = cast(total, FP32) if mixed else total
    mean = div(wide, GROUP.size, name="G")
    return _Start(elements, mixed, gradient, weight, mean)


def _finish(
    name: str,
    start: _Start,
    new_weight: Value,
    state: Sequence[Value],
    scalars: Sequence[Value],
    ranks: int,
    dtype: str,
) -> Workload:
    w1 = update(start.weight, new_weight, name="w1")
    inputs = [start.gradient, start.weight, *state, *scalars]
    last = w1
    if start.mixed:
        parameter = tensor("p", FP16, start.shape(), Replicated)
        last = update(parameter, cast(w1, FP16), name="p1")
        inputs.insert(1, parameter)
    made = program(name, inputs=inputs, outputs=[last], ranks=ranks)
    sliced = [s.name for s in state] + (["w"] if start.mixed else [])
    return Workload(name, dtype, made, _recipes("p1" if start.mixed else "w1", sliced))


def _recipes(last: str, sliced: Sequence[str]) -> dict[str, Callable[[Schedule], Schedule]]:
    """AR-Opt, RS-Opt-AG (GShard-Eq, ZeRO) and fuse(RS-Opt-AG) of an optimizer whose result is `last`."""

    def ar_opt(s: Schedule) -> Schedule:
        return s.fuse("G", last)

    def rs_opt_ag(s: Schedule) -> Schedule:
        moved = ar_opt(s).split("total").reorder("total", past="fused")
        return moved.as_slice(*sliced).dead() if sliced else moved

    def fused(s: Schedule) -> Schedule:
        return rs_opt_ag(s).fuse("total_rs", "fused", last)

    return {"naive": lambda s: s, "AR-Opt": ar_opt, "RS-Opt-AG": rs_opt_ag, "fuse(RS-Opt-AG)": fused}


def sgd(elements: Elements = 2**20, ranks: int = 4, dtype: str = "fp32") -> Workload:
    """w ← w − lr·G with G the mean gradient.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> list(cl.workloads.sgd(elements=64, ranks=4).schedules)
    ['naive', 'AR-Opt', 'RS-Opt-AG', 'fuse(RS-Opt-AG)']
    """
    start = _start(elements, dtype)
    lr = scalar("lr", FP32, low=0.0, high=1.0, default=0.01)
    return _finish("sgd", start, start.weight - lr * start.mean_gradient, [], [lr], ranks, dtype)


def _moments(start: _Start) -> tuple[Value, list[Value], list[Value]]:
    """Adam's direction m̂/(√v̂ + ε), the state tensors, and the scalars."""
    b1 = scalar("b1", FP32, low=0.5, high=0.99, default=0.9)
    b2 = scalar("b2", FP32, low=0.5, high=0.9999, default=0.999)
    eps = scalar("eps", FP32, low=1e-8, high=1e-3, default=1e-8)
    t = scalar("t", FP32, low=1.0, high=1000.0, default=1.0)
    m, v = start.state("m"), start.state("v", low=0.0)
    G = start.mean_gradient
    m1 = update(m, b1 * m + (1 - b1) * G, name="m1")
    v1 = update(v, b2 * v + (1 - b2) * (G * G), name="v1")
    direction = (m1 / (1 - b1**t)) / (sqrt(v1 / (1 - b2**t)) + eps)
    return direction, [m, v], [b1, b2, eps, t]


def adam(elements: Elements = 2**20, ranks: int = 4, dtype: str = "fp32") -> Workload:
    """Adam with bias correction: w ← w − lr·m̂/(√v̂ + ε).

    Parameters
    ----------
    elements : int or list of shapes
        Elements of one flat tensor, or the shapes of a list of tensors (`BERT_SHAPES`).
    ranks : int
    dtype : "fp32" or "fp16"
        fp16: FP16 gradients and parameters on the wire, FP32 state and master weights; the output is ``p1``.

    Examples
    --------
    >>> import coconet_lab as cl
    >>> cl.workloads.adam(elements=64, ranks=4).schedules["AR-Opt"].program.fusions[0].name
    'fused'
    """
    start = _start(elements, dtype)
    lr = scalar("lr", FP32, low=0.0, high=1.0, default=0.001)
    direction, state, scalars = _moments(start)
    return _finish("adam", start, start.weight - lr * direction, state, [lr, *scalars], ranks, dtype)


def lamb(elements: Elements = 2**20, ranks: int = 4, dtype: str = "fp32") -> Workload:
    """LAMB: Adam's direction with weight decay, scaled by ‖w‖/‖u‖ per tensor (1 where a norm is zero)."""
    start = _start(elements, dtype)
    lr = scalar("lr", FP32, low=0.0, high=1.0, default=0.001)
    decay = scalar("decay", FP32, low=0.0, high=0.1, default=0.01)
    direction, state, scalars = _moments(start)
    u = add(direction, decay * start.weight, name="u")
    w_norm, u_norm = norm(start.weight, name="w_norm"), norm(u, name="u_norm")
    ratio = where(w_norm > 0, where(u_norm > 0, w_norm / u_norm, 1.0), 1.0, name="ratio")
    new_weight = start.weight - lr * ratio * u
    return _finish("lamb", start, new_weight, state, [lr, *scalars, decay], ranks, dtype)
