"""The one kernel that is not generated: ranks meet, signal and wait between the entries of a Plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coconet_lab.kernels.cuda_abi import MAX_RANKS, Field, pack
from coconet_lab.kernels.cuda_printer import prelude

NAME = "meet"
FIRST_OF_ALL = 128
"""From here on an error word counts ranks among all; below, in the group of a launch."""
_LAYOUT = (
    Field("counter", "u32*"), Field("posts", "u64"), Field("waits", "u64"),
    Field("post_at", "u32*", MAX_RANKS), Field("wait_at", "u32*", MAX_RANKS), Field("rank_of", "u64", MAX_RANKS),
    Field("state", "State*"), Field("limit_ns", "u64"), Field("entry", "u64"),
)  # fmt: skip

_BODY = """
// Everything this rank's stream did before may be read once the flags are seen; each call posts the next number.
extern "C" __global__ void meet(const __grid_constant__ Args a) {
  const u32 number = *a.counter + 1;
  __syncthreads();
  if (threadIdx.x < a.posts) post(a.post_at[threadIdx.x], number);
  if (threadIdx.x < a.waits)
    await(a.wait_at[threadIdx.x], number, a.state, a.limit_ns, (u32)(a.entry << 8 | a.rank_of[threadIdx.x]));
  __syncthreads();
  if (threadIdx.x == 0) *a.counter = number;
}
"""


def meet_text() -> str:
    """The kernel's text, with all it stands on."""
    members = "\n".join(map(str, _LAYOUT))
    return f"#define RANKS 1\n{prelude()}struct Args {{\n{members}\n}};\n{_BODY}"


def meet_arguments(
    counter: int,
    post_at: Sequence[int],
    wait_at: Sequence[int],
    state: int,
    limit_ns: int,
    entry: int,
    ranks: Sequence[int] = (),
) -> np.ndarray[Any, Any]:
    """The argument struct: addresses of this meeting's own counter, of the flags to post and of those to wait for.

    `ranks` are those waited for, of all: who did not come is in the error word as `FIRST_OF_ALL` + rank + 1.
    """
    names = [min(FIRST_OF_ALL + rank + 1, 255) for rank in ranks]

    def filled(words: Sequence[int]) -> list[int]:
        return [*words, *[0] * (MAX_RANKS - len(words))]

    return pack(
        _LAYOUT,
        {
            "counter": counter, "posts": len(post_at), "waits": len(wait_at), "post_at": filled(post_at),
            "wait_at": filled(wait_at), "rank_of": filled(names), "state": state, "limit_ns": limit_ns, "entry": entry,
        },
    )  # fmt: skip
