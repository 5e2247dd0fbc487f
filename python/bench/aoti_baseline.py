"""What PyTorch needs for the same archives: AOTInductor's compile time and latency, eager's latency and peak memory.

usage: aoti_baseline.py [options] ARCHIVE.pt2 ...          one JSON line for each archive, on stdout
       aoti_baseline.py --serve [options] ARCHIVE.pt2      the same line, then answers timing requests on stdin

Beside ARCHIVE.pt2 lie ARCHIVE.inputs.safetensors and, to check results, ARCHIVE.expect.safetensors (keys "0", "1", ...).

With --serve every line `aoti SECONDS` or `eager SECONDS` on stdin is answered by {"backend", "median_ms", "min_ms", "n"}:
the caller can take turns with another backend, which on a shared machine is the only fair comparison. The end of stdin ends it.

Each archive is measured in a process of its own, with an empty Inductor cache. compile_s is the call of
`aoti_compile_and_package` alone, compile_cpu_s the processor time that it and its compilers took; import_s, read_s (`torch.export.load`) and load_s (of the built package) are given apart.

Peak memory of an eager call, weights and inputs aside, outputs included, is found in two ways:
  alloc_peak_bytes   the running sum of PyTorch's own allocations and releases, from its profiler; scratch that oneDNN and MKL
                     allocate by themselves does not appear
  rss_peak_bytes     growth of the resident set at its highest, which counts everything, to the page (Linux; else null)
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# Where memory is measured: freed memory goes back to the system at once, so that the resident set follows the live data.
# It makes every allocation slow, so latency is measured in another process, without it.
RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as handle:
            fields = dict(line.split(":", 1) for line in handle if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        wide = [flag for flag in ("avx2", "avx512f") if flag in fields.get("flags", "").split()]
        return f"{fields.get('model name', platform.processor())} ({', '.join(wide) or platform.machine()})"
    except OSError:
        return platform.processor() or platform.machine()


def load_average():
    """How busy the machine was just before: figures taken above about 0.5 say little."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


class Archive:
    """An exported program with its inputs."""

    def __init__(self, path, inputs=None):
        import torch
        from safetensors.torch import load_file

        stem = path.removesuffix(".pt2")
        start = time.perf_counter()
        self.program = torch.export.load(path)
        self.read_s = time.perf_counter() - start
        named = load_file(inputs or stem + ".inputs.safetensors")
        self.inputs = [named[str(i)] for i in range(len(named))]
        expect = stem + ".expect.safetensors"
        self.expect = load_file(expect) if inputs is None and os.path.exists(expect) else {}
        self.path = path

    def error(self, outputs):
        """The largest error of any output relative to the norm of what is expected, or null where nothing is."""
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        pairs = [(out.double(), self.expect[str(i)].double()) for i, out in enumerate(outputs) if str(i) in self.expect]
        return max(((a - b).norm() / b.norm()).item() for a, b in pairs) if pairs else None


def timed(call, inputs, seconds):
    """Median and least of the latency over about that many seconds, after a warm-up, at least 5 calls."""
    import torch

    with torch.no_grad():
        for _ in range(3):
            call(*inputs)
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            call(*inputs)
            times.append(time.perf_counter() - start)
    return {"median_ms": round(statistics.median(times) * 1e3, 4), "min_ms": round(min(times) * 1e3, 4), "n": len(times)}


def alloc_peak(call, inputs):
    import torch
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        call(*inputs)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            kept = call(*inputs)
    del kept
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def status_kb(field):
    with open("/proc/self/status", encoding="ascii") as handle:
        for line in handle:
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return None


def rss_peak(call, inputs):
    """The highest resident set during a call over that before it; a write of 5 to clear_refs resets the kernel's record."""
    import ctypes
    import gc

    import torch

    try:
        with torch.no_grad():
            call(*inputs)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/clear_refs", "w", encoding="ascii") as handle:
                handle.write("5")
            before = status_kb("VmRSS")
            kept = call(*inputs)
            peak = status_kb("VmHWM")
            del kept
    except (OSError, AttributeError):
        return None
    return max(0, peak - before) * 1024


def cpu_seconds():
    """Processor time of this process and of the compilers that it started: on a busy machine the steadier figure."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def package_path(folder, path, threads):
    """Where the built package of this archive is kept between runs: named by content, PyTorch, machine and threads."""
    import torch

    digest = hashlib.sha256(f"{torch.__version__} {cpu_name()} {threads}".encode())
    with open(path, "rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return os.path.join(folder, f"{os.path.basename(path).removesuffix('.pt2')}-{digest.hexdigest()[:16]}.pt2")


def compile_package(archive, options, row):
    """Compiles with AOTInductor, or takes the package kept from an earlier run with the compile time of that run."""
    import torch

    kept = options.keep and package_path(options.keep, archive.path, options.threads)
    if kept and os.path.exists(kept + ".json"):
        with open(kept + ".json", encoding="utf-8") as handle:
            row.update(json.load(handle), compile_kept=True)
        package = kept
    else:
        package = kept or os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "package.pt2")
        start, used = time.perf_counter(), cpu_seconds()
        torch._inductor.aoti_compile_and_package(archive.program, package_path=package)
        row.update(
            compile_s=round(time.perf_counter() - start, 3), compile_cpu_s=round(cpu_seconds() - used, 3), compile_kept=False
        )
        if kept:
            with open(kept + ".json", "w", encoding="utf-8") as handle:
                json.dump({key: row[key] for key in ("compile_s", "compile_cpu_s")}, handle)
    start = time.perf_counter()
    model = torch._inductor.aoti_load_package(package)
    row["load_s"] = round(time.perf_counter() - start, 3)
    return model


def memory_in_another_process(path, options):
    flags = ["--threads", str(options.threads)] + (["--inputs", options.inputs] if options.inputs else [])
    command = [sys.executable, os.path.abspath(__file__), "--child", "memory", *flags, path]
    done = subprocess.run(command, env=dict(os.environ, **RETURN_MEMORY), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def quiet():
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


def measure_memory(path, options):
    """The child process that looks at eager's memory alone."""
    quiet()
    import torch

    torch.set_num_threads(options.threads)
    archive = Archive(path, options.inputs)
    call = archive.program.module(check_guards=False)
    print(json.dumps({"rss_peak_bytes": rss_peak(call, archive.inputs), "alloc_peak_bytes": alloc_peak(call, archive.inputs)}))
    return 0


def measure(path, options):
    """The child process: one archive, measured; then requests from stdin when serving."""
    quiet()
    start = time.perf_counter()
    import torch

    row = {"archive": path, "torch": torch.__version__, "threads": options.threads, "cpu": cpu_name(), "load_before": load_average(), "import_s": round(time.perf_counter() - start, 3)}
    torch.set_num_threads(options.threads)
    archive = Archive(path, options.inputs)
    row["read_s"] = round(archive.read_s, 3)
    calls = {}
    if "eager" in options.backends:
        calls["eager"] = archive.program.module(check_guards=False)
    if "aoti" in options.backends:
        calls["aoti"] = compile_package(archive, options, row)
    for name, call in calls.items():
        with torch.no_grad():
            row[name] = {"rel_err": archive.error(call(*archive.inputs))}
    if "eager" in calls:
        row["eager"].update(memory_in_another_process(path, options))
    # In turns, so that a busy spell of the machine meets all alike.
    rounds = {name: [] for name in calls}
    for _ in range(3 if options.seconds > 0 else 0):
        for name, call in calls.items():
            rounds[name].append(timed(call, archive.inputs, options.seconds / 3))
    for name, done in rounds.items():
        if done:
            row[name].update(
                median_ms=statistics.median(r["median_ms"] for r in done), min_ms=min(r["min_ms"] for r in done), n=sum(r["n"] for r in done)
            )
    print(json.dumps(row), flush=True)
    if options.serve:
        for line in sys.stdin:
            try:
                name, seconds = line.split()
                answer = {"backend": name, **timed(calls[name], archive.inputs, float(seconds))}
            except (ValueError, KeyError):
                answer = {"error": f"expected `aoti SECONDS` or `eager SECONDS`, got {line.strip()!r}"}
            print(json.dumps(answer), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archives", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="timing per backend (0: no timing)")
    parser.add_argument("--backends", default="eager,aoti", type=lambda text: text.split(","))
    parser.add_argument("--inputs", help="another inputs file than the one beside the archive")
    parser.add_argument("--keep", metavar="DIR", help="keep built packages here, and take them from here")
    parser.add_argument("--serve", action="store_true", help="answer timing requests on stdin afterwards (one archive)")
    parser.add_argument("--child", choices=("all", "memory"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return (measure_memory if options.child == "memory" else measure)(options.archives[0], options)
    if options.serve and len(options.archives) != 1:
        parser.error("--serve takes one archive")
    missing = [path for path in options.archives if not os.path.exists(path)]
    if missing:
        parser.error("no such file: " + ", ".join(missing))
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    flags = [a for a in sys.argv[1:] if a not in options.archives]
    failed = 0
    for path in options.archives:
        cache = tempfile.mkdtemp(prefix="aoti-cache-")
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, OMP_NUM_THREADS=str(options.threads))
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "--child", "all", *flags, path], env=environment)
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        if done.returncode != 0:
            print(json.dumps({"archive": path, "error": f"exit code {done.returncode}; messages on stderr"}), flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
