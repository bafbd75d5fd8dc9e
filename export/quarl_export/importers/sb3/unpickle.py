"""Reads pickles without executing them: opcodes become plain data, and nothing that a pickle names is ever called.

A pickle is a program for a stack machine. Python's own machine imports what the program names and calls it; this one
has no import at all. A global becomes a `Global` (its name), the result of a call becomes what one of *our* functions
makes of the arguments (`Vocabulary.calls`) or a `Record` (the name with its arguments), and a global that the
vocabulary does not know is an error that names it. Opcodes: pickletools, protocols 2 to 5; the older text opcodes are
refused.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from quarl_device.errors import ModelFileError, UnsafeSource

MAX_NAME_SHOWN = 120
MAX_NAME = 1_000
MAX_INTEGER_BITS = 256
MAX_NESTING = 500
MAX_ARGUMENTS = 256
_MARK = object()


@dataclass(frozen=True)
class Global:
    """What a pickle names: "module.name", kept as a name.

    Attributes:
        name: dotted.
    """

    name: str


@dataclass(eq=False)
class Record:
    """An object of a class that is not here: its class's name and what it was made with.

    Attributes:
        name: dotted name of what was called or instantiated.
        arguments: of the call.
        state: what the object's dict would become.
        items: what was put into it by key.
        elements: what was appended to it.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)


def shown(value: Any) -> str:
    """Return what a message may say of a value of a stranger's: short scalars as they are, else the type's name.

    Nothing is asked for its `repr`: a tuple that holds another one twice, many times over, has one without end.
    """
    if isinstance(value, str):
        return repr(value[:40])
    if value is None or isinstance(value, (bool, float)):
        return str(value)
    if isinstance(value, int) and value.bit_length() <= 64:
        return str(value)
    return value.name[:MAX_NAME_SHOWN] if isinstance(value, Global) else type(value).__name__


def empty_dict(*arguments: Any) -> dict[Any, Any]:
    """Stand for `collections.OrderedDict`, which pickles make empty and then fill, item by item and checked.

    Made of something it would hash whatever keys it is given, and copy the same dict as often as it is asked to.

    Raises:
        ValueError: there are arguments.
    """
    if arguments:
        raise ValueError("an ordered dict that is made of something")
    return {}


@runtime_checkable
class Buildable(Protocol):
    """An object of ours that takes the state that a pickle gives it."""

    def build(self, state: Any) -> None:
        """Take `state`; raises ValueError or TypeError where it does not hold."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a pickle may name.

    Attributes:
        calls: dotted name to a function of ours that stands for it.
        names: dotted names that may be kept as data; one that ends in "." allows all that begin with it, and "" allows
            any. Kept is not called: `names` decides what is refused, never what is executed.
        persistent: makes something of a persistent id; `None` where there are none.
    """

    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    persistent: Callable[[Any], Any] | None = None

    def knows(self, name: str) -> bool:
        """Tell whether a pickle may name this."""
        return name in self.calls or any(
            name == known or (known.endswith(".") and name.startswith(known)) or not known for known in self.names
        )


def read_pickle(data: bytes, vocabulary: Vocabulary, *, what: str) -> Any:
    """Return what a pickle holds, as plain data, `Global`, `Record` and what `vocabulary.calls` makes.

    Args:
        data: the whole pickle; the caller caps its size. Time and memory grow with it in proportion: nothing that was
            remembered is copied when it is used again, and names, integers and arguments have caps. Values are shared,
            so whoever walks through them by value may walk for ever; say `shown` in messages.
        vocabulary: what it may name.
        what: for messages, such as "policy.pth".

    Raises:
        ModelFileError: truncated, damaged, nested too deeply, or over a cap.
        UnsafeSource: an opcode, global or persistent id that is not allowed; nothing of it was executed.
    """
    machine = _Machine(vocabulary, what)
    try:
        with warnings.catch_warnings():
            # A global's name is read as an escaped string, and a damaged one has escapes that Python warns of.
            warnings.simplefilter("ignore")
            for opcode, argument, _ in pickletools.genops(data):
                if opcode.name == "STOP":
                    return _not_too_deep(machine.result())
                machine.step(opcode.name, argument)
    except (ModelFileError, UnsafeSource):
        raise
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        said = f"nothing was kept as {error}" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(f"{what}: the pickle is damaged: {said[:MAX_NAME_SHOWN]}") from error
    raise ModelFileError(f"{what}: the pickle has no end")


class _Machine:
    """Stack and memo of one reading."""

    def __init__(self, vocabulary: Vocabulary, what: str) -> None:
        self.vocabulary = vocabulary
        self.what = what
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > MAX_INTEGER_BITS:
                raise ValueError(f"an integer of {argument.bit_length():,} bits")
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode]())
        elif opcode in _STEPS:
            _STEPS[opcode](self, argument)
        elif opcode not in _IGNORED:
            raise UnsafeSource(f"{self.what}: pickle opcode {opcode} is not allowed here; nothing was executed")

    def result(self) -> Any:
        if len(self.stack) != 1 or self.stack[0] is _MARK:
            raise ModelFileError(f"{self.what}: the pickle is damaged: {len(self.stack)} values at its end")
        return self.stack[0]

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value is needed")
        return value

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def top(self) -> Any:
        value = self.stack[-1]
        if value is _MARK:
            raise ValueError("a mark where a value is needed")
        return value

    def push_global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise ValueError("a global without a name")
        if len(module) + len(name) > MAX_NAME:
            raise ValueError("a global with an endless name")
        dotted = f"{module}.{name}"
        if not self.vocabulary.knows(dotted):
            raise UnsafeSource(
                f"{self.what}: the pickle names {dotted[:MAX_NAME_SHOWN]!r}, which is not allowed here; "
                "nothing of it was executed",
                hint="if the file is yours and was saved by another version, load and save it again with the newest",
            )
        self.stack.append(Global(dotted))

    def call(self) -> None:
        arguments, target = self.pop(), self.pop()
        if not isinstance(target, (Global, Record)) or not isinstance(arguments, tuple):
            raise ValueError("a call of what is no global, or without arguments")
        if len(arguments) > MAX_ARGUMENTS:
            raise ValueError(f"a call with {len(arguments):,} arguments")
        if isinstance(target, Global) and target.name in self.vocabulary.calls:
            self.stack.append(self.vocabulary.calls[target.name](*arguments))
        else:
            self.stack.append(Record(target.name, arguments))

    def call_with_keywords(self) -> None:
        keywords = self.pop()
        if not isinstance(keywords, dict):
            raise ValueError("keywords that are no dict")
        if keywords:
            arguments = self.top()
            if not isinstance(arguments, tuple) or len(arguments) >= MAX_ARGUMENTS:
                raise ValueError("a call without arguments, or with too many")
            self.stack[-1] = (*arguments, keywords)
        self.call()

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Record):
            target.state = state
        elif isinstance(target, Buildable):
            target.build(state)
        # A dict's own attributes are notes of its maker's (torch: "_metadata").
        elif not isinstance(target, dict):
            raise ValueError(f"state for a {type(target).__name__}")

    def put_items(self, pairs: list[Any]) -> None:
        target = self.top()
        items = target.items if isinstance(target, Record) else target
        if not isinstance(items, dict) or len(pairs) % 2:
            raise ValueError("items for what is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Hashing a tuple of tuples that were memoized can take forever.
            if not isinstance(key, (str, int, float, bytes, type(None))):
                raise ValueError(f"a dict's key is a {type(key).__name__}")
            items[key] = value

    def put_elements(self, values: list[Any]) -> None:
        target = self.top()
        elements = target.elements if isinstance(target, Record) else target
        if not isinstance(elements, list):
            raise ValueError("elements for what is no list")
        elements.extend(values)

    def push_persistent(self) -> None:
        if self.vocabulary.persistent is None:
            raise UnsafeSource(f"{self.what}: the pickle has persistent ids, which are not allowed here")
        self.stack.append(self.vocabulary.persistent(self.pop()))


def _not_too_deep(root: Any) -> Any:
    """Return `root`; raises ValueError where values lie in values over more than `MAX_NESTING` levels.

    Each is looked into once, whoever shares it; one that holds itself is as deep as it is without that.
    """
    depths: dict[int, int] = {}
    waiting: list[tuple[Any, Iterator[Any]]] = [(root, _inside(root))]
    depths[id(root)] = 0
    while waiting:
        value, parts = waiting[-1]
        part = next(parts, _MARK)
        if part is _MARK:
            waiting.pop()
            if waiting:
                above = id(waiting[-1][0])
                depths[above] = max(depths[above], depths[id(value)] + 1)
            continue
        if not isinstance(part, (tuple, list, dict, Record)):
            continue
        known = depths.get(id(part))
        if known is None:
            depths[id(part)] = 0
            waiting.append((part, _inside(part)))
        else:
            depths[id(value)] = max(depths[id(value)], known + 1)
        if len(waiting) > MAX_NESTING or depths[id(value)] > MAX_NESTING:
            raise ValueError(f"values lie in values over more than {MAX_NESTING} levels")
    if depths[id(root)] > MAX_NESTING:
        raise ValueError(f"values lie in values over more than {MAX_NESTING} levels")
    return root


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    if isinstance(value, Record):
        return iter((value.arguments, value.state, value.items, value.elements))
    return iter(value if isinstance(value, (tuple, list)) else ())


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def step(machine: _Machine, _: Any) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(values)))

    return step


def _collect(machine: _Machine, make: Callable[[list[Any]], Any]) -> None:
    values = machine.pop_to_mark()
    machine.stack.append(make(values))


def _dict_from_stack(machine: _Machine) -> None:
    pairs = machine.pop_to_mark()
    machine.stack.append({})
    machine.put_items(pairs)


def _one_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.put_items([key, value])


def _one_element(machine: _Machine) -> None:
    value = machine.pop()
    machine.put_elements([value])


def _named(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push_global(module, name)


def _remember(machine: _Machine, at: int) -> None:
    machine.memo[at] = machine.top()


_IGNORED = frozenset({"PROTO", "FRAME"})
_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8",
})  # fmt: skip
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    # A set is kept as a list: nothing here asks for membership, and hashing is best left alone.
    "EMPTY_SET": list,
    "MARK": lambda: _MARK,
}
_STEPS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "POP": lambda machine, _: (machine.stack.pop(), None)[1],
    "POP_MARK": lambda machine, _: (machine.pop_to_mark(), None)[1],
    "DUP": lambda machine, _: machine.stack.append(machine.top()),
    "TUPLE": lambda machine, _: _collect(machine, tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": lambda machine, _: _collect(machine, list),
    "FROZENSET": lambda machine, _: _collect(machine, list),
    "DICT": lambda machine, _: _dict_from_stack(machine),
    "APPEND": lambda machine, _: _one_element(machine),
    "APPENDS": lambda machine, _: machine.put_elements(machine.pop_to_mark()),
    "ADDITEMS": lambda machine, _: machine.put_elements(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: _one_item(machine),
    "SETITEMS": lambda machine, _: machine.put_items(machine.pop_to_mark()),
    "MEMOIZE": lambda machine, _: _remember(machine, len(machine.memo)),
    "BINPUT": _remember,
    "LONG_BINPUT": _remember,
    "BINGET": lambda machine, at: machine.stack.append(machine.memo[at]),
    "LONG_BINGET": lambda machine, at: machine.stack.append(machine.memo[at]),
    "GLOBAL": lambda machine, name: machine.push_global(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: _named(machine),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "NEWOBJ_EX": lambda machine, _: machine.call_with_keywords(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.push_persistent(),
}
