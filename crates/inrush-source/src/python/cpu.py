DEVICE = torch.device("cpu")
# Bytes that addresses of kernels are multiples of.
ALIGNMENT = 1
# Work below which a second thread does not pay off, in bytes moved or their equivalent: it takes 0.1 ms to hand over.
SERIAL_COST = 1 << 20


def build(pieces):
    """Compiles C source to a shared object and loads it. ``CC`` names another compiler."""
    named = os.environ.get("CC")
    compiler = next(filter(None, map(shutil.which, [named] if named else ["cc", "gcc", "clang"])), None)
    if compiler is None:
        raise OSError("no C compiler found: install gcc or clang, or set CC to one")
    with tempfile.TemporaryDirectory() as folder:
        objects, running = [], []
        for k, piece in enumerate(pieces):
            source = os.path.join(folder, f"piece{k}.c")
            with open(source, "w", encoding="utf-8") as file:
                file.write(piece)
            objects.append(os.path.join(folder, f"piece{k}.o"))
            running.append(subprocess.Popen([compiler, *FLAGS, "-c", source, "-o", objects[-1]], stderr=subprocess.PIPE, text=True))
        for process, messages in [(p, p.communicate()[1]) for p in running]:
            if process.returncode != 0:
                raise OSError(f"the C compiler {compiler} failed: {messages}")
        library = os.path.join(folder, "kernels.so")
        subprocess.run([compiler, "-shared", "-Wl,--as-needed", "-o", library, *objects, *LIBRARIES], check=True)
        return ctypes.CDLL(library)


@functools.cache
def pool(threads):
    """Threads that share the units of a launch. A call of C gives up the interpreter's lock."""
    return concurrent.futures.ThreadPoolExecutor(threads)


def in_parts(run, units):
    """Runs ``run(begin, end)`` over parts of ``units`` on threads, and returns what the parts give."""
    threads = torch.get_num_threads()
    step = -(-units // threads)
    begins = range(0, units, step)
    return list(pool(threads).map(run, begins, [min(k + step, units) for k in begins]))


def addresses(buffers, scratch=0):
    """Returns the array of addresses that a kernel takes."""
    return (ctypes.c_void_p * (len(buffers) + 1))(*[b.data_ptr() for b in buffers], scratch)


class Kernel(Launched):
    """A loop nest over units of work. ``checks`` are the errors of its checks, by code: class and text."""

    def __init__(self, symbol, checks=()):
        signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.function = signature((symbol, LIBRARY))
        self.checks = checks

    def launch(self, buffers, sizes, units, cost, scratch=0, serial=False):
        """Computes ``units`` of this cost; each thread gets ``scratch`` bytes."""
        if units <= 0:
            return
        numbers = array.array("q", sizes)
        at = numbers.buffer_info()[0]

        def run(begin, end):
            own = torch.empty(scratch, dtype=torch.uint8) if scratch else None
            return self.function(addresses(buffers, own.data_ptr() if scratch else 0), at, begin, end)

        is_small = serial or units * cost <= SERIAL_COST or torch.get_num_threads() == 1
        for code in [run(0, units)] if is_small else in_parts(run, units):
            if code:
                kind, text = self.checks[code - 1]
                raise kind(text)


def synchronize():
    """Waits for the work of a call, which is over when it returns."""
