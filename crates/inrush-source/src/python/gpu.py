# Bytes that addresses of kernels are multiples of.
ALIGNMENT = 16


class Kernel(Launched):
    """A kernel that is built at its first launch. ``signature`` has the types of its parameters, ``divisible`` the positions of those
    that are multiples of 16."""

    def __init__(self, function, signature, constants, divisible=(), **options):
        self.function = function
        self.signature = signature
        self.constants = constants
        self.divisible = divisible
        self.options = options
        self.built = None

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
            self.function[(programs,)](*arguments, **self.constants)
            return
        if self.built is None:
            self.built = self.build()
        self.built[(programs, 1, 1)](*arguments, *self.constants.values())
