"""What stands in for what Triton's interpreter lacks does what devices do."""

import pytest
import torch

from inrush.triton import interpreter_shims

pytest.importorskip("triton")


def test_casts_to_bfloat16_round_to_the_nearest():
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter_shims.patch()
    edges = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.4e38, 1.00390625, 1.01171875, 1e-40]
    x = torch.cat([torch.linspace(-3, 3, 997), torch.tensor(edges)]).reshape(-1, 2)
    bits = interpreter._convert_float(x.numpy(), tl.float32, tl.bfloat16, None)
    got, want = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), x.bfloat16()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_matrix_products_of_bfloat16():
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter_shims.patch()
    a, b = torch.randn(16, 32).bfloat16(), torch.randn(32, 8).bfloat16()
    handles = [interpreter.TensorHandle(x.view(torch.int16).numpy().view(np.uint16), tl.bfloat16) for x in (a, b)]
    sums = interpreter.TensorHandle(np.zeros((16, 8), np.float32), tl.float32)
    got = interpreter.InterpreterBuilder().create_dot(*handles, sums, None, 0)
    torch.testing.assert_close(torch.from_numpy(got.data), a.float() @ b.float())
