"""Builds Triton kernels: one JSON request a line, one JSON answer a line, over sockets.

    python worker.py SOCKET

The process that is started is a fork server. It connects to SOCKET, imports Triton, says {"ready": release} and builds a first
kernel that no request asks for, since the first build of a process takes several times as long as the others. Then it answers requests:

    {"fork": socket}     {"pid"}: a worker, which connects to that socket
    {"end": pid}         {"status"}: that worker's exit status, negative where a signal ended it; it is killed if it does not end

A worker's request is {"id", "source": file, "function", "signature": [[name, type]], "constants": {name: value},
"divisible": [position], "options": {...}, "target": [backend, arch, warp], "out": folder, "ptx": bool}. The answer is {"id",
"binary": file, "metadata": {...}, "ptx": file or false} or {"id", "error": text}; "ptx" is there if the request asks for it, and
false for back ends without PTX. The binary stands in `out`, its name begins with the request's id, which is the
digest of all that it depends on; it is written to a temporary name and renamed, so that workers may share the folder. With
"missing": true the error is not the kernel's: this Triton cannot build for the target at all.

Nothing else is written to the sockets: Triton and ptxas write to stdout and stderr as they like. When the server's socket is
closed, the workers end with it.
"""

import gc
import hashlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time

# What a launcher must know; a build that lacks one of these is refused, never defaulted.
NEEDED = ("name", "num_warps", "num_ctas", "shared")
# What only some back ends report; absent means that the binary has no such thing.
OPTIONAL = (
    "global_scratch_size",
    "global_scratch_align",
    "profile_scratch_size",
    "profile_scratch_align",
    "tensordesc_meta",
    "tmem_size",
    "launch_cooperative_grid",
    "launch_pdl",
    "warp_size",
)


# By target: the back end's folder, the form of its binaries, and the packages that have it.
BACKENDS = {
    "cuda": ("nvidia", "cubin", "`triton`"),
    "hip": ("amd", "hsaco", "`triton`, or `triton-rocm` with PyTorch for ROCm,"),
    "xpu": ("intel", "spv", "`triton-xpu`, which comes with PyTorch for Intel GPUs,"),
}
# Intel's back end takes properties of a device in the place of an architecture: the version of the instruction set as SYCL counts
# it (major, minor and revision of the graphics core), and which instructions there are.
XPU = {
    "pvc": {"architecture": 13136561920, "sub_group_sizes": [16, 32], "has_subgroup_2d_block_io": True, "has_fp64": True},
    "bmg": {"architecture": 21479031808, "sub_group_sizes": [16, 32], "has_subgroup_2d_block_io": True, "has_fp64": True},
    "dg2": {"architecture": 13115590656, "sub_group_sizes": [8, 16, 32], "has_subgroup_2d_block_io": False, "has_fp64": False},
}


class MissingBackend(Exception):
    """This Triton has no back end for the target."""


def target_of(backend, arch, warp):
    """Returns Triton's name of a target, and the form of its binaries."""
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    folder, extension, packages = BACKENDS[backend]
    if folder not in backends:
        found = ", ".join(sorted(backends)) or "none"
        text = f"Triton {triton.__version__} has no back end `{folder}` for target `{backend}` (there is: {found}); the package {packages} has it"
        raise MissingBackend(text)
    if backend == "xpu":
        name = arch
        common = {"has_subgroup_matrix_multiply_accumulate": True, "has_bfloat16_conversions": True, "has_fp16": True, "has_atomic64": True}
        limits = {"max_work_group_size": 1024, "max_num_sub_groups": 64}
        arch = common | limits | XPU[name]
        # Later releases have other names, and ask a device for what is not told.
        arch |= {"has_2d_block_io": arch["has_subgroup_2d_block_io"], "has_bfloat16_conversion": True, "arch": name, "core_clock_rate": 0}
        arch["__intel_already_queried_extensions__"] = True
        if hasattr(triton.knobs, "intel"):
            triton.knobs.intel.device_arch = name
    return GPUTarget(backend, arch, warp), extension


def place(folder, name, data):
    """Writes a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        os.unlink(temporary)
        raise


def build(request):
    """One kernel; gives the path of the binary, the metadata, and the path of the PTX if the request asks for it."""
    import triton
    from triton.compiler import ASTSource

    key, folder = request["id"], request["out"]
    os.makedirs(folder, exist_ok=True)
    backend, arch, warp = request["target"]
    target, extension = target_of(backend, arch, warp)
    spec = importlib.util.spec_from_file_location(f"inrush_kernel_{key}", request["source"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, request["function"])
    signature = {name: ty for name, ty in request["signature"]}
    # Constants that are no integers stand in the source.
    constants = {**getattr(module, "CONSTANTS", {}), **request["constants"]}
    for name in constants:
        signature[name] = "constexpr"
    attrs = {(i,): [["tt.divisibility", 16]] for i in request["divisible"]}
    ast = ASTSource(function, signature, constexprs=constants, attrs=attrs)
    options = {"sanitize_overflow": False, "enable_fp_fusion": True, **request["options"]}
    with_ptx = request.get("ptx", False)
    # Forms that Triton does not store are not in its result either, and what it stored before may lack them.
    triton.knobs.compilation.store_binary_only = not with_ptx
    triton.knobs.compilation.always_compile = with_ptx
    if with_ptx:
        # Other machines have no use for the names of files of this one.
        triton.knobs.compilation.disable_line_info = True
    compiled = triton.compile(ast, target=target, options=options)
    metadata = {}
    for name in NEEDED:
        if not hasattr(compiled.metadata, name):
            raise RuntimeError(f"the build reports no `{name}`")
        metadata[name] = getattr(compiled.metadata, name)
    for name in OPTIONAL:
        if hasattr(compiled.metadata, name):
            metadata[name] = getattr(compiled.metadata, name)
    code = compiled.asm[extension]
    metadata["bytes"] = len(code)
    # Kernels that differ in names share a key: each file has the code of one of them, and stays what its metadata says.
    file = f"{key}-{hashlib.blake2b(code, digest_size=8).hexdigest()}.{extension}"
    place(folder, file, code)
    answer = {"binary": os.path.join(folder, file), "metadata": metadata}
    if with_ptx:
        answer["ptx"] = False
        if backend == "cuda":
            text = compiled.asm["ptx"].encode()
            file = f"{key}-{hashlib.blake2b(text, digest_size=8).hexdigest()}.ptx"
            place(folder, file, text)
            answer["ptx"] = os.path.join(folder, file)
    return answer


# A kernel of the kinds of statements that most have.
FIRST = """import triton
import triton.language as tl


@triton.jit
def first(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(x + at, tl.where(value > 0, tl.exp(value), value) / tl.sum(value, 0), mask=at < n)
"""


def leave_out_digest(release):
    """Triton names what it keeps after the contents of its whole installation, which take a second to read. Nothing is kept."""
    from triton.compiler import compiler
    from triton.runtime import cache

    for module in (cache, compiler):
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: release


def begin(folder):
    """Builds a kernel that no request asks for: imports and tables that the first build of a process makes are there for all workers."""
    source = os.path.join(folder, "first.py")
    with open(source, "w", encoding="utf-8") as f:
        f.write(FIRST)
    request = {"id": "first", "source": source, "function": "first", "out": folder, "target": ["cuda", 80, 32]}
    request |= {"signature": [["x", "*bf16"], ["n", "i32"]], "constants": {"BLOCK": 256}, "divisible": [0]}
    try:
        build(request | {"options": {"num_warps": 4, "num_stages": 2, "debug": False}})
    except Exception:
        # A Triton without this back end; what is asked for will tell.
        pass


def explain(error):
    """Triton's message with the line of our source that it is about."""
    lines = str(error).strip() or repr(error)
    cause = error.__cause__
    while cause is not None:
        lines += f"\n{type(cause).__name__}: {cause}"
        cause = cause.__cause__
    return f"{type(error).__name__}: {lines}"[:8000]


class Channel:
    """Lines of JSON over a socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def __iter__(self):
        return (json.loads(line) for line in self.lines if line.strip())

    def say(self, value):
        self.socket.sendall(json.dumps(value).encode() + b"\n")


def work(path):
    """A worker: builds what it is asked to, until no request is left."""
    channel = Channel(path)
    for request in channel:
        try:
            channel.say({"id": request["id"]} | build(request))
        except MissingBackend as e:
            channel.say({"id": request["id"], "error": str(e), "missing": True})
        except Exception as e:
            channel.say({"id": request["id"], "error": explain(e)})


def end(pid):
    """The exit status of a worker that is lost: dying still, or hanging."""
    for _ in range(50):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve(server):
    """Forks workers. A process that was not waited for keeps its number, so that no other process is killed."""
    workers = set()
    try:
        for request in server:
            if "end" in request:
                pid = request["end"]
                server.say({"status": end(pid) if pid in workers else None})
                workers.discard(pid)
                continue
            pid = os.fork()
            if pid == 0:
                # Who asked is to see it when the server ends.
                os.close(server.socket.detach())
                status = 1
                try:
                    work(request["fork"])
                    status = 0
                finally:
                    # Nothing of the server's is cleared away here.
                    os._exit(status)
            workers.add(pid)
            server.say({"pid": pid})
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main():
    # An interrupt at the terminal is the caller's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = Channel(sys.argv[1])
    # Triton's own cache is thrown away: the content-addressed folder is the cache.
    with tempfile.TemporaryDirectory(prefix="inrush-triton-") as scratch:
        os.environ["TRITON_CACHE_DIR"] = scratch
        os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")
        import triton

        server.say({"ready": triton.__version__})
        leave_out_digest(triton.__version__)
        # Whoever waits already is not kept waiting.
        if not select.select([server.socket], [], [], 0)[0]:
            begin(scratch)
        # What is there lies in memory that the workers share.
        gc.freeze()
        serve(server)


if __name__ == "__main__":
    main()
