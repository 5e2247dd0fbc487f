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
            pairs = zip(arguments, self.signature.values(), strict=True)
            self.function[(programs,)](*(as_stored(*pair) for pair in pairs), **self.constants)
            return
        if self.built is None:
            self.built = self.build()
        self.built[(programs, 1, 1)](*arguments, *self.constants.values())
