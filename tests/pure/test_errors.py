"""How errors look where users meet them, and programs as graphs of other libraries."""

import copy
import pickle

import programs
import pytest

import coconet_lab as cl


def test_a_notebook_shows_the_users_own_line_and_then_the_four():
    try:
        programs.sgd(ranks=0)
    except cl.ProgramError as error:
        shown = error._render_traceback_()
    assert shown[0].startswith("programs.py:")
    assert "cl.program(" in shown[0]
    assert [line.split()[0] for line in shown[1].splitlines()] == ["ProgramError:", "rule:", "in:", "try:"]


def test_errors_and_handles_survive_pickles_and_copies():
    with pytest.raises(cl.IllegalTransform) as caught:
        cl.Schedule(programs.sgd()).split("w1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (cl.IllegalTransform, str(caught.value))
    assert copy.deepcopy(programs.sgd()).key() == programs.sgd().key()


def test_a_program_is_a_graph_of_networkx_with_an_edge_an_operand():
    program = programs.adam()
    graph = program.to_networkx()
    assert set(graph.nodes) == set(program.ops)
    assert set(graph.edges) == {(source, name) for name, op in program.ops.items() for source in op.sources}
