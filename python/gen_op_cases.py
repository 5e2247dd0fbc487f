"""Writes the operator cases of the test-suite: small `.pt2` archives with inputs, expected outputs, and index.json.

usage: gen_op_cases.py OUT_DIR [--family NAME ...] [--only SUBSTRING] [--split] [--force]

Does nothing when OUT_DIR already holds the cases of this very generator. `--split` writes every sub-case of the selected
groups as an archive of its own, to see which one breaks a group.

index.json is {"fingerprint", "torch", "cases": [...]}; a case is
  name, family, tags, ops      ops: the operators in its graph
  archive                      file name in OUT_DIR
  inputs                       the flat leaves of (args, kwargs): kind tensor (dtype, sizes, strides), int, float, bool, str, none (value)
  stateful                     true: the runs happen in order on one loaded model
  runs                         [{inputs, expect, scalars?, outputs}]; `inputs` and `expect` are safetensors files whose keys are
                               positions in the flat leaves (a leaf that is no tensor has no key); inputs are stored contiguous,
                               the case's `inputs` gives the strides to lay them out with (of the first run)
  outputs                      per flat leaf of the result: name, kind, dtype, sizes, strides, and for tensors the tolerance:
                               {"kind": "exact"} | {"kind": "close", rtol, atol} | {"kind": "norm", max}; NaN equals NaN
  reject                       [{inputs, why}]: inputs that must be refused with an error
Further keys of an expect file: `refN`, output N computed in float64 (an element, or with `norm` the output, is right when it
is within the tolerance of either); `inputN`, what input N holds after the call if the call changed it; `buffer:NAME`, likewise a buffer.
"""

import argparse
import hashlib
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def fingerprint(options):
    """Of the generator's sources and pinned packages: another value means other cases."""
    digest = hashlib.sha256(repr((options.family, options.only, options.split)).encode())
    folder = os.path.join(HERE, "op_cases")
    for path in [__file__, os.path.join(HERE, "requirements.txt")] + [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.endswith(".py")]:
        with open(path, "rb") as handle:
            digest.update(handle.read())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--family", action="append", help="only these families (repeatable)")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--split", action="store_true", help="one archive for each sub-case")
    parser.add_argument("--force", action="store_true", help="write even when up to date")
    options = parser.parse_args()
    index = os.path.join(options.out, "index.json")
    mark = fingerprint(options)
    try:
        with open(index, encoding="utf-8") as handle:
            if json.load(handle)["fingerprint"] == mark and not options.force:
                return 0
    except (OSError, ValueError, KeyError):
        pass

    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    start = time.perf_counter()
    import torch

    from op_cases import FAMILIES, collect
    from op_cases.core import Suite, split, write_case

    torch.manual_seed(0)
    suite = Suite()
    collect(suite, options.family or FAMILIES)
    cases = [case for case in suite.cases if options.only in case.name]
    if options.split:
        cases = [part for case in cases for part in split(case)]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    os.makedirs(options.out, exist_ok=True)
    for name in os.listdir(options.out):
        if name == "index.json" or name.endswith((".pt2", ".safetensors")):
            os.remove(os.path.join(options.out, name))
    entries = []
    for done, case in enumerate(cases):
        try:
            entries.append(write_case(case, options.out))
        except Exception as error:
            raise RuntimeError(f"case {case.family}/{case.name} (--split shows which part)") from error
        if sys.stderr.isatty():
            print(f"\r{done + 1}/{len(cases)} cases", end="", file=sys.stderr)
    with open(index + ".new", "w", encoding="utf-8") as handle:
        json.dump({"fingerprint": mark, "torch": torch.__version__.split("+")[0], "cases": entries}, handle, indent=1)
    os.replace(index + ".new", index)
    outputs = sum(len(run["outputs"]) for entry in entries for run in entry["runs"])
    ops = {op for entry in entries for op in entry["ops"]}
    print(f"{len(entries)} archives, {outputs} outputs, {len(ops)} operators, {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
