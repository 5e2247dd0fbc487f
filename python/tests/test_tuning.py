"""Tuning in the background: the thread, and what becomes of a graph when better code is there. Kernels are measured on GPUs only
(`gpu_check.py --compiled`)."""

import os
import threading

import pytest
import torch

import inrush
from inrush import tuning


class Graph:
    """Stands in for a compiled graph."""

    def __init__(self, untuned=True):
        self.untuned = untuned
        self.replaced = None

    def report(self):
        return {"untuned": self.untuned, "tuned": ["k: x1y1r1w1 2.00 us, x2y1r1w1 1.00 us"]}

    def replace(self, other):
        self.replaced = other


def test_graphs_are_tuned_one_after_the_other():
    background, running, most, told = tuning.Background(), [], [], []

    def again():
        running.append(1)
        most.append(len(running))
        running.pop()
        return Graph(untuned=False)

    graphs = [Graph() for _ in range(5)]
    for graph in graphs:
        background.add(graph, again, told.extend)
    assert background.wait(60)
    assert all(g.replaced is not None for g in graphs)
    assert len(told) == 5 and max(most) == 1
    # The thread waits for more.
    late = Graph()
    background.add(late, again, told.extend)
    assert background.wait(60) and late.replaced is not None


def test_what_is_known_or_gone_is_left_alone():
    background, made = tuning.Background(), []
    known, gate = Graph(untuned=False), threading.Event()
    first = Graph()
    background.add(first, lambda: gate.wait(60) and Graph(untuned=False), lambda _: None)
    gone = Graph()
    background.add(gone, lambda: made.append("gone"), lambda _: None)
    background.add(known, lambda: made.append("known"), lambda _: None)
    del gone
    assert not background.wait(0.01)
    gate.set()
    assert background.wait(60)
    assert not made and known.replaced is None


def test_a_failure_leaves_the_graph_as_it_is(caplog):
    background, graph = tuning.Background(), Graph()

    def fails():
        raise inrush.MachineError("no memory")

    background.add(graph, fails, lambda _: None)
    assert background.wait(60)
    assert graph.replaced is None
    after = Graph()
    background.add(after, lambda: Graph(untuned=False), lambda _: None)
    assert background.wait(60) and after.replaced is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked")
def test_a_forked_process_has_a_thread_of_its_own():
    background = tuning.Background()
    background.add(Graph(), lambda: Graph(untuned=False), lambda _: None)
    assert background.wait(60)
    child = os.fork()
    if child == 0:
        graph = Graph()
        background.add(graph, lambda: Graph(untuned=False), lambda _: None)
        os._exit(0 if background.wait(60) and graph.replaced is not None else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_calls_run_the_graph_that_takes_their_place():
    made = []

    def keep(gm, inputs):
        from inrush.dynamo_backend import backend

        made.append(backend(gm, inputs))
        return made[-1]

    x = torch.randn(8)
    torch.compile(lambda x: x + 1, backend=keep)(x)
    torch.compile(lambda x: x - 1, backend=keep)(x)
    one, other = made
    one.replace(other)
    assert torch.equal(one(x)[0], x - 1)
    arguments = [x]
    assert torch.equal(one(arguments)[0], x - 1) and not arguments


@pytest.mark.parametrize("trains", [False, True])
def test_calls_run_what_the_thread_made(monkeypatch, trains):
    """Graphs are what the compiler gave, not wrapped, whichever way they were captured: the thread replaces what calls run."""
    made = []

    class Compiled(Graph):
        _boxed_call = True
        enters_python = False

        def __init__(self, native, settings):
            super().__init__(settings["tune"] == "known")
            self.native, self.settings, self.calls = native, settings, 0
            made.append(self)

        def report(self):
            return {**self.native.report(), **super().report()}

        def finish(self):
            self.native.finish()

        def __call__(self, *args):
            if self.replaced is not None:
                return self.replaced(*args)
            self.calls += 1
            return self.native(*args)

    compile_fx = tuning._native.compile_fx
    monkeypatch.setattr(tuning._native, "compile_fx", lambda gm, settings, *rest: Compiled(compile_fx(gm, settings, *rest), settings))
    f = torch.compile(lambda x: x.sin() * 2, backend="inrush", options={"tune": "background", "strict": True})
    x = torch.randn(100, requires_grad=trains)
    torch.testing.assert_close(f(x), x.sin() * 2)
    assert inrush.wait_for_tuning(60)
    forward = made[0]
    assert isinstance(forward.replaced, Compiled) and forward.replaced.settings["tune"] == "background"
    # The thread may have been faster than the first call.
    before = forward.calls, forward.replaced.calls
    torch.testing.assert_close(f(x), x.sin() * 2)
    assert (forward.calls, forward.replaced.calls) == (before[0], before[1] + 1)
    assert len(inrush.last_compile().graphs[0].tuned) == 2


def test_a_processor_has_nothing_to_tune():
    f = torch.compile(lambda x: x.sin() + 1, backend="inrush", options={"tune": "background", "strict": True})
    x = torch.randn(100)
    torch.testing.assert_close(f(x), x.sin() + 1)
    assert inrush.wait_for_tuning(60)
    assert not inrush.last_compile().graphs[-1].tuned
    with pytest.raises(Exception, match="'first call' or 'background', not 'sometimes'"):
        torch.compile(lambda x: x + 2, backend="inrush", options={"tune": "sometimes"})(x)
