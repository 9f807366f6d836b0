"""Programs to draw: the paper's two, a pipeline of two groups, a large one with scopes, one with hostile names."""

from __future__ import annotations

import coconet_lab as cl
from coconet_lab import FP16, FP32, Local, Program, Replicated, Sliced
from coconet_lab.ir.program import Fusion, Overlap

B, S, H = 8, 1024, 3072
HOSTILE = (
    'a"<b>&\n\\{}|é',
    "\\N \\G &amp; ]]> --> <script>alert(1)</script> \u202e\x00",
    "]; } digraph { evil",
    "<table>\\l",
    '日本 out"',
)


def attention_parts() -> tuple[cl.Value, ...]:
    x = cl.tensor("x", FP16, (B, S, H), Sliced(2))
    w = cl.tensor("w", FP16, (H, H), Sliced(0))
    b = cl.tensor("b", FP16, (H,), Replicated)
    r = cl.tensor("r", FP16, (B, S, H), Replicated)
    return b, r, cl.matmul(x, w, name="layer")


def attention() -> Program:
    b, r, layer = attention_parts()
    total = cl.all_reduce(layer, name="total")
    out = cl.add(cl.dropout(total + b, 0.1, name="drop"), r, name="out")
    return cl.program("self_attention", outputs=[out], ranks=4)


def attention_sliced() -> Program:
    b, r, layer = attention_parts()
    total = cl.reduce_scatter(layer, 2, name="total_rs")
    part = cl.add(cl.dropout(total + b, 0.1, name="drop"), r, name="out_part")
    return cl.program("self_attention", outputs=[cl.all_gather(part, name="out")], ranks=4)


def attention_fused() -> Program:
    fused = Fusion("fused", ("total_rs", "add_1", "drop", "out_part", "out"))
    return attention_sliced().edit(fusions=(fused,), overlaps=(Overlap("ol", ("layer", "fused")),))


def adam() -> Program:
    n = 1 << 24
    g, p = cl.tensor("g", FP16, (n,), Local), cl.tensor("p", FP16, (n,), Replicated)
    m, v, w = (cl.tensor(name, FP32, (n,), Replicated) for name in "mvw")
    b1, b2, lr = (cl.scalar(name, FP32) for name in ("beta1", "beta2", "lr"))
    grad = cl.div(cl.cast(cl.all_reduce(g, name="total"), FP32), cl.GROUP.size, name="G")
    m1 = cl.update(m, b1 * m + (1 - b1) * grad, name="m1")
    v1 = cl.update(v, b2 * v + (1 - b2) * grad * grad, name="v1")
    w1 = cl.update(w, w - lr * m1 / (cl.sqrt(v1) + 1e-8), name="w1")
    return cl.program("adam", outputs=[cl.update(p, cl.cast(w1, FP16), name="p1")], ranks=4)


def pipeline() -> Program:
    b, r, layer = attention_parts()
    total = cl.reduce_scatter(layer, 2, name="total_rs")
    out = cl.add(cl.dropout(total + b, 0.1, name="drop"), r, name="out")
    sent = cl.all_gather(cl.send(out, to=cl.GROUP + 1, name="sent_part"), name="sent")
    made = cl.program("pipeline", outputs=[sent], ranks=8, groups=2)
    group = Fusion("cp", ("add_1", "drop", "out", "sent_part"), True)
    return made.edit(fusions=(group,), overlaps=(Overlap("ol", ("total_rs", "cp", "sent")),))


def transformer(blocks: int = 28) -> Program:
    h = cl.tensor("x", FP16, (B, S, H), Replicated)
    for k in range(blocks):
        with cl.scope(f"block{k}"):
            with cl.scope("attn"):
                w, b = cl.tensor("w", FP16, (H, H), Sliced(0)), cl.tensor("b", FP16, (H,), Replicated)
                part = cl.local_slice(cl.tanh(h, name="norm"), 2, name="slice")
                total = cl.all_reduce(cl.matmul(part, w, name="layer"), name="total")
                h = cl.add(cl.dropout(cl.add(total, b, name="biased"), 0.1, name="drop"), h, name="out")
            with cl.scope("mlp"):
                w1, w2 = cl.tensor("w1", FP16, (H, 4 * H), Sliced(1)), cl.tensor("w2", FP16, (4 * H, H), Sliced(0))
                hidden = cl.matmul(cl.tanh(h, name="norm"), w1, name="hidden")
                total = cl.all_reduce(cl.matmul(cl.relu(hidden, name="relu"), w2, name="layer"), name="total")
                h = cl.add(total, cl.tensor("b", FP16, (H,), Replicated), name="out")
    return cl.program("transformer", outputs=[h], ranks=4)


def hostile() -> Program:
    x = cl.tensor(HOSTILE[0], FP16, (8,), Local)
    total = cl.all_reduce(x, name=HOSTILE[1])
    square = cl.mul(total, total, name=HOSTILE[2])
    length = cl.norm(square, name=HOSTILE[3])
    out = cl.mul(square, length, name=HOSTILE[4])
    made = cl.program('p"<&>\\', outputs=[out], ranks=4)
    return made.edit(fusions=(Fusion('f"<&\\N', HOSTILE[2:4]),))


def plain(title: str, leaf: str, total: str, out: str, group: str) -> Program:
    """Four names on one small program: an input, a collective, an output, a fused group."""
    made = cl.mul(cl.all_reduce(cl.tensor(leaf, FP32, (8,), Local), name=total), 2, name=out)
    return cl.program(title, outputs=[made], ranks=2).edit(fusions=(Fusion(group, (out,)),))
