"""Makes the pictures of the documentation from what amcast does: `make pictures`.

spacetime.svg    one message of a simulated run, packet by packet
kill.svg         the seconds around the kill of `amcast demo`
report.png       the page of a small sweep, on a desktop
phone.png        the same page on a phone, in the dark

It needs Chromium for the screenshots, and about two minutes. What it measures differs from machine to machine.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent
PLAN = """
protocol = "primcast"
[topology]
environment = "wan-3"
groups = 4
replicas = 3
clients = 6
[workload]
name = "micro"
destinations = 2
messages = 60
[grid]
protocol = [
    "skeen", "basecast", "fastcast", "whitebox", "primcast", "primcast-hc", "multipaxos", "a-ge", "a-ng", "ring",
    "treecast", "flexcast",
]
seed = "0..4"
workload.outstanding = [1, 4, 8]
"""
CHROMIUM = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


def main() -> int:
    """Makes all pictures; ends with 1 if Chromium is missing."""
    if shutil.which("chromium") is None:
        print("no chromium on this machine; expected one for the screenshots", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "plan.toml").write_text(PLAN)
        run(work, "simulate", "-p", "skeen", "--groups", "2", "--destinations", "2", "--messages", "2", "--out", "run")
        run(work, "view", "run", "--picture", "spacetime.svg")
        shutil.copyfile(work / "spacetime.svg", PICTURES / "spacetime.svg")
        run(work, "demo", "--out", "demo")
        shutil.copyfile(work / "demo" / "pictures" / "faults.svg", PICTURES / "kill.svg")
        run(work, "sweep", "plan.toml", "--out", "protocols")
        run(work, "report", "protocols")
        page = (work / "protocols" / "report.html").as_uri()
        take_screenshot(work, page, "report.png", 1180, 1560, 1)
        take_screenshot(work, page, "phone.png", 500, 900, 0)
    for file in sorted(PICTURES.glob("*.*g")):
        print(f"{file.name}: {file.stat().st_size} bytes")
    return 0


def run(work: Path, *arguments: str) -> None:
    """Runs a command of amcast in a folder."""
    subprocess.run([sys.executable, "-m", "amcast", *arguments], cwd=work, check=True)


def take_screenshot(work: Path, page: str, name: str, width: int, height: int, scheme: int) -> None:
    """The upper part of a page; scheme 0 is dark, 1 is light."""
    arguments = [f"--user-data-dir={work / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}"]
    arguments += [f"--screenshot={PICTURES / name}", f"--window-size={width},{height}", "--virtual-time-budget=3000"]
    subprocess.run([*CHROMIUM, *arguments, page], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    sys.exit(main())
