"""What stands in for what Triton's interpreter lacks does what devices do."""

import pytest
import torch

from inrush import _stand_ins

pytest.importorskip("triton")


def test_casts_to_bfloat16_round_to_the_nearest():
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    _stand_ins.patch()
    edges = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.4e38, 1.00390625, 1.01171875, 1e-40]
    x = torch.cat([torch.linspace(-3, 3, 997), torch.tensor(edges)]).reshape(-1, 2)
    bits = interpreter._convert_float(x.numpy(), tl.float32, tl.bfloat16, None)
    got, want = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), x.bfloat16()
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
