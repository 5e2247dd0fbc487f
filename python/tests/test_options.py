"""Options are named and checked; logging follows its variable."""

import logging
import subprocess
import sys

import pytest
import torch

import inrush
from inrush import compile_options, log


def test_the_backend_is_found_by_its_entry_point():
    assert "inrush" in torch._dynamo.list_backends()


def test_an_unknown_option_lists_the_known():
    with pytest.raises(Exception, match="unknown option `stirct`; known: strict, fallback_random, trace, threads"):
        torch.compile(torch.sin, backend="inrush", options={"stirct": True})(torch.ones(2))


@pytest.mark.parametrize(
    "given",
    [{"strict": 1}, {"threads": 0}, {"threads": True}, {"threads": "2"}, {"trace": 5}, {"fallback_random": None}, {"tune": "later"}, {"pointers": "blocks"}, {"products": "cublas"}],
)
def test_bad_values_are_refused(given):
    with pytest.raises(inrush.InputError, match=f"option `{next(iter(given))}` takes"):
        compile_options.check(given)


def test_modes_are_checked():
    assert compile_options.check({}, "default") == compile_options.Options()
    assert compile_options.check({}, "reduce-overhead") == compile_options.Options(cudagraphs=True)
    assert not compile_options.check({"cudagraphs": False}, "reduce-overhead").cudagraphs
    assert compile_options.check({}, "max-autotune") == compile_options.Options(cudagraphs=True, tune=True)
    assert compile_options.check({}, "max-autotune-no-cudagraphs") == compile_options.Options(tune=True)
    assert not compile_options.check({}, "default").tune and not compile_options.check({"tune": False}, "max-autotune").tune
    with pytest.raises(inrush.InputError, match="there is no mode `fast`; known: default"):
        compile_options.check({}, "fast")


def test_defaults_are_told():
    assert inrush.options()["strict"] is False
    assert set(inrush.options()) >= {"strict", "fallback_random", "trace", "threads"}


def test_trace_writes_every_stage(tmp_path):
    f = torch.compile(lambda a: torch.softmax(a, -1), backend="inrush", options={"trace": tmp_path, "strict": True})
    f(torch.ones(3, 4))
    folder = tmp_path / "000_inference"
    names = {p.stem.split("-")[-1]: p for p in folder.iterdir()}
    assert {"fx", "import", "lower", "fuse", "emit"} <= set(names), sorted(names)
    assert "aten._softmax.default" in names["import"].read_text()


def test_threads_give_the_same_result(check):
    a = torch.randn(64, 512)
    for threads in (1, 2):
        torch._dynamo.reset()
        check(lambda a: torch.softmax(a * 2, -1), a, options={"threads": threads, "strict": True})


def test_the_log_variable():
    log.configure("+fallback,-compile")
    assert logging.getLogger("inrush.fallback").level == logging.DEBUG
    assert logging.getLogger("inrush.compile").level == logging.ERROR
    for name in ("fallback", "compile"):
        logging.getLogger(f"inrush.{name}").setLevel(logging.NOTSET)


def test_compiles_are_logged(caplog):
    with caplog.at_level(logging.INFO, logger="inrush.compile"):
        logging.getLogger("inrush").propagate = True
        torch.compile(lambda a: a + 1, backend="inrush")(torch.ones(2))
    assert "1 kernels" in caplog.text


def test_importing_the_package_does_not_import_torch(tmp_path):
    code = "import sys, inrush; sys.exit('torch' in sys.modules)"
    # Elsewhere than here, where the package's sources may lie without their native half.
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0
