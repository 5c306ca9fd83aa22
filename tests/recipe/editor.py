"""What an editor does with a recipe: reads YAML 1.2, where `none` is a word like any other, and asks a language server.

The server is yaml-language-server, spoken to over standard input and output (Language Server Protocol).
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CORE = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
)


class Core(yaml.SafeLoader):
    """PyYAML's parser with the core rules of YAML 1.2."""

    yaml_implicit_resolvers: Any = {}


def _whole(loader: Core, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if re.match("0[ox]", text) else int(text)


for kind, pattern, first in CORE:
    Core.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), list(first))
Core.add_constructor("tag:yaml.org,2002:int", _whole)
Core.add_constructor("tag:yaml.org,2002:float", lambda loader, node: float(loader.construct_scalar(node)))
Core.add_constructor("tag:yaml.org,2002:merge", lambda loader, node: loader.construct_scalar(node))  # no key, a value


def read(text: str) -> Any:
    """The data that an editor checks against a schema."""
    return yaml.load(text, Core)


class Diagnostic(NamedTuple):
    """What is underlined, where it begins (counted from 1), and what is said of it."""

    word: str
    place: str
    message: str


class Server:
    """A running yaml-language-server that checks `*.yaml` against one schema, a local file."""

    def __init__(self, command: Sequence[str], schema: Path | None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.numbers = itertools.count(1)
        offline = {"schemaStore": {"enable": False}, "kubernetesCRDStore": {"enable": False}}
        schemas = {} if schema is None else {schema.as_uri(): ["*.yaml"]}
        self.settings = {"yaml": {"schemas": schemas, "validate": True, "hover": True, "completion": True, **offline}}
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        able = {
            "workspace": {"configuration": True},
            "textDocument": {"completion": {"completionItem": {"documentationFormat": ["plaintext"]}}},
        }
        self.request("initialize", {"processId": None, "rootUri": None, "capabilities": able})
        self._send(method="initialized", params={})

    def diagnostics(self, text: str, folder: Path = Path("/")) -> list[Diagnostic]:
        """What the server finds wrong in a recipe, in the order of the text."""
        lines = text.split("\n")
        found = []
        for one in self._open(text, folder)[1]:
            start, end = one["range"]["start"], one["range"]["end"]
            last = end["character"] if end["line"] == start["line"] else None
            word = lines[start["line"]][start["character"] : last]
            found.append((start["line"] + 1, start["character"] + 1, word, one["message"]))
        return [Diagnostic(word, f"{line}:{column}", message) for line, column, word, message in sorted(found)]

    def completions(self, text: str) -> dict[str, str]:
        """What is offered where the text says ¦, each with its documentation."""
        found = self._at("textDocument/completion", text)
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"]: _text(item.get("documentation", "")) for item in items}

    def hover(self, text: str) -> str:
        """What is shown of the word in which the text says ¦, without Markdown's escapes."""
        found = self._at("textDocument/hover", text)
        return "" if found is None else _text(found["contents"]).replace("\\", "")

    def request(self, method: str, params: Any) -> Any:
        """The server's answer."""
        number = next(self.numbers)
        self._send(id=number, method=method, params=params)
        return self._wait(lambda message: message.get("id") == number and "method" not in message)["result"]

    def close(self) -> None:
        """Ask the server to end, and wait for it."""
        self.request("shutdown", None)
        self._send(method="exit", params=None)
        self.process.wait(timeout=10)
        self.reader.join(timeout=10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _at(self, method: str, marked: str) -> Any:
        before, text = marked.partition("¦")[0], marked.replace("¦", "")
        place = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
        return self.request(method, {"textDocument": {"uri": self._open(text, Path("/"))[0]}, "position": place})

    def _open(self, text: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
        """The address under which a text is opened, and what is wrong in it."""
        uri = (folder / f"recipe{next(self.numbers)}.yaml").as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        published = self._wait(
            lambda one: one.get("method") == "textDocument/publishDiagnostics" and one["params"]["uri"] == uri
        )
        return uri, published["params"]["diagnostics"]

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that is `wanted`; questions that the server asks on the way are answered."""
        while True:
            message = self.inbox.get(timeout=60)
            if "method" in message and "id" in message:
                asked = message["params"]["items"] if message["method"] == "workspace/configuration" else None
                answer = None if asked is None else [self.settings.get(item["section"]) for item in asked]
                self._send(id=message["id"], result=answer)
            elif wanted(message):
                return message

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while header := stream.readline():
            length = int(header.partition(b":")[2]) if header.lower().startswith(b"content-length:") else 0
            if length:
                while stream.readline().strip():
                    pass
                self.inbox.put(json.loads(stream.read(length)))


def _text(documentation: Any) -> str:
    return documentation["value"] if isinstance(documentation, dict) else documentation
