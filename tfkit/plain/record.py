"""Recording of a forward on `meta`: a mode of torch's Python API puts each call into the scope of its module.

What does not depend on a layer is moved before the loop over layers, and equal steps become one.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tfkit.plain.inputs import Unprintable
from tfkit.plain.values import Arguments, Operation, Options, Scope, Size, Sizes, Value, tensors_of, within

ROOM = str(Path(__file__).parent)
OUTSIDE = (ROOM, str(Path(torch.__file__).parent))  # frames whose variables are no names
LAYER = re.compile(r"\.layers\.\d+$")
# functions whose result depends on values, which a tensor on `meta` does not have
READS = {"item", "tolist", "numpy", "nonzero", "unique", "masked_select", "allclose", "equal"}
READS |= {f"__{name}__" for name in ("bool", "int", "index", "float", "contains")}
# functions whose tensors are no results
FACTS = {"requires_grad_", "detach_", "__set__", "is_same_size"}
KEEPS_NAME = {"masked_fill", "to", "float", "double", "clamp", "__getitem__", "view", "reshape", "transpose"}
NAMED = {"cos": "cosine", "sin": "sine", "arange": "index", "topk": "best"}
DROPPED = {"device", "pin_memory", "_stacklevel"}  # arguments that are not printed
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
FEW = 64  # most numbers of a constant tensor that is printed


def persistent(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the own weights and buffers of a module that its state_dict has."""
    buffers = [(name, one) for name, one in module._buffers.items() if name not in module._non_persistent_buffers_set]
    return [(name, one) for name, one in (*module._parameters.items(), *buffers) if one is not None]


def is_leaf(module: nn.Module) -> bool:
    """True for a module of torch that is called as it is: one without children, or a sequence of such."""
    known = type(module).__module__.startswith("torch.nn") and not isinstance(module, CONTAINERS)
    return known and all(map(is_leaf, module.children())) and (isinstance(module, nn.Sequential) or not module._modules)


def weighs(module: nn.Module) -> bool:
    """True if a module has weights or buffers, its own or those of its children."""
    return any(persistent(one) for one in module.modules())


class Recorder(TorchFunctionMode):
    """Mode that records into `root`; `lengths` are the sizes of the axes that vary, prime numbers, by name."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__()
        self.lengths = lengths
        self.values: dict[int, Value] = {}  # by the id of the tensor
        self.weights: dict[int, Value] = {}
        self.kept: list[object] = []  # tensors that must live, as their ids are keys
        self.seen: dict[object, list[Operation]] = {}
        self.results: dict[object, tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = {}
        self.stack: list[Scope] = []
        self.heavy: dict[int, bool] = {}  # modules that have weights, by their id
        self.model: nn.Module | None = None
        self.twins: dict[int, nn.Module] = {}  # module of the model by the id of a view of it

    def watch(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Scope:
        """Begin to record calls of a built model with these inputs, in the scope that is returned."""
        self.model, self.paths, self.calls = model, defaultdict[int, list[str]](list), Counter[int]()
        owners = defaultdict[int, list[str]](list)
        for path, module in model.named_modules(remove_duplicate=False):
            self.paths[id(module)].append(path)
            for name, one in persistent(module):
                owners[id(one)].append(f"{path}.{name}" if path else name)
                self.kept.append(one)
        self.weights = {key: Value(paths=paths) for key, paths in owners.items()}
        self.tied = [paths for paths in owners.values() if len(paths) > 1]
        root = Scope(model, "", None)
        root.given = [self.new(tensor, Value(root, names=[(root, name)])) for name, tensor in tensors.items()]
        self.stack.append(root)
        return root

    def new(self, tensor: Tensor, value: Value) -> Value:
        """Set the value of a tensor."""
        value.shape = value.shape or tuple(map(int, tensor.shape))
        self.kept.append(tensor)
        self.values[id(tensor)] = value
        return value

    def value(self, tensor: Tensor) -> Value:
        """Return the value of a tensor. Raise Unprintable if it was not recorded and is too large for a constant."""
        found = self.weights.get(id(tensor)) or self.values.get(id(tensor))
        if found is None:
            if tensor.is_meta or tensor.numel() > FEW:
                raise Unprintable(f"{self.where()} reads a tensor {list(tensor.shape)} that the forward did not make")
            step = Operation("constant", "constant", f"torch.tensor({tensor.tolist()})")
            found = self.new(tensor, Value(step=step))
            step.outs = [found]
        return found

    def stripped(self, argument: object) -> Any:
        """Copy a (nested) argument with values in place of tensors."""
        if isinstance(argument, Tensor):
            return self.value(argument)
        if isinstance(argument, slice):
            return slice(*map(self.stripped, (argument.start, argument.stop, argument.step)))
        if isinstance(argument, dict):
            return {name: self.stripped(one) for name, one in argument.items()}
        if isinstance(argument, (list, tuple)):
            return type(argument)(map(self.stripped, argument)) if type(argument) in (list, tuple) else tuple(argument)
        return argument

    def sizes(self, tensor: Tensor) -> Sequence[int]:
        """Return the shape of a tensor, in which the sizes that vary remember their origin."""
        value = self.values.get(id(tensor)) if self.stack else None
        if value is None:
            return tuple(tensor.shape)
        return Sizes(
            Size(size, ("shape", value, axis)) if self.varies(size) else size for axis, size in enumerate(tensor.shape)
        )

    def varies(self, size: int) -> bool:
        """True if a size is one of the lengths, nearly, or a multiple of the batch."""
        batch = self.lengths["batch"]
        return (size > 0 and size % batch == 0) or any(abs(size - length) <= 1 for length in self.lengths.values())

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        """Call a function and record it, if it returns tensors."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return self._attribute(func, args[0])
        if name in ("size", "numel"):
            return self._size(name, args, kwargs)
        if self.stack and (name in READS or (name == "where" and len(args) == 1)):
            raise Unprintable(f"{self.where()} reads values of a tensor ({name})")
        self._check_place(name, args, kwargs)
        out = self.computed(func, name, args, kwargs)
        return (
            out if name in FACTS or not tensors_of(out) else self.record(Operation("op", name, func), args, kwargs, out)
        )

    def computed(self, func: Callable[..., object], name: str, args: Arguments, kwargs: Options) -> Any:
        """Call a function, or make the result that it had for tensors of the same shapes (most layers are alike)."""
        given = tensors_of([*args, *kwargs.values()])
        if not self.stack or not given:
            return func(*args, **kwargs)
        key = (name, self._key(args, shapes=True), self._key(kwargs, shapes=True))
        if key not in self.results:
            out: Any = func(*args, **kwargs)
            known = isinstance(out, Tensor) and out.is_meta and id(out) not in set(map(id, given))
            self.results[key] = (out.shape, out.stride(), out.dtype) if known else None
            return out
        made = self.results[key]
        if made is None:
            return func(*args, **kwargs)
        return torch.empty_strided(made[0], made[1], dtype=made[2], device="meta")

    def _attribute(self, func: Any, tensor: Tensor) -> object:
        attribute, found = func.__self__.__name__, func(tensor)
        if attribute == "shape":
            return self.sizes(tensor)
        if isinstance(found, Tensor) and attribute not in ("data", "grad"):
            return self.record(Operation("op", attribute, func), (tensor,), {}, found)
        return found

    def _size(self, name: str, args: Arguments, kwargs: Options) -> object:
        shape = self.sizes(args[0])
        if name == "numel":
            return Sizes(shape).numel()
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        return shape if axis is None else shape[axis]

    def record(self, step: Operation, args: Arguments, kwargs: Options, out: Any) -> Any:
        """Record a call and return its result, or that of an equal earlier one."""
        tensors, held = tensors_of(out), {id(one) for one in tensors_of([*args, *kwargs.values()])}
        if not self.stack and step.name.endswith("_") and not step.name.endswith("__"):
            return out  # initial weights
        if len(tensors) == 1 and id(tensors[0]) in held:
            return out
        if self._changes_nothing(step, args, kwargs, out):
            self.new(out, self.values[id(args[0])])
            return out
        if self.stack:
            self.name([*args, *kwargs.values()])
        elif any(id(one) not in self.values for one in tensors_of([*args, *kwargs.values()])):
            return out  # made of weights, while building
        step.args = self.stripped(tuple(args))
        step.kwargs = {
            name: self.stripped(one)
            for name, one in kwargs.items()
            if name not in DROPPED and not (name in ("requires_grad", "inplace") and not one)
        }
        outs = self._equal(step)
        if outs is None:
            step.many = isinstance(out, (tuple, list))
            step.nested = list(out) if step.many and not all(isinstance(one, Tensor) for one in out) else None
            if self.stack:
                self.place(step)
            outs = step.outs = [Value(step.scope, step, usual=self._usual(step, one)) for one in tensors]
        for tensor, value in zip(tensors, outs, strict=True):
            self.new(tensor, value)
        return out

    def _equal(self, step: Operation) -> list[Value] | None:
        """Return the results of an equal earlier operation in this scope or around it."""
        if (
            not self.stack
            or step.kind not in ("op", "einops")
            or "dropout" in step.name
            or step.kwargs.get("dropout_p")
        ):
            return None
        known = self.seen.setdefault((step.name, self._key(step.args), self._key(step.kwargs)), [])
        known.append(step)
        return next((old.outs for old in known[:-1] if old.scope in self.stack[-1].chain()), None)

    def _check_place(self, name: str, args: Arguments, kwargs: Options) -> None:
        """Raise Unprintable for an operation in place, except on a buffer (whose updates are not printed)."""
        inplace = name == "__setitem__" or bool(kwargs.get("inplace")) or kwargs.get("out") is not None
        inplace = inplace or re.fullmatch(r"__i(?!nvert|ndex|nt)\w+__|(?!__)\w+_", name) is not None
        buffer = bool(args) and id(args[0]) in self.weights and not isinstance(args[0], nn.Parameter)
        if self.stack and inplace and not buffer:
            raise Unprintable(f"{self.where()} changes a tensor in place ({name})")

    def _changes_nothing(self, step: Operation, args: Arguments, kwargs: Options, out: Any) -> bool:
        """True for a product with 1.0, and for a slice of everything."""
        if not args or id(args[0]) not in self.values or kwargs:
            return False
        if step.name == "mul":
            return type(args[1]) is float and args[1] == 1.0
        if step.name != "__getitem__" or out.shape != args[0].shape:
            return False
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(one is Ellipsis or (isinstance(one, slice) and _is_prefix(one)) for one in index)

    def _key(self, argument: object, shapes: bool = False) -> object:
        """Return a hashable key, equal for equal arguments. With `shapes`, sizes are compared by value."""
        if isinstance(argument, Tensor):
            return argument.shape, argument.stride(), argument.dtype
        if isinstance(argument, Value):
            return id(argument)
        if isinstance(argument, Size):
            return int(argument) if shapes else ("size", *map(self._key, argument.origin))
        if isinstance(argument, (list, tuple)):
            return tuple([self._key(one, shapes) for one in argument])
        if isinstance(argument, dict):
            return tuple([(name, self._key(one, shapes)) for name, one in argument.items()])
        if isinstance(argument, slice):
            return ("slice", *[self._key(one, shapes) for one in (argument.start, argument.stop, argument.step)])
        return type(argument).__name__, str(argument)

    def _usual(self, step: Operation, tensor: Tensor) -> str | None:
        if tensor.dtype == torch.bool:
            return "mask"
        if step.kind == "leaf":
            return str(step.path).rsplit(".", 1)[-1]
        if step.kind == "einops" or step.name in KEEPS_NAME:
            source = next((value for value in step.values() if value.step is not None), None)
            return None if source is None else next((name for _, name in source.names if len(name) > 1), source.usual)
        return NAMED.get(step.name)

    def frame(self) -> FrameType:
        """Return the frame of the code that called torch."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(OUTSIDE):
            frame = frame.f_back
        return frame

    def where(self) -> str:
        """Describe what is being recorded: the part and the line."""
        frame = self.frame()
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        return f"{frame.f_code.co_qualname} ({place})"

    def name(self, arguments: Arguments) -> None:
        """Note the variables of the calling code that hold these tensors."""
        names: dict[int, str] = {}
        for name, one in self.frame().f_locals.items():
            if isinstance(one, Tensor):
                names.setdefault(id(one), name.strip("_"))
            for inner in vars(type(one)).get("_fields", ()):  # of a named tuple
                names.setdefault(id(getattr(one, inner)), inner)
        for tensor in tensors_of(arguments):
            if id(tensor) in names and id(tensor) in self.values:
                self.values[id(tensor)].names.append((self.stack[-1], names[id(tensor)]))

    def place(self, step: Operation) -> None:
        """Append a step to the scope that its weights and inputs allow: before the layers if it needs none of them."""
        scope, chain, values = self.stack[-1], self.stack[-1].chain(), step.values()
        paths = [value.paths for value in values if value.paths] + ([[step.path]] if step.path else [])
        while not all(any(within(path, scope.path) for path in many) for many in paths) and scope.parent is not None:
            scope = scope.parent
        layer = next((one for one in reversed(chain) if LAYER.search(one.path)), None)
        if layer is not None and layer.parent is not None and scope.depth >= layer.depth:
            made = [value.scope for value in values if value.scope is not None]
            inside = any(one.depth >= layer.depth or one not in chain for one in made)
            if not inside and not any(within(path, layer.path) for many in paths for path in many):
                scope = layer.parent
        mark = len(scope.steps)
        for value in values:
            self._settle(value, scope)
            self._lift(value, scope)
        step.scope = scope
        scope.steps.append(step)
        if layer is not None and scope is layer.parent:  # before the loop over layers, whichever layer came first
            calls = [index for index, one in enumerate(scope.steps) if one.child and LAYER.search(one.child.path)]
            if calls:
                moved = scope.steps[mark:]
                del scope.steps[mark:]
                scope.steps[calls[0] : calls[0]] = moved

    def _settle(self, value: Value, scope: Scope) -> None:
        """Place what was made while building where it is first used."""
        if value.step is not None and value.scope is None:
            for one in value.step.values():
                self._settle(one, scope)
            _put(value.step, scope)

    def _lift(self, value: Value, scope: Scope) -> None:
        """Move what an outer step needs out of an inner scope."""
        step = value.step
        if step is None or value.scope is None or value.scope.depth <= scope.depth or step.child is not None:
            return
        if value.scope in self.stack[-1].chain():
            value.scope.steps.remove(step)
            for one in step.values():
                self._lift(one, scope)
            _put(step, scope)

    def enter(self, scope: Scope, call: Callable[[], object], arguments: Arguments, step: Operation) -> object:
        """Run a call in a new scope, whose step is added to the scope around it."""
        self.name(arguments)
        self.stack.append(scope)
        out = call()
        self.stack.pop()
        scope.given = [self.values[id(one)] for one in tensors_of(arguments) if id(one) in self.values]
        parent, module = self.stack[-1], scope.module
        if module is not None and any(one.path and not within(one.path, scope.path) for one in scope.steps):
            for one in scope.steps:  # a layout, which calls its neighbours, belongs to the layer
                _put(one, parent)
                if one.child is not None:
                    one.child.move(parent)
            return out
        step.scope, step.child = parent, scope
        parent.steps.append(step)
        return out

    def weighs(self, module: nn.Module) -> bool:
        if id(module) not in self.heavy:
            self.heavy[id(module)] = weighs(module)
        return self.heavy[id(module)]

    def path_of(self, module: nn.Module) -> str:
        """Return the path at which a module is called now; shared modules are called in the order of their paths."""
        paths = self.paths[id(module)]
        inner = [path for path in paths if within(path, self.stack[-1].path)] or paths
        self.calls[id(module)] += 1
        return inner[(self.calls[id(module)] - 1) % len(inner)]


def _put(step: Operation, scope: Scope) -> None:
    """Append a step to a scope."""
    step.scope = scope
    for value in step.outs:
        value.scope = scope
    scope.steps.append(step)


def _is_prefix(index: slice) -> bool:
    whole = index.stop is None or (type(index.stop) is int and index.stop > 0)
    return index.start in (None, 0) and index.step is None and whole
