"""Small programs of the paper for tests: standard mathematics, a few elements, names as in the paper."""

from __future__ import annotations

import coconet_lab as cl
from coconet_lab import FP16, FP32, GROUP, Local, Replicated, Sliced


def sgd(elements=16, ranks=4):
    g = cl.tensor("g", FP32, (elements,), Local)
    w = cl.tensor("w", FP32, (elements,), Replicated)
    lr = cl.scalar("lr", FP32)
    total = cl.all_reduce(g, name="total")
    mean = cl.div(total, GROUP.size, name="G")
    w1 = cl.update(w, w - lr * mean, name="w1")
    return cl.program("sgd", inputs=[g, w, lr], outputs=[w1], ranks=ranks)


def _moments(total, shape, dtype):
    """m1, v1 and the bias-corrected direction of Adam, in FP32."""
    m, v = cl.tensor("m", FP32, shape, Replicated), cl.tensor("v", FP32, shape, Replicated, low=0.0, high=1.0)
    b1, b2 = cl.scalar("b1", FP32, low=0.5, high=0.9), cl.scalar("b2", FP32, low=0.5, high=0.9)
    t, eps = cl.scalar("t", FP32, low=1.0, high=9.0), cl.scalar("eps", FP32, low=1e-6, high=1e-3)
    wide = cl.cast(total, FP32) if dtype is FP16 else total
    mean = cl.div(wide, GROUP.size, name="G")
    m1 = cl.update(m, b1 * m + (1 - b1) * mean, name="m1")
    v1 = cl.update(v, b2 * v + (1 - b2) * mean * mean, name="v1")
    m_hat = m1 / (1 - b1**t)
    v_hat = v1 / (1 - b2**t)
    return [m, v, b1, b2, t, eps], m_hat / (cl.sqrt(v_hat) + eps)


def adam(elements=16, ranks=4, mixed=True, shape=None):
    shape = shape or (elements,)
    wire = FP16 if mixed else FP32
    g = cl.tensor("g", wire, shape, Local)
    w, lr = cl.tensor("w", FP32, shape, Replicated), cl.scalar("lr", FP32)
    total = cl.all_reduce(g, name="total")
    state, direction = _moments(total, shape, wire)
    w1 = cl.update(w, w - lr * direction, name="w1")
    if not mixed:
        return cl.program("adam", inputs=[g, w, *state, lr], outputs=[w1], ranks=ranks)
    p = cl.tensor("p", FP16, shape, Replicated)
    p1 = cl.update(p, cl.cast(w1, FP16), name="p1")
    return cl.program("adam", inputs=[g, p, w, *state, lr], outputs=[p1], ranks=ranks)


def lamb(elements=16, ranks=4, shape=None):
    shape = shape or (elements,)
    g, w = cl.tensor("g", FP32, shape, Local), cl.tensor("w", FP32, shape, Replicated)
    lr, decay = cl.scalar("lr", FP32), cl.scalar("decay", FP32)
    total = cl.all_reduce(g, name="total")
    state, direction = _moments(total, shape, FP32)
    u = cl.add(direction, decay * w, name="u")
    w_norm, u_norm = cl.norm(w, name="w_norm"), cl.norm(u, name="u_norm")
    both = (w_norm > 0) * (u_norm > 0)
    ratio = cl.where(both, w_norm / u_norm, 1.0, name="ratio")
    w1 = cl.update(w, w - lr * ratio * u, name="w1")
    return cl.program("lamb", inputs=[g, w, *state, lr, decay], outputs=[w1], ranks=ranks)


def _epilogue(rows, hidden, inner, group=0):
    x = cl.tensor("x", FP16, (*rows, inner), Sliced(len(rows)), group=group)
    w = cl.tensor("w", FP16, (inner, hidden), Sliced(0), group=group)
    b = cl.tensor("b", FP16, (hidden,), Replicated, group=group)
    r = cl.tensor("r", FP16, (*rows, hidden), Replicated, group=group)
    layer = cl.matmul(x, w, name="layer")
    total = cl.all_reduce(layer, name="total")
    drop = cl.dropout(total + b, 0.1, name="drop")
    return [w, x, b, r], drop, cl.add(drop, r, name="out")


def self_attention(batch=8, sequence=4, hidden=8, ranks=4, outputs=("out",)):
    inputs, drop, out = _epilogue((batch, sequence), hidden, hidden)
    found = {"drop": drop, "out": out}
    return cl.program("self_attention", inputs=inputs, outputs=[found[o] for o in outputs], ranks=ranks)


def mlp(batch=8, sequence=4, hidden=8, ranks=4):
    inputs, _, out = _epilogue((batch, sequence), hidden, 4 * hidden)
    return cl.program("mlp", inputs=inputs, outputs=[out], ranks=ranks)


def pipeline(batch=8, sequence=4, hidden=8, ranks=8, groups=2):
    inputs, _, out = _epilogue((batch, sequence), hidden, hidden)
    sent = cl.send(out, to=GROUP + 1, name="sent")
    return cl.program("pipeline", inputs=inputs, outputs=[sent], ranks=ranks, groups=groups)
