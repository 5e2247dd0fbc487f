"""Tuning of graphs that are compiled already: at their first call, or in the background.

``tune="first call"`` uses the memory and the values of that call. The native half compiles with the tiles that it has rules for, or
that won before, and measures the others while the first call runs, each kernel when its turn comes. Then the graph is compiled once
more, with what won.

``tune="background"`` has a thread measure, one graph after the other, over memory and on a stream of its own, while calls go on.
Then that thread compiles the graph once more, and calls run what it gives.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from typing import Any, Callable

from inrush import _native, log, torch_internals


class FirstCall:
    """A compiled graph whose first call tunes it."""

    _boxed_call = True

    def __init__(self, compiled: Any, again: Callable[[], Any], told: Callable[[Any], None]) -> None:
        self.compiled = compiled
        self.again: Callable[[], Any] | None = again
        self.told = told
        self.lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        out = self.compiled(*args)
        if self.again is not None:
            self.compile_again()
        return out

    def compile_again(self) -> None:
        with self.lock:
            again, self.again = self.again, None
        # A thread that comes second goes on with what there is.
        if again is None:
            return
        measured = self.compiled.report()["tuned"]
        try:
            compiled = again()
        except Exception as error:
            # What runs is right, if slower.
            log.compile.warning("tuned tiles are not used: %s", error)
            return
        self.compiled = compiled
        self.told(measured)

    def report(self) -> Any:
        return self.compiled.report()

    def __reduce__(self) -> Any:
        raise torch_internals.BypassCache("a graph that its first call tunes")


class Background:
    """Graphs that a thread tunes. The thread starts with the first graph, and anew in a process that was forked."""

    def __init__(self) -> None:
        self.graphs: queue.SimpleQueue[tuple[Any, Callable[[], Any], Callable[[Any], None]]] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.changed = threading.Condition()
        self.open = 0
        self.is_over = False

    def add(self, compiled: Any, again: Callable[[], Any], told: Callable[[Any], None]) -> None:
        """Has the thread tune ``compiled`` by ``again``, which gives the graph with the tiles that won."""
        with self.changed:
            if self.thread is None or not self.thread.is_alive():
                self.graphs, self.open = queue.SimpleQueue(), 0
                self.thread = threading.Thread(target=self.work, name="inrush-tuning", daemon=True)
                self.thread.start()
                atexit.register(self.stop)
            self.open += 1
        self.graphs.put((weakref.ref(compiled), again, told))

    def wait(self, timeout: float | None) -> bool:
        """Returns true once all graphs are tuned, false after ``timeout`` seconds."""
        with self.changed:
            return self.changed.wait_for(lambda: self.open == 0, timeout)

    def stop(self) -> None:
        """Ends the thread with the process: what is not measured then stays so."""
        self.is_over = True
        _native.stop_tuning()
        self.wait(30)

    def work(self) -> None:
        while True:
            graph, again, told = self.graphs.get()
            try:
                # A graph that is gone is not worth it.
                compiled = None if self.is_over else graph()
                if compiled is not None:
                    tune(compiled, again, told)
            except Exception as error:
                # What runs is right, if slower.
                log.compile.warning("tuned tiles are not used: %s", error)
            finally:
                compiled = again = told = None  # type: ignore[assignment]
                with self.changed:
                    self.open -= 1
                    self.changed.notify_all()


def tune(compiled: Any, again: Callable[[], Any], told: Callable[[Any], None]) -> None:
    """Has calls of ``compiled`` run what ``again`` gives, if kernels of it were never measured."""
    if not compiled.report()["untuned"]:
        return
    made = again()
    measured = made.report()["tuned"]
    compiled.replace(made)
    told(measured)


background = Background()


def wait_for_tuning(timeout: float | None = None) -> bool:
    """Waits until all graphs that were compiled with ``tune="background"`` run with the tiles that won.

    Returns false if that takes longer than ``timeout`` seconds; without one it waits as long as it takes.
    """
    return background.wait(timeout)
