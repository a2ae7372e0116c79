"""The root of the command, and the mapping from errors to exit codes."""

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer

from amcast import __version__
from amcast.cli.data import diff as difference
from amcast.cli.data import pipeline, traces
from amcast.cli.extras import describe_missing, find_extra
from amcast.cli.lab import advise as adviser
from amcast.cli.lab import calibrate as calibration
from amcast.cli.lab import campaign as campaigning
from amcast.cli.lab import reproduce as reproduction
from amcast.cli.lab import search as searching
from amcast.cli.lab import simulate as laboratory
from amcast.cli.lab import worst as adversary
from amcast.cli.live import bench, cluster, local_config, torture
from amcast.cli.live import certificates as security
from amcast.cli.live import membership as members
from amcast.cli.live import operations as operate
from amcast.cli.output import INTERNAL, UNKNOWN, WRONG_USE, err, out
from amcast.kernel.errors import CannotTellError, UsageError

app = typer.Typer(
    name="amcast",
    help="Atomic multicast: simulate, explore, check and view runs of protocols, and run them on real networks.\n\n"
    "Exit codes: 0 holds, 1 violated, 2 unknown or cannot tell, 64 wrong use, 70 internal error.",
    epilog="First steps:  amcast init; amcast up   |   amcast simulate --protocol skeen; amcast view runs/latest",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The panels of the help appear in this order.
local_config.register(app)
cluster.register(app)
operate.register(app)
members.register(app)
security.register(app)
traces.register(app)
pipeline.register(app)
difference.register(app)
searching.register(app)
campaigning.register(app)
torture.register(app)
laboratory.register(app)
adviser.register(app)
calibration.register(app)
adversary.register(app)
reproduction.register(app)
bench.register(app)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version and the interpreter."""
    out.print(f"amcast {__version__}, {sys.implementation.name} {sys.version.split()[0]}")


def main() -> None:
    """Runs the command; maps every failure to its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs the command with these arguments and returns its exit code."""
    try:
        code = app(arguments, standalone_mode=False)
    except UsageError as error:
        return _refuse(str(error), WRONG_USE)
    except CannotTellError as error:
        return _refuse(str(error), UNKNOWN)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = find_extra(package)
        if extra is None:
            return _report_internal_error(error)
        return _refuse(describe_missing(package, extra), WRONG_USE)
    except KeyboardInterrupt:
        return _refuse("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        # Typer's own errors have a formatted message; their class is private to Typer.
        message = getattr(error, "format_message", None)
        if message is not None and not message():
            return WRONG_USE  # no command was given: the help is printed already
        if message is not None:
            command = getattr(getattr(error, "ctx", None), "command_path", "amcast")
            given = _describe_given_value(message(), arguments)
            return _refuse(f"{message().rstrip('.')}{given} (see: {command} --help)", WRONG_USE)
        if type(error).__name__ == "Abort":
            return _refuse("interrupted", 130)
        return _report_internal_error(error)
    return code if isinstance(code, int) else 0


def _describe_given_value(complaint: str, arguments: list[str]) -> str:
    """The value given for the flag that an error names: Typer names the flag and what it expects, not the value."""
    flags = [place for place, argument in enumerate(arguments[:-1]) if f"'{argument}'" in complaint]
    return f" (given: {arguments[flags[-1] + 1]!r})" if flags else ""


def _refuse(sentence: str, code: int) -> int:
    err.print(f"amcast: {sentence}", markup=False)
    return code


def _report_internal_error(error: Exception) -> int:
    if os.environ.get("AMCAST_DEBUG"):
        traceback.print_exc()
    handle, name = tempfile.mkstemp(prefix="amcast-error-", suffix=".txt")
    os.close(handle)
    Path(name).write_text("".join(traceback.format_exception(error)))
    return _refuse(f"internal error: {type(error).__name__}: {error} (the traceback is in {name})", INTERNAL)
