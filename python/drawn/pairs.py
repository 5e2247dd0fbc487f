"""Programs in two processes: the second one finds the captures and graphs that the first one kept, and calls with other aliases
first."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import torch

from drawn.attempt import Outcome, shown
from drawn.check import calls, check, is_wrong, kind_of, shorter
from drawn.draw import draw
from drawn.known import known
from drawn.program import Built, Program, Variant

# Programs that share a pair of processes, whose imports cost more than the programs.
GROUP = 10
PATIENCE = 120
LIMIT = 600


def attempt_pair(seeds: list[int], device: str, expect_known: bool = True) -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs = [dataclasses.replace(draw(seed), resets=False) for seed in seeds]
        try:
            found = run_pair(programs, device)
        except Exception as error:
            return [Outcome(seeds[0], f"two processes from seed {seeds[0]} to {seeds[-1]}: {str(error)[-900:]}")]
        return [outcome(p, first, second, device, expect_known) for p, first, second in zip(programs, *found)]


def outcome(program: Program, first: dict[str, Any], second: dict[str, Any], device: str, expect_known: bool) -> Outcome:
    features = [*program.features, "two processes", *(["capture found again"] if second["restored"] else [])]
    if program.variants and second["restored"]:
        features.append("capture found again, other call first")
    found = first["verdict"] if is_wrong(first["verdict"]) else second["verdict"]
    if expect_known and is_wrong(found) and (reason := known(program, found, device)):
        return Outcome(program.seed, found, features, known=reason)
    if is_wrong(first["verdict"]) or not is_wrong(second["verdict"]):
        verdict = first["verdict"]
        if not is_wrong(verdict):
            return Outcome(program.seed, verdict, features)
        short = shorter(program, lambda p: kind_of(check(p, device)) == kind_of(verdict), time.monotonic() + PATIENCE)
        final = check(short, device)
        return Outcome(program.seed, final if is_wrong(final) else verdict, features, shown(short, device))

    def is_faulty(p: Program) -> bool:
        one, two = run_pair([p], device)
        return not is_wrong(one[0]["verdict"]) and kind_of(two[0]["verdict"]) == kind_of(second["verdict"])

    short = shorter(program, is_faulty, time.monotonic() + PATIENCE)
    return Outcome(program.seed, f"second process: {second['verdict']}", features, shown(short, device))


def run_pair(programs: list[Program], device: str) -> list[list[dict[str, Any]]]:
    """What each of two processes says of the programs."""
    with tempfile.TemporaryDirectory(prefix="inrush-pair-") as name:
        folder = pathlib.Path(name)
        (folder / "programs.pickle").write_bytes(pickle.dumps(programs))
        for p in programs:
            (folder / f"drawn_{p.seed}.py").write_text(p.text(device))
        # Files that change while a process runs are not trusted; a process is as old as the clock's last tick.
        time.sleep(0.2)
        env = {**os.environ, "INRUSH_CACHE_DIR": str(folder / "cache"), "INRUSH_WARM_START": "1"}
        found = []
        for part in ("first", "second"):
            command = [sys.executable, str(pathlib.Path(__file__).parent), "--session", name, "--part", part, "--device", device]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
            if done.returncode:
                raise RuntimeError(f"the {part} process ended with {done.returncode}: {done.stderr[-600:]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
        return found


def session(folder: str, part: str, device: str) -> None:
    """One of the two processes: prints what became of each program."""
    import inrush

    programs: list[Program] = pickle.loads(pathlib.Path(folder, "programs.pickle").read_bytes())
    found = []
    for p in programs:
        variants = calls(p)[1:] if part == "first" else [*reversed(p.variants), Variant()]
        before = restored(inrush.captures())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = check(p, device, variants, lambda name, p=p: load(folder, p, name))
        found.append({"verdict": verdict, "restored": restored(inrush.captures()) - before})
    print(json.dumps(found))


def restored(captures: dict[str, dict[str, int]]) -> int:
    return sum(captures.get("restored", {}).values())


def load(folder: str, program: Program, name: str) -> Built:
    """The program from its file, as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"{name}_{program.seed}", os.path.join(folder, f"drawn_{program.seed}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return Built.of(vars(module), program)
