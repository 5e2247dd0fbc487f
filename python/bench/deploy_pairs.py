"""Compares the latency of packages with ONNX Runtime and OpenVINO on a CPU, in float32.

usage: deploy_pairs.py INRUSH ZOO_FOLDER MODEL...      THREADS=2 ROUNDS=20 SLICE=0.4 in the environment

The folder has `zoo.py` with `ZOO`: names to functions that return a model and its inputs. Each engine runs in a process of its own;
slices of SLICE seconds alternate, so that phases of a machine's clock meet all engines. Printed per model: the median of all
rounds' ratios (their time by ours), the ratio of lower quartiles, and the lower quartiles in ms.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

THREADS = int(os.environ.get("THREADS", "2"))
ROUNDS = int(os.environ.get("ROUNDS", "20"))
SLICE = float(os.environ.get("SLICE", "0.4"))


def engine(name, folder):
    """Returns a function that computes the model's first result."""
    import numpy as np

    stored = np.load(f"{folder}/inputs.npz")
    inputs = [stored[key] for key in sorted(stored.files)]
    if name == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(
            f"{folder}/m.onnx", options, providers=["CPUExecutionProvider"]
        )
        feed = {i.name: v for i, v in zip(session.get_inputs(), inputs)}
        return lambda: session.run(None, feed)[0]
    if name == "openvino":
        import openvino

        core = openvino.Core()
        core.set_property(
            "CPU", {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
        )
        model = core.compile_model(f"{folder}/m.onnx", "CPU", {"PERFORMANCE_HINT": "LATENCY"})
        request = model.create_infer_request()

        def infer():
            request.infer(inputs)
            return request.get_output_tensor(0).data

        return infer
    import inrush
    import torch

    torch.set_num_threads(THREADS)
    package = inrush.load(f"{folder}/m.inrush")
    tensors = tuple(torch.from_numpy(v) for v in inputs)

    def call():
        out = package(*tensors)
        return (out if isinstance(out, torch.Tensor) else out[0]).numpy()

    return call


def serve(name, folder):
    """Measures a slice for each line of stdin."""
    import numpy as np

    call = engine(name, folder)
    reference = np.load(f"{folder}/reference.npy")
    result = call().astype(np.float64)
    error = float(np.linalg.norm(result - reference) / np.linalg.norm(reference))
    print(json.dumps(error), flush=True)
    for _ in sys.stdin:
        call()
        times, end = [], time.perf_counter() + SLICE
        while time.perf_counter() < end or len(times) < 3:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        print(json.dumps(statistics.median(times) * 1e3), flush=True)


def prepare(inrush, name, folder):
    import numpy as np
    import torch
    import zoo

    torch.manual_seed(0)
    model, inputs = zoo.ZOO[name]()
    with torch.no_grad():
        reference = model(*inputs)
    reference = reference if isinstance(reference, torch.Tensor) else reference[0]
    np.save(f"{folder}/reference.npy", reference.double().numpy())
    np.savez(f"{folder}/inputs.npz", **{f"{i:02}": v.numpy() for i, v in enumerate(inputs)})
    torch.export.save(torch.export.export(model, inputs), f"{folder}/m.pt2")
    subprocess.run([inrush, "compile", f"{folder}/m.pt2", "-o", f"{folder}/m.inrush"], check=True)
    torch.onnx.export(model, inputs, f"{folder}/m.onnx", dynamo=True, verbose=False)


def measure(folder):
    """Returns times by engine and round, and errors."""
    names = ("inrush", "onnxruntime", "openvino")
    processes = {}
    for name in names:
        processes[name] = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve", name, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(os.environ, OMP_NUM_THREADS=str(THREADS)),
        )
    errors = {name: json.loads(p.stdout.readline()) for name, p in processes.items()}
    times = {name: [] for name in names}
    for round_ in range(ROUNDS):
        # The order changes, so that none always follows the same one.
        for i in range(len(names)):
            name = names[(round_ + i) % len(names)]
            time.sleep(0.02)
            processes[name].stdin.write("\n")
            processes[name].stdin.flush()
            times[name].append(json.loads(processes[name].stdout.readline()))
    for p in processes.values():
        p.stdin.close()
        p.wait()
    return times, errors


def main(inrush, zoo, names):
    sys.path.insert(0, zoo)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            prepare(inrush, name, folder)
            times, errors = measure(folder)
        low = {k: statistics.quantiles(v, n=4)[0] for k, v in times.items()}
        row = {"model": name, "threads": THREADS, "ms": {k: round(v, 3) for k, v in low.items()}}
        for other in ("onnxruntime", "openvino"):
            pairs = [b / a for a, b in zip(times["inrush"], times[other])]
            row[other] = {
                "median of pairs": round(statistics.median(pairs), 2),
                "quartiles": round(low[other] / low["inrush"], 2),
                "best": round(min(times[other]) / min(times["inrush"]), 2),
            }
        row["errors"] = {k: float(f"{v:.1e}") for k, v in errors.items()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
