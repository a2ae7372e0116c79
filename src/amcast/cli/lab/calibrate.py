"""The command `amcast calibrate`: the cost of a packet on this machine."""

import json as json_format
import re
from pathlib import Path
from typing import Annotated

import typer

from amcast.cli.extras import require_extra
from amcast.cli.output import JsonFlag, SeedOption, err, out, print_json, print_table
from amcast.cli.panels import LABORATORY
from amcast.kernel.errors import UsageError


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command(rich_help_panel=LABORATORY)(calibrate)


def calibrate(
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="A name of `amcast protocols`.")] = "primcast",
    payloads: Annotated[str, typer.Option("--payloads", help="Bytes, separated by commas.")] = "64,4096,16384",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds of each live run.")] = 3.0,
    target: Annotated[Path | None, typer.Option("--out", help="Write the result as JSON.")] = None,
    seed: SeedOption = 0,
    json: JsonFlag = False,
) -> None:
    """Fit the CPU time of a packet, a + b x bytes, from live runs on this machine, for the \\[network] of plans.

    Each payload is measured with one and with two destination groups, one message at a time.

    Example: amcast calibrate --protocol whitebox --payloads 64,4096,16384 --out cost.json
    """
    require_extra("trace")
    if not re.fullmatch(r"\d{1,7}(,\d{1,7})+", payloads):
        raise UsageError(f"--payloads {payloads!r}; expected two or more numbers of bytes, such as 64,4096,16384")

    from amcast.lab.experiments.calibration import calibrate as measure
    from amcast.lab.protocol_lookup import find_protocol

    find_protocol(protocol)
    sizes = sorted({int(part) for part in payloads.split(",")})
    cost = measure(protocol, sizes, seconds, seed, say=lambda line: err.print(line, markup=False))
    data = {"protocol": protocol, "seed": seed, "seconds": seconds, **cost.as_dict()}
    if target is not None:
        try:
            target.write_text(json_format.dumps(data, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {target}: cannot be written: {error.strerror}") from None
    if json:
        print_json(data)
        return
    print_table(
        ("groups", "bytes", "packets", "KB", "CPU, us", "left over, us"),
        [
            (
                point.destinations,
                point.payload,
                f"{point.packet_ends:.1f}",
                f"{point.byte_ends / 1000:.1f}",
                f"{point.cpu_us:.1f}",
                f"{left:+.1f}",
            )
            for point, left in zip(cost.points, cost.residuals_us, strict=True)
        ],
        title="per multicast; packets and bytes are counted where they are sent and where they are received",
    )
    out.print(
        f"{cost.packet_us:.2f} us for a packet sent or received, and {cost.byte_ns:.3f} ns for each byte;"
        f" what is left over is {cost.relative_error:.0%} of the mean"
    )
    fields = ", ".join(f"{name} = {value}" for name, value in cost.as_dict()["network"].items())
    out.print(f"in a plan: network = {{ {fields} }}", markup=False)
