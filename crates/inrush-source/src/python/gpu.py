# Bytes that addresses of kernels are multiples of.
ALIGNMENT = 16


def as_stored(argument, kind):
    """Returns an argument as its kernel sees it: kinds of float8 that Triton has no type for are bytes."""
    if kind == "*u8" and isinstance(argument, torch.Tensor):
        return argument.view(torch.uint8)
    return argument


class Kernel(Launched):
    """A kernel that is built at its first launch. ``signature`` has the types of its parameters, ``divisible`` the positions of those
    that are multiples of 16."""

    def __init__(self, function, signature, constants, divisible=(), **options):
        self.function = function
        self.signature = signature
        self.constants = constants
        self.divisible = divisible
        self.options = options
        self.launcher = None

    def build(self):
        """Compiles the kernel."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        signature = {**self.signature, **dict.fromkeys(self.constants, "constexpr")}
        attributes = {(k,): [["tt.divisibility", 16]] for k in self.divisible}
        source = ASTSource(self.function, signature, constexprs=self.constants, attrs=attributes)
        return triton.compile(source, target=GPUTarget(*TARGET), options={"sanitize_overflow": False, "enable_fp_fusion": True, **self.options})

    def launch(self, programs, *arguments):
        """Launches a grid of ``programs`` on the current stream."""
        if programs <= 0:
            return
        if INTERPRETED:
            pairs = zip(arguments, self.signature.values(), strict=True)
            self.function[(programs,)](*(as_stored(*pair) for pair in pairs), **self.constants)
            return
        self.start(programs, 1, 1, arguments)

    def start(self, x, y, z, arguments):
        """Launches a grid through Triton's launcher. What it takes besides the arguments is looked up once."""
        if self.launcher is None:
            from triton.runtime import driver

            built = self.build()
            # The binary is loaded where `run` is read.
            run = built.run
            self.launcher = run, built.function, built.packed_metadata, tuple(self.constants.values()), driver.active
        run, function, metadata, constants, active = self.launcher
        stream = active.get_current_stream(active.get_current_device())
        # No metadata of the launch, no hooks around it.
        run(x, y, z, stream, function, metadata, None, None, None, *arguments, *constants)
