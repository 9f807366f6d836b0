"""Sentences of the contract (design §4a, §5a) that no other file holds."""

from __future__ import annotations

import dataclasses

import numpy as np
import programs
import pytest

import coconet_lab as cl
from coconet_lab import FP16, FP32, FP64, GROUP, INT64, Local, Replicated, Sliced
from coconet_lab.ir.inputs import random_inputs
from coconet_lab.ir.oracle import run
from coconet_lab.ir.updates import is_effect


def keyed(
    name="p", ranks=4, groups=1, w="w", dtype=FP32, shape=(8,), layout=Replicated, op=cl.add, by=1.0, more=(), **bounds
):
    value = cl.tensor(w, dtype, shape, layout, **bounds)
    out = op(value, by, name="out")
    outputs = [out, cl.mul(value, 3, name="second")]
    return cl.program(name, outputs=[outputs[i] for i in more] or outputs, ranks=ranks, groups=groups)


OTHERWISE = {
    "name": {"name": "q"},
    "ranks": {"ranks": 2},
    "groups": {"groups": 2},
    "input": {"w": "x"},
    "dtype": {"dtype": FP64},
    "shape": {"shape": (16,)},
    "layout": {"layout": Sliced(0)},
    "operation": {"op": cl.sub},
    "constant": {"by": 2.0},
    "low": {"low": 0.0},
    "high": {"high": 9.0},
    "outputs": {"more": (1, 0)},
    "fewer outputs": {"more": (0,)},
    "list": {"shape": [(8,)]},
    "tensors of a list": {"shape": [(3,), (5,)]},
    "order of a list's tensors": {"shape": [(5,), (3,)]},
    "bucket": {"shape": [(3,), (5,)], "bucket": 2},
    "group": {"groups": 2, "group": 1},
}


def test_keys_differ_wherever_programs_differ_in_more_than_made_up_names():
    keys = {what: keyed(**change).key() for what, change in {"as it was": {}, **OTHERWISE}.items()}
    same = [(a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]]
    assert not same
    assert all(keyed(**change).key() == keys[what] for what, change in OTHERWISE.items())


def test_keys_differ_by_a_default_a_seed_a_reduction_a_root_and_an_expression():
    x = cl.tensor("x", FP32, (8,), Local)
    made = [
        cl.all_reduce(x, "max", name="y"),
        cl.all_reduce(x, "min", name="y"),
        cl.reduce(x, root=0, name="y"),
        cl.reduce(x, root=1, name="y"),
        cl.dropout(x, 0.1, name="y"),
        cl.dropout(x, 0.2, name="y"),
        *(cl.mul(x, cl.scalar("s", FP32, default=default), name="y") for default in (None, 1.0, 2.0)),
        *(cl.operator("f", meaning=_same, expression=text)(x, name="y") for text in ("{0}", "-{0}")),
    ]
    assert len({cl.program("p", outputs=[y], ranks=2).key() for y in made}) == len(made)


def _same(a, *, ranges):
    return a
