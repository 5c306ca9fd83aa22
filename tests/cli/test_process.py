"""The command line as a process of its own: how soon it answers, and how it ends in a pipe."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "pydantic", "rich", "yaml", "einops", "numpy")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tfkit.cli.main import main; import tfkit.cli.train, tfkit.cli.show, tfkit.cli.check\n"
        f"main(['--help'], standalone_mode=False); sys.exit(str([n for n in {HEAVY} if n in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "check" in result.stdout
    assert result.stderr.strip() == "[]"


@pytest.mark.full
def test_a_closed_pipe_ends_quietly() -> None:
    command = [sys.executable, "-u", "-m", "tfkit", "show", "gpt2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
