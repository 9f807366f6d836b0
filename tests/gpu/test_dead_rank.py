"""A rank that is killed, or does not come, on real GPUs: the other one ends with an error that names it, in time."""

from __future__ import annotations

import dead_rank
import pytest

from coconet_lab.run.devices import gpu_count


@pytest.mark.parametrize("case", dead_rank.CASES)
def test_the_other_rank_ends_with_an_error_that_says_who_did_not_come(case):
    if gpu_count() < 2:
        pytest.skip(f"needs 2 GPUs, {gpu_count()} found")
    is_right, line = dead_rank.check(case)
    assert is_right, line
