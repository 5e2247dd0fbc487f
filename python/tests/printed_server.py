"""Calls printed files in a process that has no inrush. Run by `test_source_parts.py`.

usage: printed_server.py [SHIMS | -] [PRELUDE ...]

SHIMS are additions to Triton's interpreter; PRELUDE are files that run first, such as operators of the user's. Each line of the input
is JSON `{"file", "call"}`: a printed file, and one with its inputs. Answers with a line `{"error"}`; without an error the outputs and
the inputs after the call are in the second file. `{"file", "weights"}` gives a file's model other weights.
"""

import importlib.util
import json
import sys

# An import of it fails from here on.
sys.modules["inrush"] = None

import torch


def load(path):
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(module, request):
    if "weights" in request:
        module.load_weights(torch.load(request["weights"]))
        if hasattr(module, "load"):
            module.load()
        return
    inputs = torch.load(request["call"], weights_only=False)
    outputs = list(module.call(*inputs))
    torch.save((outputs, inputs), request["call"])


def main():
    shims, *preludes = sys.argv[1:] or ["-"]
    if shims != "-":
        shims = load(shims)
        shims.patch()
    for path in preludes:
        load(path)
    modules = {}
    for line in sys.stdin:
        request = json.loads(line)
        error = None
        try:
            path = request["file"]
            if path not in modules:
                modules[path] = load(path)
                if shims != "-":
                    shims.supply(modules[path])
            answer(modules[path], request)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        print(json.dumps({"error": error}), flush=True)


main()
