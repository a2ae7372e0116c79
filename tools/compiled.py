"""Build amcast with its pure rooms and the hot path of the live cluster compiled to C by mypyc: the same sources.

    .venv/bin/python tools/compiled.py [--optimise 0..3]

Never in place: an extension beside a source wins over later edits of it, silently. The sources are copied to
build/compiled/, the modules of kernel, parts and protocols are compiled there (those that hold message structs stay
Python, as msgspec wants) and those of live that every frame passes. The result is an ordinary wheel in dist/ and a
folder to run from:

    PYTHONPATH=build/compiled/amcast-compiled .venv/bin/amcast version

Optimised builds gain, unoptimised ones (0, for tests) are slower than the interpreter; measure with

    PYTHONPATH=build/compiled/amcast-compiled .venv/bin/python benchmarks/simulator.py
    PYTHONPATH=build/compiled/amcast-compiled .venv/bin/python benchmarks/hosts.py

Needs a C compiler and Python's headers; without them it says so and ends with 2.
"""

import argparse
import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compiled"
UNPACKED = BUILD / "amcast-compiled"
ROOMS = ("kernel", "parts", "protocols")
INTERPRETED = {"kernel/message", "kernel/events", "kernel/effects", "kernel/config", "kernel/spec", "kernel/errors"}
INTERPRETED |= {"protocols/catalogue"}
"""Structs, exceptions and tables of constants: nothing to gain, or nothing that may be compiled."""
LIVE = ("admission", "barrier", "crowd", "handing", "host", "kept", "link", "network", "peers", "resting", "sending")
"""What every frame passes. Connections stay Python: they are classes of asyncio's."""
SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(ext_modules=mypycify(["--follow-imports=silent", *{modules!r}], opt_level={optimise!r}, group_name="amcast"))
"""


def missing() -> str | None:
    """What this machine lacks for a build, as a sentence."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}); install one, for example: apt install gcc"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no Python.h; install Python's headers, for example: apt install python3-dev"
    return None


def copied() -> list[str]:
    """Copy the project to the build folder; the modules to compile, ready for mypyc."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, BUILD / name)
    shutil.copytree(ROOT / "src" / "amcast", BUILD / "src" / "amcast", ignore=shutil.ignore_patterns("__pycache__"))
    package = BUILD / "src" / "amcast"
    pure = [file for room in ROOMS for file in sorted((package / room).glob("*.py")) if file.stem != "__init__"]
    chosen = [file for file in pure if f"{file.parent.name}/{file.stem}" not in INTERPRETED]
    chosen += [package / "live" / f"{name}.py" for name in LIVE]
    for file in chosen:
        file.write_text(opened(file.read_text()))
    return [str(file.relative_to(BUILD)) for file in chosen]


def opened(source: str) -> str:
    """Native classes that may be subclassed by interpreted ones: users bring protocols of their own, tests mutants."""
    if not re.search(r"^class ", source, re.MULTILINE):
        return source
    lines: list[str] = []
    for line in source.splitlines():
        if line.startswith("class "):
            place = len(lines)
            while place and lines[place - 1].startswith("@"):
                place -= 1
            lines.insert(place, "@mypyc_attr(allow_interpreted_subclasses=True)")
        lines.append(line)
    opened = "\n".join(lines) + "\n"
    first = next(node for node in ast.parse(opened).body if isinstance(node, ast.Import | ast.ImportFrom))
    lines.insert(first.lineno - 1, "from mypy_extensions import mypyc_attr")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimise", choices=list("0123"), default="2", help="of the C compiler; 0 builds fastest")
    optimise = parser.parse_args().optimise
    lacking = missing()
    if lacking is not None:
        print(f"cannot compile: {lacking}", file=sys.stderr)
        return 2
    modules = copied()
    (BUILD / "setup.py").write_text(SETUP.format(modules=modules, optimise=optimise))
    print(f"compiling {len(modules)} modules, a few minutes ...", flush=True)
    log = BUILD / "build.log"
    with log.open("w") as output:
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", str(ROOT / "dist")],
            cwd=BUILD,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        print(f"the build failed; the end of {log.relative_to(ROOT)}:", file=sys.stderr)
        print("\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
        return 70
    wheel = max((ROOT / "dist").glob("amcast-*.whl"), key=lambda file: file.stat().st_mtime)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(UNPACKED)
    print(wheel.relative_to(ROOT))
    print(f"run it from here:  PYTHONPATH={UNPACKED.relative_to(ROOT)} .venv/bin/amcast version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
