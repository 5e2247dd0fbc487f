"""`inrush_runtime` in programs that serve: weights are swapped under load, processes fork, and the example answers over HTTP."""

import http.client
import io
import json
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import inrush_runtime as runtime
from runtime_packages import DIGITS, REPOSITORY, digits, run

CALLERS = 8


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return digits(tmp_path_factory.mktemp("digits"))


def images(n):
    return np.random.default_rng(n).normal(size=(n, 1, 8, 8)).astype(np.float32)


def sets(model):
    """Three sets of weights."""
    whole = model.weights()
    return [{name: w * np.float32(f) if w.dtype == np.float32 else w for name, w in whole.items()} for f in (1.0, 0.75, 1.25)]


def test_answers_under_swaps_come_from_one_set(package):
    model = runtime.load(package, threads=1)
    x, weights, answers = images(3), sets(model), []
    for w in weights:
        model.update_weights(w, all=True)
        model.swap_weights()
        answers.append(model(x).tobytes())
    assert len(set(answers)) == 3
    over, counts, wrong = threading.Event(), [], []

    def call():
        n = 0
        while not over.is_set():
            if model(x).tobytes() not in answers:
                wrong.append(n)
            n += 1
        counts.append(n)

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for t in threads:
        t.start()
    for k in range(100):
        model.update_weights(weights[k % 3], all=True)
        model.swap_weights()
    over.set()
    for t in threads:
        t.join(60)
    assert len(counts) == CALLERS and min(counts) > 0, counts
    assert not wrong, f"{len(wrong)} of {sum(counts)} answers"
    assert model(x).tobytes() == answers[99 % 3]


def test_updates_add_up_and_are_checked(package):
    model = runtime.load(package, threads=2)
    x = images(4)
    first, changed = model(x), sets(model)[1]
    names = list(changed)
    half = len(names) // 2
    model.update_weights({n: changed[n] for n in names[:half]})
    assert np.array_equal(model(x), first), "not swapped yet"
    # Another layout, and memory that must not be written.
    rest = {n: np.array(changed[n], order="F") for n in names[half:]}
    for w in rest.values():
        w.flags.writeable = False
    model.update_weights(rest)
    model.swap_weights()
    other = runtime.load(package, threads=2)
    other.update_weights(changed, all=True)
    other.swap_weights()
    assert np.array_equal(model(x), other(x)) and not np.array_equal(model(x), first)
    for name, w in model.weights().items():
        assert np.array_equal(w, changed[name]), name

    def refused(match, weights, **options):
        with pytest.raises(runtime.InputError, match=match):
            model.update_weights(weights, **options)

    name = next(n for n in names if n.endswith(".weight"))
    refused("no weight `nothing`", {"nothing": changed[name]})
    refused(f"no weight `module.{re.escape(name)}`; it has `{re.escape(name)}`", {f"module.{name}": changed[name]})
    refused("got float64", {name: changed[name].astype(np.float64)})
    refused("is float32 of sizes", {name: changed[name][:1]})
    refused(f"weight `{re.escape(name)}`: an array is needed", {name: [1.0]})
    refused("are missing", {name: changed[name]}, all=True)
    with pytest.raises(runtime.InputError, match="no new weights"):
        model.swap_weights()
    model.update_weights({name: changed[name]})
    model.discard_update()
    with pytest.raises(runtime.InputError, match="no new weights"):
        model.swap_weights()


FORK = textwrap.dedent("""
    import os, sys, time
    import numpy as np, inrush_runtime
    package = sys.argv[1]
    x = np.ones((200, 1, 8, 8), np.float32)

    def child(f):
        pid = os.fork()
        if pid == 0:
            code = 9
            try:
                code = f()
            finally:
                os._exit(code)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "the child hangs"

    loaded = inrush_runtime.load(package, threads=3)
    alone = inrush_runtime.load(package, threads=1)
    wanted = alone(x)

    def before_the_first_call():
        return 0 if np.allclose(loaded(x), wanted, atol=1e-4) and np.array_equal(alone(x), wanted) else 1

    assert child(before_the_first_call) == 0
    assert np.allclose(loaded(x), wanted, atol=1e-4)

    def after_it():
        global loaded
        for call in (lambda: loaded(x), lambda: loaded(x[:1]), lambda: loaded(x, out=[wanted.copy()]), lambda: loaded.update_weights(loaded.weights())):
            try:
                call()
                return 1
            except inrush_runtime.MachineError as error:
                if "this process is a fork" not in str(error):
                    return 2
        if not np.array_equal(alone(x), wanted):
            return 3
        # To drop it waits for no thread of the parent.
        del loaded
        again = inrush_runtime.load(package, threads=3)
        return 0 if np.allclose(again(x), wanted, atol=1e-4) else 4

    assert child(after_it) == 0, child(after_it)
    assert np.allclose(loaded(x), wanted, atol=1e-4)
""")


def test_a_fork_is_an_error_and_no_wait(package):
    run(FORK, package)


LOCK = textwrap.dedent("""
    import sys, threading
    import numpy as np, inrush_runtime
    model = inrush_runtime.load(sys.argv[1], threads=1)
    x = np.ones((1024, 1, 8, 8), np.float32)
    model(x)
    steps, over = 0, threading.Event()
    def call():
        model(x)
        over.set()
    thread = threading.Thread(target=call)
    # Another thread would get the lock by its own account only after this time.
    sys.setswitchinterval(100)
    thread.start()
    while not over.is_set():
        steps += 1
        over.wait(0.0001)
    thread.join()
    print(steps)
""")


def test_calls_run_without_the_interpreters_lock(package):
    assert int(run(LOCK, package)) > 3


def test_the_example_serves_while_weights_are_swapped(package, tmp_path):
    server = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "examples" / "python" / "serve.py"), str(package), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("wb"),
        text=True,
    )
    try:
        address = server.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), (tmp_path / "errors").read_text()
        talk(int(address.rsplit(":", 1)[1]), runtime.load(package, threads=1))
        assert server.poll() is None
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
    assert (tmp_path / "errors").read_text() == ""


def ask(connection, method, path, body=b""):
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def talk(port, model):
    """Classifies the held-out images, and swaps weights under the load of eight clients."""
    from safetensors.numpy import load_file

    held_out = load_file(str(DIGITS / "digits.inputs.safetensors"))["0"]
    labels = load_file(str(DIGITS / "digits.expect.safetensors"))["labels"]
    main = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    assert "-> float32" in ask(main, "GET", "/")[1]["signature"]
    status, answer = ask(main, "POST", "/classify", held_out.tobytes())
    assert status == 200 and (np.array(answer["digits"]) == labels).mean() > 0.99
    assert ask(main, "POST", "/classify", b"12345")[0] == 400
    assert ask(main, "POST", "/elsewhere", b"")[0] == 404
    assert ask(main, "PUT", "/weights", b"nothing")[0] == 400
    x, weights, answers, bodies = images(2), sets(model), [], []
    for w in weights:
        model.update_weights(w, all=True)
        model.swap_weights()
        answers.append(model(x).tolist())
        file = io.BytesIO()
        np.savez(file, **w)
        bodies.append(file.getvalue())
    over, counts, wrong = threading.Event(), [], []

    def client():
        connection, n = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0
        while not over.is_set():
            status, answer = ask(connection, "POST", "/classify", x.tobytes())
            if status != 200 or answer["logits"] not in answers:
                wrong.append(answer)
            n += 1
        counts.append(n)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(CALLERS)]
    for t in threads:
        t.start()
    for k in range(20):
        assert ask(main, "PUT", "/weights", bodies[k % 3]) == (200, {"swaps": k + 1})
    over.set()
    for t in threads:
        t.join(60)
    main.close()
    assert len(counts) == CALLERS and min(counts) > 0, counts
    assert not wrong, wrong[0]
