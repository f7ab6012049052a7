"""Writes the parts of the docs that come from the code: settings, rules, constants, metrics. `--check` writes nothing."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from headgate.config import Settings
from headgate.config.settings import reference
from headgate.scheduler.rules import transition_table
from headgate.server import metrics
from headgate.sim import constants

ROOT = Path(__file__).parent.parent
SETTINGS = """# Settings

Set any of these with `--set name=value` on the command line, or in `[settings]` of a cluster file. A scenario file has settings of
the control loop in `[settings]` and settings of hosts in `[provisioning]`. `headgate settings` prints these tables. The column `--fast`
shows the value that `headgate run --fast` uses in place of the default.

"""


def constants_table() -> str:
    """Name, value and sentence of each constant of the simulator."""
    found = re.findall(
        r'^([A-Z_]+): Final = ([\d.]+)\n"""(.+?)"""', inspect.getsource(constants), re.MULTILINE | re.DOTALL
    )
    rows = [f"| `{name}` | {value} | {' '.join(text.split())} |" for name, value, text in found]
    return "\n".join(["| constant | value | meaning |", "|---|---|---|", *rows]) + "\n"


def with_block(text: str, name: str, content: str) -> str:
    """The text with what stands between two marks replaced."""
    pattern = rf"(<!-- {name}[^\n]*-->\n).*?(<!-- /{name} -->)"
    return re.sub(pattern, lambda marks: f"{marks[1]}{content}{marks[2]}", text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """What each generated page should be."""
    architecture, scenarios = ROOT / "docs/architecture.md", ROOT / "docs/scenarios.md"
    monitoring = ROOT / "docs/monitoring.md"
    return {
        ROOT / "docs/settings.md": SETTINGS + reference(),
        architecture: with_block(architecture.read_text(), "rules", transition_table(Settings())),
        scenarios: with_block(scenarios.read_text(), "constants", constants_table()),
        monitoring: with_block(monitoring.read_text(), "metrics", metrics.reference()),
    }


def main() -> int:
    """Write, or check."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv:
        for path in stale:
            path.write_text(pages()[path])
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale; run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
