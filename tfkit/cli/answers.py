"""The JSON Schema of what the commands answer with --json."""

from __future__ import annotations

from pathlib import Path

import yaml

VERSION = 1  # raised when a key is removed or changes its meaning
Schema = dict[str, object]
TYPES = {"text": "string", "flag": "boolean", "list": "array"}


def answers_schema() -> Schema:
    """Return a JSON Schema with a definition for each command, for faults and for lines of progress."""
    forms = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"urn:tfkit:answers:{VERSION}",
        "title": "answers of tfkit",
        "description": "standard output of each command with --json; a command that fails answers with `faults`",
        "definitions": {name: _schema(form) for name, form in forms.items()},
    }


def _schema(form: object) -> Schema:
    if isinstance(form, str):
        word, _, meaning = form.partition(" ")
        kind = TYPES.get(word.rstrip("?"), word.rstrip("?"))
        allowed = {} if kind == "any" else {"type": [kind, "null"] if word.endswith("?") else kind}
        return {**allowed, "description": meaning}
    if isinstance(form, list):
        return {"type": "array", "items": _schema(form[0])}
    if not isinstance(form, dict):
        raise TypeError(f"answers.yaml: {form!r} is no form")
    if "one of" in form:
        return {"anyOf": [_schema(one) for one in form["one of"]]}
    if "each line" in form:
        return {"description": "form of each line", **_schema(form["each line"])}
    keys = {key: _schema(value) for key, value in form.items() if key != "..."}
    return {
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": _schema(form["..."]) if "..." in form else False,
    }
