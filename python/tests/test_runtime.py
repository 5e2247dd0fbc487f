"""`inrush_runtime`: packages run without PyTorch. Here PyTorch makes the packages, and says what they should compute."""

import array
import gc
import re
import sys
import textwrap
import weakref

import numpy as np
import pytest
import torch

import inrush
import inrush_runtime as runtime
from runtime_packages import DIGITS, digits, run


def load(tmp_path, model, args, kwargs=None, *, flat=False, threads=2, **shapes):
    program = torch.export.export(model.eval(), args, kwargs, **shapes)
    return runtime.load(inrush.aot_compile(program, tmp_path / "model.inrush"), threads=threads, flat=flat)


class Function(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.forward = f


@pytest.fixture(scope="module")
def digits_path(tmp_path_factory):
    return digits(tmp_path_factory.mktemp("digits"))


CLASSIFY = textwrap.dedent("""
    import sys
    import numpy as np, inrush_runtime
    from safetensors.numpy import load_file
    package, folder = sys.argv[1:]
    images = load_file(folder + "/digits.inputs.safetensors")["0"]
    expect = load_file(folder + "/digits.expect.safetensors")
    for source in (package, open(package, "rb").read()):
        model = inrush_runtime.load(source, threads=2)
        logits = model(images)
        assert type(logits) is np.ndarray and logits.flags.writeable, type(logits)
        assert np.allclose(logits, expect["0"], rtol=1e-3, atol=1e-3), np.abs(logits - expect["0"]).max()
        right = (logits.argmax(1) == expect["labels"]).mean()
        assert right > 0.99, right
        assert np.array_equal(model(x=images), logits)
    assert "torch" not in sys.modules
    print(model.signature)
""")

WITHOUT_NUMPY = textwrap.dedent("""
    import sys, array
    sys.modules["numpy"] = None
    import inrush_runtime
    model = inrush_runtime.load(sys.argv[1], threads=1)
    zeros = memoryview(array.array("f", [0.0] * 192)).cast("B").cast("f", (3, 1, 8, 8))
    out = model(zeros)
    assert isinstance(out, inrush_runtime.Tensor), out
    assert (out.dtype, out.shape, out.strides, out.nbytes) == ("float32", (3, 10), (10, 1), 120), out
    view = memoryview(out)
    assert (view.format, view.shape, view.strides, view.readonly) == ("f", (3, 10), (40, 4), False), view
    assert view.tolist()[0] == view.tolist()[2]
    assert view.tobytes() == out.tobytes() and len(view.tobytes()) == 120
    del out
    assert view.tolist()[0] == view.tolist()[1], "the view keeps the memory"
    into = array.array("f", [9.0] * 30)
    model(zeros, out=[memoryview(into).cast("B").cast("f", (3, 10))])
    assert into.tolist() == [x for row in view.tolist() for x in row]
    assert not any(name in sys.modules for name in ("torch", "numpy.core", "numpy._core"))
""")


def test_the_digits_are_classified_without_pytorch(digits_path):
    said = run(CLASSIFY, digits_path, DIGITS)
    assert re.search(r"x: float32\[\w+, 1, 8, 8\], \w+ from 1 to 4096\n  -> float32\[\w+, 10\]\n  \d+ weights, 72\d\d\d elements", said), said


def test_without_numpy_outputs_are_buffers(digits_path):
    run(WITHOUT_NUMPY, digits_path)


def test_the_signature_says_names_dtypes_and_sizes(digits_path):
    signature = runtime.load(digits_path, threads=1).signature
    (x,), (y,) = signature.inputs, signature.outputs
    assert (x.name, x.kind, x.dtype, x.shape[1:], x.written) == ("x", "tensor", "float32", (1, 8, 8), False)
    assert x.ranges == {x.shape[0]: (1, 4096)}
    assert (y.kind, y.dtype, y.shape) == ("tensor", "float32", (x.shape[0], 10))
    weights = runtime.load(digits_path, threads=1).weights()
    assert [w.name for w in signature.weights] == list(weights)
    for spec in signature.weights:
        assert (spec.dtype, spec.shape) == (str(weights[spec.name].dtype), weights[spec.name].shape)
        assert repr(spec).startswith(f"WeightSpec({spec.name}: {spec.dtype}[")


def test_arrays_of_any_layout_come_in(digits_path):
    model = runtime.load(digits_path, threads=2)
    x = np.random.default_rng(0).normal(size=(6, 1, 8, 8)).astype(np.float32)
    wanted = model(x)
    # Each input is the same numbers: transposed, with gaps, backwards, at odd addresses, inside of records, read-only.
    turned = np.ascontiguousarray(x.T).T
    gaps = np.zeros((6, 1, 16, 24), np.float32)[:, :, ::2, ::3]
    gaps[...] = x
    backwards = x[::-1, :, ::-1].copy()[::-1, :, ::-1]
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    records = np.zeros(x.shape, np.dtype([("a", "u1"), ("b", "<f4")]))
    records["b"] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    for array_ in (turned, gaps, backwards, odd, records["b"], frozen, torch.from_numpy(x), torch.from_numpy(x).permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        assert np.array_equal(model(array_), wanted), getattr(array_, "strides", "torch")
    assert np.array_equal(frozen, x)
    expanded = np.broadcast_to(x[:1], x.shape)
    np.testing.assert_allclose(model(expanded), np.repeat(wanted[:1], 6, 0), rtol=1e-5, atol=1e-5)


def test_memory_is_shared_and_outlives_the_model(digits_path):
    model = runtime.load(digits_path, threads=1)
    x = np.zeros((4, 1, 8, 8), np.float32)
    first, before = model(x), model(x).copy()
    del model
    gc.collect()
    assert np.array_equal(first, before)
    tensor = runtime.Tensor(x)
    assert tensor.numpy().ctypes.data == x.ctypes.data == torch.from_dlpack(tensor).data_ptr()
    x[0, 0, 0, 0] = 5
    assert np.from_dlpack(tensor)[0, 0, 0, 0] == 5
    del x
    gc.collect()
    assert torch.from_dlpack(tensor)[0, 0, 0, 0] == 5
    # An output of the model is the array's own memory.
    again = runtime.Tensor(first)
    assert again.numpy().ctypes.data == first.ctypes.data


def test_read_only_memory_stays_read_only():
    frozen = np.arange(4, dtype=np.int16)
    frozen.flags.writeable = False
    tensor = runtime.Tensor(frozen)
    assert tensor.readonly and not tensor.numpy().flags.writeable and memoryview(tensor).readonly
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert not np.from_dlpack(tensor).flags.writeable
    with pytest.raises(TypeError, match="read-only|read-write"):
        memoryview(tensor)[0] = 1
    copied = np.from_dlpack(tensor, copy=True)
    assert np.array_equal(copied, frozen)


DTYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"


@pytest.mark.parametrize("name", DTYPES.split())
def test_every_dtype_goes_through_numpy_and_dlpack(name):
    x = (np.arange(12).reshape(3, 4) % 2).astype(name)
    for array_ in (x, x.T, x[:, ::2], x[0, 0], np.zeros((0, 3), name)):
        tensor = runtime.Tensor(array_)
        assert (tensor.dtype, tensor.shape) == (name, array_.shape)
        assert np.array_equal(tensor.numpy(), array_) and tensor.numpy().dtype == array_.dtype
        assert np.array_equal(np.asarray(memoryview(tensor)), array_)
        assert np.array_equal(np.from_dlpack(tensor), array_)
        assert np.array_equal(torch.from_dlpack(tensor).numpy(), array_)
        assert np.array_equal(runtime.Tensor(torch.from_numpy(np.array(array_))).numpy(), array_)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_lacks_are_tensors(name):
    theirs = torch.arange(6.0).reshape(2, 3).to(getattr(torch, name))
    ours = runtime.Tensor(theirs)
    assert (ours.dtype, ours.shape, ours.strides) == (name, (2, 3), (3, 1))
    assert torch.equal(torch.from_dlpack(ours).view(torch.uint8), theirs.view(torch.uint8))
    with pytest.raises(runtime.InputError, match=f"NumPy has no {name}"):
        ours.numpy()
    with pytest.raises(BufferError, match="use DLPack"):
        memoryview(ours)


def test_bfloat16_models(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU()).bfloat16()
    x = torch.randn(3, 16).bfloat16()
    compiled = load(tmp_path, model, (x,))
    y = compiled(x)
    assert isinstance(y, runtime.Tensor) and y.dtype == "bfloat16"
    torch.testing.assert_close(torch.from_dlpack(y), model(x), rtol=2e-2, atol=2e-2)
    again = compiled(runtime.Tensor(x))
    assert again.tobytes() == y.tobytes()
    into = torch.empty(3, 8, dtype=torch.bfloat16)
    assert compiled(x, out=[into]) is into
    assert torch.equal(into, torch.from_dlpack(y))
    weights = compiled.weights()
    assert torch.equal(torch.from_dlpack(weights["0.weight"]), model[0].weight)


def test_wrong_arguments_are_named(digits_path):
    model = runtime.load(digits_path, threads=1)
    x = np.zeros((2, 1, 8, 8), np.float32)

    def refused(match, *args, **kwargs):
        with pytest.raises(runtime.InputError, match=match):
            model(*args, **kwargs)

    refused("input `x` must be float32, got float64", x.astype(np.float64))
    refused("dimension 3 must be 8, got 7", x[..., :7])
    refused("must have 4 dimensions", x[0])
    refused("outside the range 1..=4096", x[:0])
    refused("input `x`: it is missing")
    refused("takes 1 arguments by position", x, x)
    refused("no input `y`; its inputs are x", y=x)
    refused("`x` is given twice", x, x=x)
    refused("input `x`: an array is needed .* not list", [[1.0]])
    refused("input `x`: an array is needed .* not float", 1.0)
    refused("memory of DLPack device 14|its library does not export it", torch.zeros(2, 1, 8, 8, device="meta"))
    refused("input `x`: its library does not export it.*gradient", torch.zeros(2, 1, 8, 8, requires_grad=True))
    refused("input `x`: elements of format `>f`", x.astype(">f4"))
    refused("its memory cannot be read.*buffer", np.zeros((2, 1, 8, 8), "M8[s]"))

    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise AssertionError("asked for memory of a GPU")

    refused("input `x`: it is in the memory of DLPack device 2", Elsewhere())
    assert issubclass(runtime.InputError, runtime.Error) and issubclass(runtime.Error, RuntimeError)
    assert model(x).shape == (2, 10)


def test_wrong_packages_are_refused(tmp_path, digits_path):
    whole = digits_path.read_bytes()
    for bad in (b"", b"nothing", whole[: len(whole) // 2]):
        with pytest.raises(runtime.PackageError, match="not a compiled package"):
            runtime.load(bad)
    with pytest.raises(runtime.PackageError, match="nowhere.inrush: cannot open"):
        runtime.load(tmp_path / "nowhere.inrush")
    at = whole.index(b"weights/", len(whole) // 2)
    damaged = bytearray(whole)
    damaged[at - 200] ^= 1
    with pytest.raises(runtime.Error):
        runtime.load(damaged)
    with pytest.raises(runtime.InputError, match="at least one thread"):
        runtime.load(digits_path, threads=0)


def test_out_takes_the_outputs(digits_path):
    model = runtime.load(digits_path, threads=2)
    x = np.random.default_rng(1).normal(size=(5, 1, 8, 8)).astype(np.float32)
    wanted = model(x)
    dense, gaps, columns = np.empty((5, 10), np.float32), np.empty((5, 20), np.float32)[:, ::2], np.empty((10, 5), np.float32).T
    for out in (dense, gaps, columns):
        assert model(x, out=[out]) is out
        assert np.array_equal(out, wanted)

    def refused(match, *outs):
        with pytest.raises(runtime.InputError, match=match):
            model(x, out=outs)

    refused("has 2 arrays, the model gives 1", dense, gaps)
    refused("output 0 is float32 of sizes .* float64", np.empty((5, 10)))
    refused("output 0 is float32 of sizes", np.empty((4, 10), np.float32))
    refused("output 0.*negative strides", np.empty((5, 10), np.float32)[::-1])
    refused("share memory", np.lib.stride_tricks.as_strided(dense, (5, 10), (0, 4)))
    frozen = np.zeros((5, 10), np.float32)
    frozen.flags.writeable = False
    refused("read-only", frozen)
    assert not frozen.any()


def test_inputs_that_the_model_writes(tmp_path):
    def f(x, s):
        s.add_(x)
        return s * 2

    model = load(tmp_path, Function(f), (torch.zeros(2, 3), torch.zeros(2, 3)))
    assert [i.written for i in model.signature.inputs] == [False, True]
    assert len(model.signature.outputs) == 1
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for s in (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32).T, torch.ones(3, 2).T):
        # Another layout for `x` as well: it is copied, and must not be written, even with its own numbers.
        frozen = np.asfortranarray(x)
        frozen.flags.writeable = False
        y = model(frozen, s)
        assert np.array_equal(np.asarray(s), x + 1) and np.array_equal(y, 2 * x + 2)
    s = np.ones((2, 3), np.float32)
    s.flags.writeable = False
    for refused, why in ((s, "read-only"), (np.ones((2, 3), np.float32)[::-1], "negative strides")):
        with pytest.raises(runtime.InputError, match=f"writes into `s`: .*{why}"):
            model(x, refused)
        assert np.array_equal(refused, np.ones((2, 3)))


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, pair, extra, *, bias=None, scale: float = 2.0):
        a, b = pair
        out = self.linear(a * scale + b) + extra["one"]
        return {"out": out + bias, "more": [out.sum(), (a.shape[0], None)]}


def test_nesting_is_that_of_the_export(tmp_path):
    n = torch.export.Dim("n", min=2, max=64)
    model = Nested().eval()
    args, kwargs = ((torch.randn(5, 4), torch.randn(5, 4)), {"one": torch.randn(3)}), {"bias": torch.randn(3), "scale": 2.0}
    shapes = {"pair": ({0: n}, {0: n}), "extra": {"one": None}, "bias": None, "scale": None}
    compiled = load(tmp_path, model, args, kwargs, dynamic_shapes=shapes)
    with torch.no_grad():
        wanted = model(*args, **kwargs)
    for call in (lambda: compiled(*args, **kwargs), lambda: compiled(*args, bias=kwargs["bias"])):
        got = call()
        assert list(got) == ["out", "more"] and isinstance(got["more"], list)
        assert got["more"][1] == (5, None)
        np.testing.assert_allclose(got["out"], wanted["out"].numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got["more"][0], wanted["more"][0].numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(runtime.InputError, match="must be a tuple of 2, as exported, not list"):
        compiled(list(args[0]), args[1], bias=kwargs["bias"])
    with pytest.raises(runtime.InputError, match="must be a dict of 'one'"):
        compiled(args[0], {"two": args[1]["one"]}, bias=kwargs["bias"])
    with pytest.raises(runtime.InputError, match="input `bias`: it is missing"):
        compiled(*args)
    with pytest.raises(runtime.InputError, match="exported as the constant"):
        compiled(*args, bias=kwargs["bias"], scale=3.0)
    with pytest.raises(runtime.InputError, match="is a number, which `out` cannot take"):
        compiled(*args, **kwargs, out=[np.empty((5, 3), np.float32), np.empty((), np.float32), None, None])
    flat = runtime.load(tmp_path / "model.inrush", flat=True)
    got = flat(*args[0], args[1]["one"], kwargs["bias"], 2.0)
    assert isinstance(got, tuple) and got[2:] == (5, None)


def test_scalars_and_empty_arrays(tmp_path):
    n = torch.export.Dim("n", min=0, max=100)
    model = Function(lambda x, k: (x * 2 + k, x.sum(), x.shape[0] + 1))
    compiled = load(tmp_path, model, (torch.randn(7, 3), 3), dynamic_shapes={"x": {0: n}, "k": torch.export.Dim.DYNAMIC})
    kinds = [i.kind for i in compiled.signature.inputs]
    assert kinds == ["tensor", "int"], compiled.signature
    for rows in (0, 1, 7):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        for k in (4, np.int64(4)):
            y, total, size = compiled(x, k)
            assert np.allclose(y, x * 2 + 4) and y.shape == (rows, 3)
            assert total.shape == () and np.isclose(total, x.sum(), atol=1e-5)
            assert size == rows + 1 and type(size) is int
    with pytest.raises(runtime.InputError, match="input `k`: an integer is needed, not float"):
        compiled(x, 1.5)
    zero = load(tmp_path, Function(lambda t: t + 1), (torch.tensor(2.0),))
    for scalar in (np.float32(3), np.array(3, np.float32), torch.tensor(3.0), array.array("f", [3]), runtime.Tensor(np.float32(3))):
        if isinstance(scalar, array.array):
            with pytest.raises(runtime.InputError, match="must have 0 dimensions"):
                zero(scalar)
        else:
            assert zero(scalar) == 4


def test_an_output_that_is_an_input_shares_its_memory(tmp_path):
    model = load(tmp_path, Function(lambda x: (x, x + 1)), (torch.zeros(2, 3),))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    same, more = model(x)
    assert np.array_equal(same, x) and np.array_equal(more, x + 1)
    turned = np.asfortranarray(x)
    turned.flags.writeable = False
    same, more = model(turned)
    assert np.array_equal(same, x) and np.array_equal(more, x + 1)


def test_errors_inside_the_model_have_classes_of_their_own(tmp_path):
    table = torch.arange(5.0)
    model = load(tmp_path, Function(lambda i: table[i]), (torch.tensor([1, 2]),))
    assert model(np.array([4, 0])).tolist() == [4, 0]
    with pytest.raises(runtime.OutOfRangeError, match="out of (range|bounds)"):
        model(np.array([5, 0]))


class Exporter:
    """An array that has DLPack and nothing else: with versions, or as before 1.0."""

    def __init__(self, x, versioned):
        self.x, self.versioned = x, versioned

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.x.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_of_either_format(tmp_path, versioned):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = runtime.Tensor(Exporter(x, versioned))
    assert tensor.numpy().ctypes.data == x.ctypes.data and not tensor.readonly
    turned = runtime.Tensor(Exporter(x[:, ::-1], versioned))
    assert np.array_equal(turned.numpy(), x[:, ::-1]), "negative strides are copied"
    if versioned:
        frozen = x.copy()
        frozen.flags.writeable = False
        assert runtime.Tensor(Exporter(frozen, True)).readonly
        model = load(tmp_path, Function(lambda s: s.add_(1) * 2), (torch.zeros(2, 3),))
        with pytest.raises(runtime.InputError, match="writes into `s`: its memory is read-only"):
            model(Exporter(frozen, True))
        assert np.array_equal(frozen, x)
        model(Exporter(x, True))
        assert np.array_equal(x, frozen + 1)
    # Capsules that are never taken free what they hold.
    before = sys.getrefcount(x)
    for version in (None, (1, 0)):
        capsule = tensor.__dlpack__(max_version=version)
        del capsule
    del tensor, turned
    gc.collect()
    assert sys.getrefcount(x) < before


def test_calls_let_go_of_their_arguments(digits_path):
    model = runtime.load(digits_path, threads=1)
    x, out = np.zeros((2, 1, 8, 8), np.float32), np.empty((2, 10), np.float32)
    theirs = torch.zeros(2, 1, 8, 8)
    weights = model.weights()
    held = [*weights.values(), x, out, theirs]
    before = [sys.getrefcount(h) for h in held]
    for _ in range(20):
        model(x)
        model(x=x, out=[out])
        model(theirs)
        model.update_weights(weights)
        model.swap_weights()
        with pytest.raises(runtime.InputError):
            model(x, theirs)
        with pytest.raises(runtime.InputError):
            model(x, out=[x])
    gc.collect()
    assert [sys.getrefcount(h) for h in held] == before
    array_ = weakref.ref(theirs)
    del theirs, held
    gc.collect()
    assert array_() is None
