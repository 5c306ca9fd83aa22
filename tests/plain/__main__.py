"""Write anew the printed models that are frozen as text: `python -m tests.plain`."""

from pathlib import Path

from tfkit.plain.code import code

FROZEN = {name: Path(__file__).with_name(f"{name}.txt") for name in ("gpt2", "bert-base", "transformer-base")}

if __name__ == "__main__":
    for name, file in FROZEN.items():
        file.write_text(code(name), encoding="utf-8")
