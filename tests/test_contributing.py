"""Every Python example of CONTRIBUTING.md runs as it stands, each in a process of its own, since it registers an extension."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(
    r"^### ([^\n]+)\n(.*?)(?=^##)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
)


@pytest.mark.parametrize(("title", "text"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_example_runs(title: str, text: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks, f"{title} has no example"
    for block in blocks:
        done = subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_each_kind_of_extension_has_an_example() -> None:
    assert sorted(title for title, _ in EXAMPLES) == ["A reward", "An algorithm", "An engine", "An environment", "An operator"]
