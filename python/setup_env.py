"""Makes the Python environment of the tests, `.venv` in the checkout, from python/requirements.txt.

usage: setup_env.py [--bench | --clang | --survey] [--dir DIR] [--check]

Does nothing when the environment is already there and its stamp matches the requirements, so it is safe to call before every
test run. Prints the path of the environment's interpreter, and nothing else, on stdout. Exit code 3 when this machine
cannot provide it. `--bench` takes requirements-bench.txt instead (the model zoo, scikit-learn), `--clang`
requirements-clang.txt (a C compiler for every target and an emulator, 120 MB), `--survey` requirements-survey.txt (public models)
into an environment that shows the packages of `.venv` as well, so that only what that lacks is fetched: 50 MB.

pip's own settings apply: with PIP_EXTRA_INDEX_URL naming PyTorch's index of CPU-only wheels the download shrinks from
about 2.7 GB to 0.2 GB on Linux.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# torch 2.11 has wheels for these only.
OLDEST, NEWEST = (3, 10), (3, 14)
PROBE = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"


class SetupError(Exception):
    """A machine that cannot provide the environment: what is missing and what to do."""


def say(text):
    print("setup_env: " + text, file=sys.stderr, flush=True)


def requirement_files(path):
    """The file and the files that it includes with `-r`, in order."""
    files = [path]
    with open(path, encoding="utf-8") as handle:
        for line in handle:
            include = re.match(r"-r\s+(\S+)", line)
            if include:
                files += requirement_files(os.path.join(os.path.dirname(path), include.group(1)))
    return files


def version_of(interpreter):
    """(major, minor) of an interpreter that can make environments, or the reason why it cannot."""
    try:
        done = subprocess.run([interpreter, "-c", PROBE], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]
    return tuple(int(part) for part in done.stdout.strip().split("."))


def find_interpreter():
    """The running interpreter if it will do, else the newest on PATH that will."""
    names = [sys.executable] + ["python%d.%d" % (3, minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    refused = []
    for name in names:
        path = name if os.path.isabs(name) else shutil.which(name)
        if not path:
            continue
        version = version_of(path)
        if isinstance(version, tuple) and OLDEST <= version <= NEWEST:
            return path, version
        refused.append("%s: %s" % (path, "version %d.%d" % version if isinstance(version, tuple) else version))
    raise SetupError(
        "no Python from %d.%d to %d.%d with the venv and ensurepip modules found (on Debian and Ubuntu: "
        "apt install python3-venv).\n  looked at: %s" % (*OLDEST, *NEWEST, "; ".join(refused))
    )


def stamp_of(files, version):
    digest = hashlib.sha256(repr(version).encode())
    for path in files:
        with open(path, "rb") as handle:
            digest.update(handle.read())
    return digest.hexdigest()


def python_in(directory):
    return os.path.join(directory, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


def is_ready(directory, stamp):
    """Whether the environment was finished with these very requirements."""
    try:
        with open(os.path.join(directory, "stamp"), encoding="ascii") as handle:
            return handle.read() == stamp and os.path.exists(python_in(directory))
    except (OSError, ValueError):
        return False


def run(command, what):
    """Output goes to stderr: stdout is for the answer alone."""
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise SetupError("%s failed (output above); command: %s" % (what, " ".join(command)))


def show(python, other):
    """Lets an environment find the packages of another one too, after its own."""
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own, theirs = (subprocess.run([p, "-c", where], capture_output=True, text=True, check=True).stdout.strip() for p in (python, python_in(other)))
    with open(os.path.join(own, "base.pth"), "w", encoding="utf-8") as handle:
        handle.write(theirs + "\n")


def build(directory, interpreter, requirements, stamp, probe, base=None):
    if os.path.lexists(directory):
        if not os.path.exists(os.path.join(directory, "pyvenv.cfg")):
            raise SetupError("%s exists and is no virtual environment; move it away" % directory)
        say("removing the outdated environment %s" % directory)
        shutil.rmtree(directory)
    say("creating %s with %s" % (directory, interpreter))
    run([interpreter, "-m", "venv", directory], "creating the environment")
    python = python_in(directory)
    if base:
        show(python, base)
    say("installing %s (a large download the first time; a few minutes)" % os.path.basename(requirements))
    run(
        [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "--quiet", "--no-compile", "-r", requirements],
        "installing the requirements",
    )
    run([python, "-c", probe], "importing what was installed")
    with open(os.path.join(directory, "stamp"), "w", encoding="ascii") as handle:
        handle.write(stamp)


def locked(path):
    """Holds an exclusive lock on `path` while the returned handle lives; two test runs must not build one environment at once."""
    handle = open(path, "w", encoding="ascii")
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    except ImportError:
        pass  # Windows: concurrent first runs are left to the user
    return handle


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bench", action="store_const", dest="kind", const="-bench", default="", help="install requirements-bench.txt, into .venv-bench")
    which.add_argument("--clang", action="store_const", dest="kind", const="-clang", help="install requirements-clang.txt, into .venv-clang")
    which.add_argument("--survey", action="store_const", dest="kind", const="-survey", help="install requirements-survey.txt, into .venv-survey, on top of .venv")
    parser.add_argument("--dir", help="where (default: .venv in the checkout)")
    parser.add_argument("--check", action="store_true", help="only say whether it is ready (exit code 0 or 1)")
    options = parser.parse_args()
    requirements = os.path.join(HERE, "requirements%s.txt" % options.kind)
    directory = os.path.abspath(options.dir or os.path.join(HERE, "..", ".venv" + options.kind))
    if options.kind == "-survey" and not options.check and not os.path.exists(python_in(os.path.join(HERE, "..", ".venv"))):
        # The environment that it lies on top of comes first.
        run([sys.executable, os.path.abspath(__file__)], "making .venv")
    probe = "import ziglang, unicorn" if options.kind == "-clang" else "import torch, numpy, safetensors; torch.zeros(2) + 1"
    try:
        interpreter, version = find_interpreter()
        stamp = stamp_of(requirement_files(requirements), version)
        if options.check:
            return 0 if is_ready(directory, stamp) else 1
        if not is_ready(directory, stamp):
            os.makedirs(os.path.dirname(directory), exist_ok=True)
            with locked(directory + ".lock"):
                if not is_ready(directory, stamp):
                    base = os.path.join(HERE, "..", ".venv") if options.kind == "-survey" else None
                    build(directory, interpreter, requirements, stamp, probe, base)
    except (SetupError, OSError) as error:
        say("error: %s" % error)
        return 3
    print(python_in(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
