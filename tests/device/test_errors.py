"""The error tree in the docstring is the error tree in the code."""

import inspect
import re

import pytest

from quarl_device import errors
from quarl_device.errors import QuarlError

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, QuarlError)
}
TREE = {
    match[2]: (len(match[1]) // 4, match[3])
    for line in (errors.__doc__ or "").splitlines()
    if (match := re.match(r"^ {4}((?:[│├└─ ]{4})*)([A-Z]\w+) *(\d+)?", line))
}


def documented_parents() -> dict[str, str]:
    parents, path = {}, []
    for name, (depth, _) in TREE.items():
        path = [*path[:depth], name]
        if depth:
            parents[name] = path[depth - 1]
    return parents


def test_the_tree_names_every_class_and_no_other():
    assert set(TREE) == set(CLASSES)


def test_the_tree_shows_each_parent():
    assert documented_parents() == {
        name: cls.__base__.__name__ for name, cls in CLASSES.items() if cls is not QuarlError
    }


@pytest.mark.parametrize("name", sorted(name for name, (_, code) in TREE.items() if code))
def test_the_tree_shows_each_code(name):
    assert CLASSES[name].code == int(TREE[name][1])


def test_codes_are_unique():
    codes = [cls.code for name, cls in CLASSES.items() if TREE[name][1]]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("parent", "low", "high"),
    [
        (errors.ModelError, 10, 19),
        (errors.EnvironmentFault, 20, 29),
        (errors.LinkError, 30, 39),
        (errors.TrustError, 40, 49),
        (errors.DeviceError, 50, 59),
        (errors.LearnerError, 70, 79),
        (errors.MissingPart, 80, 83),
        (errors.InstallError, 84, 86),
    ],
)
def test_codes_lie_in_the_range_of_their_kind(parent, low, high):
    kinds = [cls for cls in CLASSES.values() if issubclass(cls, parent) and cls is not parent]
    assert kinds
    assert all(low <= cls.code <= high for cls in kinds)


def test_every_class_says_what_it_means():
    assert all((cls.__doc__ or "").strip() for cls in CLASSES.values())


def test_message_and_hint():
    assert str(QuarlError("it broke")) == "it broke"
    error = QuarlError("it broke", hint="mend it")
    assert str(error) == "it broke (mend it)"
    assert (error.message, error.hint, error.code) == ("it broke", "mend it", 1)
