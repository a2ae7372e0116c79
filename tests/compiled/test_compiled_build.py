"""The compiled build: made from these very sources, it passes the tests of the rooms that it compiles."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE_ROOMS = ("tests/kernel", "tests/parts", "tests/protocols", "tests/transcripts")
HOT_PATH = tuple(f"tests/live/test_live_{name}.py" for name in ("barrier", "burden", "host", "link", "lost", "resting"))
BUILT = """
import amcast.kernel.process as pure
import amcast.live.link as live
raise SystemExit(any(str(module.__file__).endswith(".py") for module in (pure, live)))
"""


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_classes_of_a_compiled_module_stay_open_and_the_source_stays_a_module() -> None:
    source = '"""Teaches.\n\nfrom here on.\n"""\n\nimport abc\n\n\n@decorated\nclass A:\n    pass\n\n\nclass B(A):\n'
    source += "    pass\n"
    opened = tool("compiled").opened(source)
    compile(opened, "opened", "exec")
    assert opened.count("@mypyc_attr(allow_interpreted_subclasses=True)") == 2
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\n@decorated\nclass A" in opened
    assert opened.index("from mypy_extensions") > opened.index("from here on")
    assert tool("compiled").opened("VALUE = 1\n") == "VALUE = 1\n"


def test_the_compiled_build_passes_the_tests_of_the_pure_rooms_and_of_the_hot_path() -> None:
    lacking = tool("compiled").missing()
    if lacking is not None:
        pytest.skip(f"the compiled build: {lacking}")
    build = subprocess.run(
        [sys.executable, "tools/compiled.py", "--optimise", "0"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert build.returncode == 0, build.stdout + build.stderr
    environment = {**os.environ, "PYTHONPATH": str(tool("compiled").UNPACKED)}
    loaded = subprocess.run([sys.executable, "-c", BUILT], cwd=ROOT, env=environment, check=False)
    assert loaded.returncode == 0, "the interpreted package was imported instead of the compiled one"
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PURE_ROOMS, *HOT_PATH],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout[-5000:] + tests.stderr[-2000:]
