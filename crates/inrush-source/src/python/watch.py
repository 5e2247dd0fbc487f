# Values that are looked for after each kernel: "nan", "inf". Memory is cleared then, so that what no kernel writes has none.
CHECK = ()
# Launches that are noted, to time kernels by themselves: kernel, arguments, options. None: they are not.
LAUNCHES = None


class Launched:
    """A kernel. Its launches are watched if that is asked for."""

    def __call__(self, *arguments, **options):
        if not CHECK and LAUNCHES is None:
            self.launch(*arguments, **options)
            return
        tensors = tensors_of(arguments)
        before = [found_in(t) for t in tensors]
        self.launch(*arguments, **options)
        if LAUNCHES is not None:
            LAUNCHES.append((self, arguments, options))
        for k, (tensor, was) in enumerate(zip(tensors, before)):
            found = found_in(tensor)
            if found and not was:
                raise FloatingPointError(f"`{name_of(self)}` gives {found} in tensor {k} among its arguments")


def name_of(kernel):
    """Returns the name of a kernel in this file."""
    return next(name for name, value in globals().items() if value is kernel)


def tensors_of(arguments):
    """Returns the tensors among arguments of a launch."""
    flat = [item for a in arguments for item in (a if isinstance(a, (list, tuple)) else [a])]
    return [a for a in flat if isinstance(a, torch.Tensor)]


def found_in(tensor):
    """Returns which of the values that are looked for a tensor has."""
    if not CHECK or not tensor.dtype.is_floating_point:
        return ""
    values = tensor.float() if tensor.dtype.itemsize == 1 else tensor
    tests = {"nan": torch.isnan, "inf": torch.isinf}
    return " and ".join(name for name in CHECK if tests[name](values).any())


def time_kernels():
    """Calls the graph once, then times each of its kernels by itself, on the arguments of its first launch."""
    global LAUNCHES
    LAUNCHES = []
    call(*inputs())
    launches, LAUNCHES = LAUNCHES, None
    first = {}
    for kernel, arguments, options in launches:
        first.setdefault(kernel, (arguments, options))
    for kernel, (arguments, options) in first.items():
        seconds = median_time(lambda: kernel(*arguments, **options))
        tensors = {t.data_ptr(): t for t in tensors_of(arguments)}.values()
        size = sum(t.numel() * t.element_size() for t in tensors)
        count = sum(k is kernel for k, _, _ in launches)
        print(f"{seconds * 1e6:10.1f} us {size / seconds / 1e9:8.1f} GB/s {count:4} launches  {name_of(kernel)}")
