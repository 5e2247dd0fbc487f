"""Packages on a GPU from C and Python, without PyTorch and with its tensors: part of `gpu_package_check.py`.

    python gpu_embed_check.py STEP FOLDER DEVICE    # one step; the main script runs each in a process of its own

Steps: `numpy` (NumPy only), `torch` (tensors of PyTorch by DLPack), `swaps`, `graphs`, `state`, `latency`. Each prints a line for each
check and ends with status 1 if one failed.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = ("numpy", "torch", "swaps", "graphs", "state", "latency")
MODELS = ("digits", "rows", "transformer")
DTYPES = {"F32": "float32", "F16": "float16", "I64": "int64"}
TOLERANCE = {"float32": 1e-4, "float16": 1e-2}
failures = 0


def say(name, right, why=""):
    global failures
    failures += not right
    print(f"{'PASS' if right else 'FAIL'}  {name}{'' if right else f': {why}'}", flush=True)


# Made where there is PyTorch and no GPU.


def stateful_models():
    """Name, module, inputs of several calls: a key-value cache, and random numbers."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Cached(nn.Module):
        """One step of attention over a cache that the model keeps."""

        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
            self.register_buffer("keys", torch.zeros(1, 4, 32, 16))
            self.register_buffer("values", torch.zeros(1, 4, 32, 16))
            self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

        def forward(self, x):
            q, k, v = self.qkv(x).view(1, 1, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
            here = torch.arange(32).view(1, 1, 32, 1) == self.position
            keys, values = torch.where(here, k, self.keys), torch.where(here, v, self.values)
            seen = (torch.arange(32) <= self.position).view(1, 1, 1, 32)
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            self.keys.copy_(keys)
            self.values.copy_(values)
            self.position.add_(1)
            return self.out(y.transpose(1, 2).reshape(1, 1, 64))

    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x), F.dropout(x, 0.5, True)

    torch.manual_seed(1)
    yield "cached", Cached(), [[torch.randn(1, 1, 64)] for _ in range(24)]
    yield "noise", Noise(), [[torch.ones(4, 1000)] for _ in range(3)]


def make(folder, binary, package, write_tensors, library):
    """Writes packages of models with state, the C program, the libraries and the scripts."""
    import torch

    for name, module, cases in stateful_models():
        module.eval()
        with torch.no_grad():
            program = torch.export.export(module, tuple(cases[0]))
            archive = os.path.join(folder, f"{name}.pt2")
            torch.export.save(program, archive)
            package(binary, folder, name, archive)
            os.remove(archive)
            tensors = {}
            for k, inputs in enumerate(cases):
                tensors[f"in{k}"] = inputs[0]
                out = module(*inputs)
                if name == "cached":
                    tensors[f"out{k}"] = out
            write_tensors(os.path.join(folder, f"{name}.calls"), tensors)
    for kind, key in (("inputs", "0"), ("expect", "0")):
        tensors = read(os.path.join(folder, f"digits.0.{kind}"))
        tensors[key].tofile(os.path.join(folder, f"digits.{kind}.raw"))
    modules = os.path.join(folder, "inrush_runtime")
    os.makedirs(modules, exist_ok=True)
    for file in glob.glob(os.path.join(HERE, "inrush-runtime", "inrush_runtime", "*.py*")):
        shutil.copy(file, modules)
    natives = {"libinrush_runtime_native.so": os.path.join(modules, "_native.abi3.so"), "libinrush.so": os.path.join(folder, "libinrush.so")}
    natives["inrush"] = os.path.join(folder, "inrush")
    for name, to in natives.items():
        source = binary if name == "inrush" else os.path.join(library, name)
        subprocess.run(["strip", "--strip-unneeded", "-o", to, source], check=True)
    program = os.path.join(folder, "gpu_embed_check")
    header = os.path.join(HERE, "..", "crates", "inrush-capi", "include")
    command = ["gcc", "-O1", "-I", header, os.path.join(HERE, "gpu_embed_check.c"), "-o", program, "-L", folder, "-linrush", "-ldl", "-lpthread", "-lm"]
    subprocess.run([*command, "-Wl,-rpath,$ORIGIN"], check=True)
    for script in ("gpu_package_check.py", "gpu_host_check.py", "gpu_embed_check.py"):
        shutil.copy(os.path.join(HERE, script), folder)


# Run where there is a GPU.


def read(path):
    """Reads a safetensors file into arrays."""
    import numpy as np

    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, blob = json.loads(file.read(length)), file.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = np.frombuffer(blob[begin:end], DTYPES[t["dtype"]]).reshape(t["shape"])
    return out


def off(got, want):
    """Norm of the difference over norm of the expected array."""
    import numpy as np

    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        return float("inf")
    return float(np.linalg.norm(got - want) / (np.linalg.norm(want) or 1))


def flat(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def case(folder, name, k=0):
    """Inputs and expected outputs of a model, in order."""
    read_all = [read(os.path.join(folder, f"{name}.{k}.{kind}")) for kind in ("inputs", "expect")]
    return [[t[str(i)] for i in range(len(t)) if str(i) in t] for t in read_all]


def load(folder, name, device, kind="h100_alone", **options):
    import inrush_runtime

    return inrush_runtime.load(os.path.join(folder, f"{name}.{kind}.inrush"), device=device, **options)


def right(outputs, expect, dtype="float32"):
    error = max(off(o.numpy(), e) for o, e in zip(flat(outputs), expect))
    return error <= TOLERANCE[dtype], f"error {error:.1e}"


def in_threads(count, run):
    """Runs `run(k)` in threads; gives what they raised."""
    raised = []

    def guarded(k):
        try:
            run(k)
        except Exception as error:  # noqa: BLE001
            raised.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(k,)) for k in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return raised


def refused(name, word, call):
    import inrush_runtime

    try:
        call()
        say(name, False, "no error")
    except inrush_runtime.Error as error:
        say(name, word in str(error), str(error))


def step_numpy(folder, device):
    """NumPy arrays in, copies out, several threads, without PyTorch."""
    sys.modules["torch"] = None
    import numpy as np

    for name in (*MODELS, "residual"):
        model = load(folder, name, device)
        for k in range(3 if name == "rows" else 1):
            inputs, expect = case(folder, name, k)
            for _ in range(4):
                outputs = model(*inputs)
            say(f"NumPy: {name}.{k}", *right(outputs, expect))
            arrays = [np.zeros_like(o.numpy()) for o in flat(outputs)]
            model(*inputs, out=arrays)
            same = all(np.array_equal(a, o.numpy()) for a, o in zip(arrays, flat(outputs)))
            say(f"NumPy: {name}.{k} into arrays of the host", same, "other results")
            kinds = {(o.device, o.__dlpack_device__()[0]) for o in flat(outputs)}
            say(f"NumPy: {name}.{k} gives tensors of the device", kinds == {(device, 2)}, kinds)
    inputs, expect = case(folder, "digits")
    model = load(folder, "digits", device)
    wrong = []

    def calls(_):
        for _ in range(200):
            good, why = right(model(*inputs), expect)
            wrong.extend([] if good else [why])

    raised = in_threads(8, calls)
    say("NumPy: 8 threads of 200 calls, 4 at once", not raised and not wrong, (raised + wrong)[:2])
    refused("a wrong shape", "sizes", lambda: model(inputs[0][:, :, :7]))
    refused("a wrong dtype", "f64", lambda: model(inputs[0].astype(np.float64)))
    refused("a device that is not there", "99", lambda: load(folder, "digits", "cuda:99"))
    refused("an unknown device", "tpu", lambda: load(folder, "digits", "tpu"))
    say("no PyTorch", sys.modules["torch"] is None)


def step_torch(folder, device):
    """Tensors of PyTorch by DLPack, on its current stream and on others."""
    import numpy as np
    import torch

    torch.cuda.init()
    at = torch.device(device)
    with torch.cuda.device(at):
        for graphs in (False, True):
            title = "graphs" if graphs else "plain"
            for name in MODELS:
                inputs, expect = case(folder, name)
                given = [torch.tensor(x, device=at) for x in inputs]
                model = load(folder, name, device, cuda_graphs=graphs)
                here = torch.cuda.current_stream()
                for _ in range(5):
                    outputs = [torch.from_dlpack(o) for o in flat(model(*given, stream=here))]
                error = max(off(o.cpu(), e) for o, e in zip(outputs, expect))
                say(f"PyTorch: {name}, the current stream, {title}", error <= TOLERANCE["float32"], f"error {error:.1e}")
                outputs = [torch.from_dlpack(o) for o in flat(model(*given))]
                error = max(off(o.cpu(), e) for o, e in zip(outputs, expect))
                say(f"PyTorch: {name}, a stream of the model's, {title}", error <= TOLERANCE["float32"], f"error {error:.1e}")
                into = [torch.zeros_like(o) for o in outputs]
                model(*given, out=into, stream=here)
                same = all(torch.equal(a, b) for a, b in zip(into, outputs))
                say(f"PyTorch: {name} into its tensors, {title}", same, "other results")
            # The input is written late on a stream of its own, overwritten after the call, and so is the result.
            inputs, expect = case(folder, "digits")
            model, right_input = load(folder, "digits", device, cuda_graphs=graphs), torch.tensor(inputs[0], device=at)
            big, wrong = torch.randn(3000, 3000, device=at), 0
            streams = [torch.cuda.Stream() for _ in range(3)]
            for k in range(30):
                with torch.cuda.stream(streams[k % 3]):
                    x = torch.zeros_like(right_input)
                    y = big @ big
                    x.copy_(right_input + 0 * y[0, 0])
                    out = torch.from_dlpack(model(x, stream=torch.cuda.current_stream()))
                    x.zero_()
                    kept = out.clone()
                    del out
                    again = torch.from_dlpack(model(x, stream=torch.cuda.current_stream()))
                    del again
                streams[k % 3].synchronize()
                wrong += off(kept.cpu(), expect[0]) > TOLERANCE["float32"]
            say(f"PyTorch: order of work on 3 streams, {title}", wrong == 0, f"{wrong} of 30 are off")

            class Other:
                def __cuda_stream__(self):
                    return 0, streams[0].cuda_stream

            out = torch.from_dlpack(model(right_input, stream=Other()))
            torch.cuda.synchronize()
            say(f"PyTorch: an object with __cuda_stream__, {title}", off(out.cpu(), expect[0]) <= TOLERANCE["float32"])
            bad = []

            def calls(k, model=model, right_input=right_input, expect=expect, bad=bad):
                with torch.cuda.device(at), torch.cuda.stream(torch.cuda.Stream()):
                    for _ in range(100):
                        out = torch.from_dlpack(model(right_input, stream=torch.cuda.current_stream()))
                        bad.extend([1] if off(out.cpu(), expect[0]) > TOLERANCE["float32"] else [])

            raised = in_threads(6, calls)
            say(f"PyTorch: 6 threads with streams of their own, {title}", not raised and not bad, (raised[:2], len(bad)))
        say("PyTorch's device stays current", torch.cuda.current_device() == (at.index or 0))
        model = load(folder, "digits", device)
        refused("a tensor of other strides", "strides", lambda: model(right_input.transpose(2, 3)))
        refused("a stream that is none", "stream", lambda: model(right_input, stream="s"))
        weights = {n: torch.tensor(np.asarray(w), device=at) for n, w in model.weights().items()}
        before = model(right_input).numpy()
        model.update_weights({n: w * 0.5 if w.is_floating_point() else w for n, w in weights.items()})
        model.swap_weights()
        changed = not np.array_equal(model(right_input).numpy(), before)
        model.update_weights(weights, all=True)
        model.swap_weights()
        say("PyTorch: weights from its tensors", changed and np.array_equal(model(right_input).numpy(), before))


def step_swaps(folder, device):
    """1,000 swaps under the load of 4 threads: each answer is wholly that of one set."""
    import numpy as np

    inputs, _ = case(folder, "digits")
    for graphs in (False, True):
        model = load(folder, "digits", device, cuda_graphs=graphs)
        first = model.weights()
        second = {n: (w * np.float32(0.75) if w.dtype == np.float32 else w) for n, w in first.items()}
        answers = []
        for weights in (second, first):
            model.update_weights(weights, all=True)
            model.swap_weights()
            answers.append(model(*inputs).numpy())
        stop, counts, torn = threading.Event(), [[0, 0] for _ in range(4)], []

        def calls(k, model=model, stop=stop, counts=counts, answers=answers, torn=torn):
            while not stop.is_set():
                got = model(*inputs).numpy()
                which = [j for j, a in enumerate(answers) if np.array_equal(got, a)]
                if len(which) == 1:
                    counts[k][which[0]] += 1
                else:
                    torn.append(k)

        def swaps(k, model=model, stop=stop, first=first, second=second):
            try:
                for n in range(1000):
                    model.update_weights(first if n % 2 else second, all=True)
                    model.swap_weights()
            finally:
                stop.set()

        start = time.monotonic()
        raised = in_threads(5, lambda k: swaps(k) if k == 4 else calls(k))
        took, total = time.monotonic() - start, [sum(c[j] for c in counts) for j in (0, 1)]
        title = f"1,000 swaps, 4 threads, {'graphs' if graphs else 'plain'}"
        say(f"{title}: {total[0]} and {total[1]} answers in {took:.1f} s", not raised and not torn and min(total) > 0, (raised[:2], len(torn)))


def step_graphs(folder, device):
    """CUDA graphs give what plain calls give, bit by bit, at several sizes."""
    import numpy as np

    for name in (*MODELS, "residual", "transformer_half"):
        for kind in ("h100", "h100_alone"):
            try:
                plain, graphs = load(folder, name, device, kind), load(folder, name, device, kind, cuda_graphs=True)
            except Exception as error:  # noqa: BLE001
                if "cublas" in str(error).lower():
                    print(f"SKIP  graphs: {name} {kind}: no cuBLAS", flush=True)
                    continue
                raise
            for round in range(2):
                for k in range(3 if name == "rows" else 1):
                    inputs, _ = case(folder, name, k)
                    want = [o.numpy() for o in flat(plain(*inputs))]
                    same = True
                    for j in range(5):
                        changed = [x if x.dtype.kind == "i" else (x + np.float32(j)).astype(x.dtype) for x in inputs]
                        want = [o.numpy() for o in flat(plain(*changed))]
                        got = [o.numpy() for o in flat(graphs(*changed))]
                        same &= all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, want))
                    say(f"graphs: {name}.{k} {kind}, round {round}", same, "other results than plain calls")


def step_state(folder, device):
    """A key-value cache on the device, and random numbers."""
    import numpy as np

    calls = read(os.path.join(folder, "cached.calls"))
    count = len(calls) // 2
    for graphs in (False, True):
        title = "graphs" if graphs else "plain"
        model = load(folder, "cached", device, cuda_graphs=graphs)
        errors = [off(model(calls[f"in{k}"]).numpy(), calls[f"out{k}"]) for k in range(count)]
        say(f"a key-value cache over {count} calls, {title}", max(errors) <= 1e-4, f"errors {errors}")
        cache = model.weights()
        say(f"the cache's position, {title}", cache["position"].tolist() == [count], cache["position"])
        model.update_weights({"out.bias": cache["out.bias"] + 1})
        model.swap_weights()
        say(f"the cache stays over a swap, {title}", np.array_equal(model.weights()["keys"], cache["keys"]))
        other = load(folder, "cached", device, cuda_graphs=graphs)
        say(f"another instance has a cache of its own, {title}", off(other(calls["in0"]).numpy(), calls["out0"]) <= 1e-4)

        x = np.ones((4, 1000), np.float32)
        noise, cpu = load(folder, "noise", device, cuda_graphs=graphs, seed=7), load(folder, "noise", "cpu", "h100", seed=7)
        draws, same = [], True
        for _ in range(5):
            got, want = [o.numpy() for o in noise(x)], cpu(x)
            same &= all(np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(got, want))
            draws.append(got[0])
        say(f"random numbers are those of the CPU, {title}", same, "other numbers")
        say(f"each call draws others, {title}", all(not np.array_equal(a, b) for a, b in zip(draws, draws[1:])))
        noise.set_seed(7)
        say(f"the seed decides them, {title}", np.array_equal(noise(x)[0].numpy(), draws[0]))


def step_latency(folder, device):
    """Latencies of each way: host to host, and on the device on a stream."""
    import numpy as np

    try:
        import torch
    except ImportError:
        torch = None
    print("      model, way: milliseconds a call (best of 20 rounds)")
    for name in MODELS:
        inputs, _ = case(folder, name)
        for graphs in (False, True):
            model = load(folder, name, device, cuda_graphs=graphs)

            def best(call, wait=lambda: None):
                for _ in range(10):
                    call()
                wait()
                times = []
                for _ in range(20):
                    start = time.perf_counter()
                    for _ in range(20):
                        call()
                    wait()
                    times.append((time.perf_counter() - start) / 20 * 1e3)
                return min(times)

            way = "graphs" if graphs else "plain"
            arrays = [np.zeros_like(o.numpy()) for o in flat(model(*inputs))]
            print(f"TIME  {name}, {way}, host to host: {best(lambda: model(*inputs, out=arrays)):.4f}", flush=True)
            if torch is None:
                continue
            given, here = [torch.tensor(x, device=device) for x in inputs], torch.cuda.current_stream()
            into = [torch.tensor(a, device=device) for a in arrays]
            wait = torch.cuda.synchronize
            print(f"TIME  {name}, {way}, device, new outputs: {best(lambda: model(*given, stream=here), wait):.4f}", flush=True)
            print(f"TIME  {name}, {way}, device, into tensors: {best(lambda: model(*given, out=into, stream=here), wait):.4f}", flush=True)


def run(folder, device, environment):
    """Runs all steps; gives the number that failed."""
    folder, wrong = os.path.abspath(folder), 0
    # Steps run in this interpreter, with the package of the folder.
    environment = os.environ | {"PYTHONPATH": folder, "LD_LIBRARY_PATH": environment["LD_LIBRARY_PATH"]}
    command = [os.path.join(folder, "gpu_embed_check"), os.path.join(folder, "digits.h100_alone.inrush"), device]
    raw = [os.path.join(folder, f"digits.{kind}.raw") for kind in ("inputs", "expect")]
    steps = [("C", [*command, *raw, "1e-4"])]
    steps += [(s, [sys.executable, os.path.join(folder, "gpu_embed_check.py"), s, folder, device]) for s in STEPS]
    for name, command in steps:
        try:
            status = subprocess.run(command, env=environment, timeout=300).returncode
        except subprocess.TimeoutExpired:
            status = "none after 300 s"
        wrong += status != 0
        print(f"{'FAIL' if status else 'PASS'}  step {name}: status {status}", flush=True)
    return wrong


def main():
    step, folder, device = sys.argv[1:]
    {name: globals()[f"step_{name}"] for name in STEPS}[step](folder, device)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
