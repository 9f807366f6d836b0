"""The parameter list of BERT-large as the paper's scattered tensors: 396 tensors, 335,707,968 elements (paper §5.4)."""

from __future__ import annotations

BERT_SHAPES: tuple[tuple[int, ...], ...] = (
    ((31_260_672,),) * 1
    + ((4_194_304,),) * 48
    + ((1_048_576,),) * 98
    + ((30_528,),) * 1
    + ((4_096,),) * 24
    + ((2_048,),) * 2
    + ((1_024,),) * 222
)
