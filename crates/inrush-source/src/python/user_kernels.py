def user_function(name, text):
    """Returns the function ``name`` of a module that is written in this file as text. Triton reads the source of its functions."""
    path = f"<{name} of {__file__}>"
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    module = types.ModuleType(name)
    exec(compile(text, path, "exec"), vars(module))
    return getattr(module, name)


def copied(tensor):
    """Returns a copy with the same strides."""
    return strided_memory(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)


def aligned(tensor):
    """Returns a tensor that begins at a multiple of 16 bytes: itself or a copy."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else copied(tensor)


class UserKernel(Kernel):
    """A kernel that the user wrote, whose grid may have three dimensions."""

    def launch(self, grid, *arguments):
        """Launches a grid on the current stream."""
        if 0 in grid:
            return
        if INTERPRETED:
            self.function[grid](**dict(zip(self.signature, arguments)), **self.constants)
            return
        self.start(*grid, arguments)
