"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil

import pytest

import coconet_lab

FOUND = pkgutil.walk_packages(coconet_lab.__path__, "coconet_lab.")
NAMES = ["coconet_dot", "coconet_lab", *sorted(module.name for module in FOUND if not module.name.endswith("__main__"))]


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example that writes a file leaves nothing behind
    linecache.clearcache()  # doctest looks after every file in it, for every example
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


def test_an_example_that_prints_something_else_is_found_out():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=lambda text: None).failed == 1
