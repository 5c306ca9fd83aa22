"""Start of the program: commands that only read recipes answer without torch, whose import takes seconds.

For them `torch` is a stand-in. Its names exist only for modules of tfkit that are being imported: base classes,
decorators, constants. Models are built from torch's own modules, on tensors that have a shape and no values. Any other
use, and any exception, restarts the program with torch, before anything is printed. User code runs only with torch.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn, TextIO, cast

from tfkit.cli.main import main
from tfkit.core.errors import installed
from tfkit.core.output import OutputLost, emit

COMMANDS = ("check", "explain", "parts", "schema")
USER_CODE = ("--import", "--trust", "--verify", "--check")  # options that run it, or run parts
RESTARTED = "TFKIT_RESTARTED"  # environment variable of the second start
FROZEN = "<frozen importlib._bootstrap>"  # file of the frames that import a module


def restart(*_: object, **__: object) -> NoReturn:
    """Replace this process by one that runs the same command with torch."""
    os.environ[RESTARTED] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Name(type):
    """Metaclass of the stand-in's modules and of the names in them, which nothing but an import may look into."""

    __eq__ = __bool__ = __repr__ = __dir__ = __subclasscheck__ = restart
    __hash__ = type.__hash__

    def __getattribute__(cls, name: str) -> object:
        whole = f"{type.__getattribute__(cls, '__name__')}.{name}"
        if whole in KNOWN:
            return KNOWN[whole]
        if any(known.startswith(f"{whole}.") for known in KNOWN):
            return import_module(whole)
        if name not in ("__name__", "__path__", "__spec__"):
            check_importing(sys._getframe(1))
        if name in ("__dict__", "__version__"):
            restart()
        return type.__getattribute__(cls, name) if name.endswith("__") else class_of(whole)

    def __call__(cls, *_: object, **__: object) -> object:
        check_importing(sys._getframe(1))
        return class_of("result")


def check_importing(frame: FrameType) -> None:
    """Restart unless the frame belongs to a module of tfkit or torch that is being imported."""
    user = frame.f_globals["__name__"].partition(".")[0]
    while frame.f_code.co_filename != FROZEN:
        frame = frame.f_back or restart()
    if user not in ("tfkit", "torch", "importlib", "_frozen_importlib"):
        restart()


@cache
def class_of(name: str) -> Name:
    """Return the one class with this name."""
    return Name(name, (), {})


class Tensor:
    """Tensor on `meta`, which has a shape unless it was computed."""

    shape: tuple[int, ...]
    device, grad_fn, requires_grad = "meta", None, False
    __eq__ = __bool__ = __repr__ = restart
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        restart()

    def numel(self) -> int:
        return math.prod(self.shape)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        self.requires_grad = requires_grad
        return self

    def filled(self, *_: float, **__: float) -> Tensor:
        return self

    def computed(self, *_: float, **__: object) -> Tensor:
        return Tensor()

    def detach(self, **_: object) -> Tensor:
        return made(self.shape)

    def expand(self, *shape: int) -> Tensor:
        return made(shape)

    clone = detach
    normal_ = uniform_ = bernoulli_ = filled
    __truediv__ = __rmul__ = computed


class Weight(Tensor):
    """Parameter of a module."""

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        self.shape, self.requires_grad = data.shape, requires_grad


class Device(nullcontext[str]):
    """Device, as a context too; the parts of a model are built on `meta`."""

    def __init__(self, name: str) -> None:
        super().__init__(name if name in ("meta", "cpu") else restart())


def made(*shape: Any, device: object = None, dtype: object = None) -> Tensor:
    """Make a tensor of a shape, given as a sequence or as numbers."""
    tensor, sizes = Tensor(), shape if isinstance(shape[0], int) else tuple(shape[0])
    if device not in (None, "meta") or min(sizes, default=0) < 0 or math.prod(sizes) >= 2**60:
        restart()
    tensor.shape = sizes
    return tensor


KNOWN: dict[str, object] = {
    **dict.fromkeys((f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "randn")), made),
    **dict.fromkeys(("torch.arange", "torch.exp"), Tensor.computed),
    **dict.fromkeys((f"torch.nn.init.{name}" for name in ("normal_", "uniform_", "kaiming_uniform_")), Tensor.filled),
    **dict.fromkeys(("torch.nn.Parameter", "torch.nn.parameter.Parameter"), Weight),
    "torch.Tensor": Tensor,
    "torch.device": Device,
    **{name: class_of(name) for name in ("torch.float64", "torch.contiguous_format", "torch.jit.ScriptModule")},
    "torch.nn.init._calculate_fan_in_and_fan_out": lambda weight: (1, 1),
    "torch.overrides.TorchFunctionMode": nullcontext,
    "torch._C._log_api_usage_once": id,
    "torch._jit_internal._copy_to_script_wrapper": lambda function: function,
}
OWN = [f"torch.nn.modules.{name}" for name in ("module", "lazy", "linear", "container", "sparse", "dropout")]


class StandIn(MetaPathFinder, Loader):
    """Finds the stand-in's modules, and torch's own in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        first, *more = name.split(".")
        if first != "torch" or name in OWN:
            return None
        spec = ModuleSpec(name, self, is_package=True)
        spec.submodule_search_locations = [str(self.folder.joinpath(*more))]
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        return class_of(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for own in map(import_module, OWN if module.__name__ == "torch.nn" else ()):
            KNOWN.update({f"torch.nn.{name}": value for name, value in vars(own).items() if name in own.__all__})


class Held:
    """Output stream that keeps what is written until the command has ended."""

    def __init__(self, stream: TextIO, log: list[tuple[TextIO, str]]) -> None:
        self.stream, self.log = stream, log

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self.log.append((self.stream, text + ""))  # raises TypeError for bytes, by which click tells text streams
        return len(text)


def start() -> None:
    """Run the program."""
    words, again = sys.argv[1:], os.environ.pop(RESTARTED, None)
    reads = bool(words) and words[0] in COMMANDS and not any(word.startswith(USER_CODE) for word in words)
    usable = os.name == "posix" and "torch" not in sys.modules and sys.stdout is not None and sys.stderr is not None
    torch = find_spec("torch") if reads and again is None and usable else None
    if torch is None or torch.origin is None or any(installed()):
        main(prog_name="tfkit")
    else:
        run_without(Path(torch.origin).parent)


def run_without(folder: Path) -> NoReturn:
    """Run the program without the torch in `folder`."""
    streams, log, status = (sys.stdout, sys.stderr), list[tuple[TextIO, str]](), None
    sys.meta_path.insert(0, StandIn(folder))
    sys.stdout, sys.stderr = (cast(TextIO, Held(stream, log)) for stream in streams)
    try:
        main(prog_name="tfkit")
    except SystemExit as end:
        status = end.code
    except BaseException:
        restart()
    sys.stdout, sys.stderr = streams
    try:
        for stream, text in log:
            emit(text, stream)
    except OutputLost:
        restart()
    sys.exit(status)
