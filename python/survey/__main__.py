"""Models that people use, exported, compiled ahead of time, run and compared with eager and with a run in float64.

usage: survey [--some N] [--seed S] [--compile [--train] [--dynamic] | --captures] [--size 96] [--device cpu] [--workers W]
              [--patience S] [NAME ...]

Needs torchvision, timm and transformers. Weights are random, sizes small where the architecture allows. For each model a line: the
verdict, the largest error over all results relative to the tensor's norm, eager's, compile time, kernels; then what was refused,
by reason. A model that is further from float64 than eager by much is run with other inputs: `far` where one of them is right,
since a value that rounds to the other side of a step moves a result; else `wrong`. --some takes that many models at
random, those of INRUSH_SEED, else other ones every day, unless --seed is given. --compile goes through torch.compile instead, with times, with --train
gradients and running statistics too. --captures calls each compiled model in two processes: what the first one captured the
second has to find, `not kept` says why it does not.

Exit code 1 when a model was wrong, failed by an error that is no refusal, crashed, or took longer than --patience; with --captures
also when fewer than 95 % were found.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict

# The folder of this package last: there lies the source of `inrush`, without its native half.
sys.path[0:1] = []
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from survey.row import FAULTS, Row

# Models that take longest to export or to run; all of them are left to runs of all models.
LARGE = (
    "beit_base_patch16_224 dm_nfnet_f0 naflexvit_base_patch16_gap samvit_base_patch16_224 mobilenetv5_base vitamin_small_224 mvit "
    "owlvit groupvit clipseg rt_detr canine whisper maxvit swin3d raft eca_nfnet_l0 hrnet_w18_small s3d volo_d1_224"
).split()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models; all of them by default")
    parser.add_argument("--some", type=int, metavar="N", help="take so many models at random")
    parser.add_argument("--seed", type=int, help="of --some; by default the day")
    parser.add_argument("--compile", action="store_true", help="through torch.compile instead of ahead of time")
    parser.add_argument("--train", action="store_true", help="with --compile: gradients of a training step")
    parser.add_argument("--dynamic", action="store_true", help="with --compile: sizes are symbols")
    parser.add_argument("--captures", action="store_true", help="whether a second process finds what a first one captured")
    parser.add_argument("--size", type=int, help="height and width of the images for models of timm")
    parser.add_argument("--device", default="cpu", help="with --compile: where models run")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--patience", type=int, default=300, help="seconds that a model may take")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def serve(options: argparse.Namespace) -> None:
    """Answers names on stdin with rows."""
    from survey.ahead import ahead, in_a_line
    from survey.captures import captured
    from survey.compiled import compiled

    warnings.filterwarnings("ignore")
    run = captured if options.captures else compiled if options.compile or options.train else ahead
    # What models print is not for the one who reads rows.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name = line.strip()
        try:
            row = run(name, options)
        except Exception as problem:
            row = Row(name, "failed", in_a_line(problem))
        print(json.dumps(vars(row)), file=answers, flush=True)


class Server:
    """A process that runs models one after the other, and is replaced when it dies or hangs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> Row:
        if self.process is None:
            command = [sys.executable, os.path.dirname(os.path.abspath(__file__)), "--serve", *sys.argv[1:]]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        process = self.process
        assert process.stdin and process.stdout
        is_late = threading.Event()
        timer = threading.Timer(self.options.patience, lambda: (is_late.set(), process.kill()))
        timer.start()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return Row(**json.loads(answer))
        self.process = None
        code = process.wait()
        if is_late.is_set():
            return Row(name, "slow", f"took longer than {self.options.patience} s")
        return Row(name, "crashed", f"the process ended with {code}")

    def end(self) -> None:
        if self.process is not None:
            self.process.communicate()


def chosen(options: argparse.Namespace) -> list[str]:
    from survey.models import NAMES

    unknown = [n for n in options.names if n not in NAMES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; --list prints the names")
    if options.some is None:
        return list(options.names or NAMES)
    seed = options.seed if options.seed is not None else int(os.environ.get("INRUSH_SEED") or time.time() // 86_400)
    print(f"models of seed {seed}: --some {options.some} --seed {seed} repeats them", flush=True)
    names = [n for n in options.names or NAMES if n not in LARGE]
    return random.Random(seed).sample(names, min(options.some, len(names)))


def survey(options: argparse.Namespace, names: list[str]) -> list[Row]:
    """The rows, each printed when it is there."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    rows: list[Row] = []

    def work() -> None:
        from survey.captures import together

        servers = [Server(options) for _ in range(2 if options.captures else 1)]
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            row = servers[0].run(name)
            if options.captures:
                row = together(row, servers[1].run(name))
            rows.append(row)
            print(f"{row.verdict:9} {row.name}: {row.text}", flush=True)
        for server in servers:
            server.end()

    threads = [threading.Thread(target=work) for _ in range(options.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


def main() -> int:
    options = arguments()
    if options.serve:
        serve(options)
        return 0
    names = chosen(options)
    if options.list:
        print("\n".join(names))
        return 0
    rows = survey(options, names)
    for verdict in ("refused", "no export", "not kept"):
        reasons: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row.verdict == verdict:
                reasons[row.reason].append(row.name)
        for reason, models in sorted(reasons.items(), key=lambda r: (-len(r[1]), r[0])):
            print(f"{verdict}, {len(models)}: {reason}: {', '.join(sorted(models))}")
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        counts[row.verdict] += 1
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    if options.captures:
        from survey.captures import SHARE

        print(f"found by a second process: {counts['found'] / len(rows):.1%} of {len(rows)} models")
        return int(counts["found"] < SHARE * len(rows) or any(row.verdict in FAULTS for row in rows))
    return int(any(row.verdict in FAULTS for row in rows))


if __name__ == "__main__":
    # Nothing of the user's cache is read or filled.
    with tempfile.TemporaryDirectory(prefix="inrush-survey-") as folder:
        os.environ.setdefault("INRUSH_CACHE_DIR", folder)
        code = main()
    sys.exit(code)
