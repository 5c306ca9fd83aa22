"""Repositories on the Hugging Face hub, or in a local folder: names, downloads and readable errors."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfkit.core.errors import DataError, UsageError, optional

PREFIX = "hf://"
LOCAL = "TFKIT_HUB"  # environment variable: a folder that is used as the hub, with repositories user/name
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


def is_on_hub(source: object) -> bool:
    """True for the address of a repository, hf://user/name."""
    return isinstance(source, str) and source.startswith(PREFIX)


def repository(address: str) -> str:
    """Return the name of a repository, user/name, from hf://user/name. Raise UsageError if the address is invalid."""
    name = address.removeprefix(PREFIX)
    bad = "--" in name or ".." in name or name.endswith((".git", ".", "-"))
    if not is_on_hub(address) or _NAME.fullmatch(name) is None or bad:
        text = f"is not the address of a repository on the hub; use {PREFIX}user/name, each at most 96 letters"
        raise UsageError(f"{address[:250]!r} {text}")
    return name


def local_repository(name: str) -> Path | None:
    """Return the folder of a repository, user/name, if TFKIT_HUB is set. Raise DataError if it is not a folder."""
    if not (hub := os.environ.get(LOCAL)):
        return None
    if not os.path.isdir(hub):
        raise DataError(f"{LOCAL}={hub}: no such folder")
    return Path(hub) / repository(PREFIX + name)


def downloaded(name: str, patterns: Sequence[str], address: str) -> Path:
    """Download files of a repository, unless the hub is local. Raise DataError, or UsageError without the library."""
    if (folder := local_repository(name)) is not None:
        return folder
    hub = optional("huggingface_hub", "hf", f"{address} is on the hub, which needs")
    with in_words(address):
        return Path(hub.snapshot_download(name, allow_patterns=list(patterns)))


@contextlib.contextmanager
def in_words(address: str) -> Iterator[None]:
    """Convert errors of the hub to DataError with the address."""
    errors = optional("huggingface_hub.errors", "hf", f"{address} is on the hub, which needs")
    try:
        yield
    except (UsageError, DataError):
        raise
    except Exception as error:  # the hub's errors have no common base class
        raise DataError(f"{address}: {_reason(error, errors)}") from None


def _reason(error: Any, errors: Any) -> str:
    """Describe why the request failed and what to do."""
    has_response = isinstance(error, errors.HfHubHTTPError) and error.response is not None
    status = error.response.status_code if has_response else None
    if isinstance(error, errors.GatedRepoError):
        return "is gated: accept its terms on the hub's page first"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the repository does not exist or is private: {LOGIN}"
    if isinstance(error, errors.LocalTokenNotFoundError) or status == 401:
        return f"the hub requires authentication: {LOGIN}"
    if status == 403:
        return "access denied: the token has no write access; use a token with write access"
    if isinstance(error, (ConnectionError, TimeoutError, errors.LocalEntryNotFoundError)):
        return "the hub cannot be reached, and the cache has no complete copy; connect and retry"
    lines = str(error).strip().splitlines()
    return f"the request failed: {lines[0] if lines else type(error).__name__}"
