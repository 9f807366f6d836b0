"""Where the user's own code is: a notebook's cells go by the number that the notebook shows beside them."""

from __future__ import annotations

import re
import subprocess
import sys

CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in (
    "import coconet_lab as cl; x = cl.tensor('x', cl.FP32, (8,), cl.Replicated)",
    "def wrong():\\n    return cl.all_reduce(x)",
    "print(cl.add(x, 1.0).op.site)",
    "try:\\n    wrong()\\nexcept cl.LayoutError as error:\\n    print(error.where)",
):
    shell.run_cell(cell, store_history=True).raise_error()
"""


def test_a_cell_goes_by_its_own_number_also_where_a_later_cell_calls_its_function():
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"notebook cell (\S+), line (\d+)", done.stdout) == [("3", "1"), ("2", "2")]
