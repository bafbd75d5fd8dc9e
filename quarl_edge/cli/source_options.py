"""What a source of others cannot say of itself, as options of every command that reads one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from quarl_device.errors import UsageError

if TYPE_CHECKING:
    from quarl_export.importers import ImportOptions


class HeadName(StrEnum):
    """Values of `--head`."""

    Q_VALUES = "q_values"
    LOGITS = "logits"
    ACTION = "action"
    GAUSSIAN = "gaussian"


class ActionUnits(StrEnum):
    """Values of `--action-units`."""

    UNIT = "unit"
    ENVIRONMENT = "environment"


class Squash(StrEnum):
    """Values of `--squash`."""

    NONE = "none"
    TANH = "tanh"


Environment = Annotated[str, typer.Option("--env", help="Environment of the policy, where its file does not name one.")]
Wrappers = Annotated[
    list[str] | None,
    typer.Option(
        "--wrapper",
        metavar="NAME(...)",
        help="Wrapper of gymnasium that the policy was trained behind, such as 'RescaleAction(min_action=-1, "
        "max_action=1)'; the innermost first; may be given often.",
    ),
]
Head = Annotated[HeadName | None, typer.Option("--head", help="What outputs mean; guessed where it is not given.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=KEY", help="Observation key that an input of the model takes; may be given often."
    ),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        metavar="ROLE=NAME",
        help="Output of the model that gives a ROLE: q_values, logits, action, mean or log_std; others stay behind; "
        "may be given often.",
    ),
]
Signature = Annotated[str, typer.Option("--signature", metavar="NAME", help="Function of a SavedModel that acts.")]
Stack = Annotated[
    list[str] | None,
    typer.Option(
        "--stack", metavar="[KEY=]K", help="Frames that an input holds, of every observation or of KEY alone."
    ),
]
StackFill = Annotated[
    str,
    typer.Option(
        "--stack-fill",
        metavar="first|zeros|NUMBER",
        help="What lies before an episode's first frame. Default: that frame itself.",
        show_default=False,
    ),
]
Units = Annotated[
    ActionUnits | None,
    typer.Option(
        "--action-units", help="A box action leaves the model in -1..1 (unit), or as the environment takes it."
    ),
]
SquashOption = Annotated[
    Squash, typer.Option("--squash", help="What a gaussian head's mean goes through before it acts.")
]
VecNormalize = Annotated[
    Path | None, typer.Option("--vecnormalize", help="VecNormalize statistics of a Stable-Baselines3 zip.")
]

# The roles are those of `quarl_export.importers.options`, which may not be installed.
_FORMS = {
    "--output": "ROLE is q_values, logits, action, mean or log_std, NAME the model's own name: --output q_values=q1",
    "--input": "NAME is the model's own name, KEY an observation of the environment: --input camera=image",
}


@dataclass(frozen=True, kw_only=True)
class SourceWishes:
    """The options of a source as they were given, each word read.

    Attributes: as `quarl_export.importers.ImportOptions` has them, which this module does not load before it must.
    """

    env_id: str = ""
    wrappers: tuple[str, ...] = ()
    head: HeadName | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    signature: str = ""
    stack: int | dict[str, int] = 1
    stack_fill: float | Literal["first"] | None = None
    action_units: ActionUnits | None = None
    squash: Squash = Squash.NONE
    vecnormalize: Path | None = None

    @classmethod
    def read(
        cls,
        *,
        env: str,
        wrappers: Sequence[str] | None,
        head: HeadName | None,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | None,
        signature: str,
        stack: Sequence[str] | None,
        stack_fill: str,
        action_units: ActionUnits | None,
        squash: Squash,
        vecnormalize: Path | None,
    ) -> SourceWishes:
        """Read the options of a command, by the names of its parameters.

        Raises:
            UsageError: a word that cannot be read.
        """
        return cls(
            env_id=env,
            wrappers=tuple(wrappers or ()),
            head=head,
            inputs=read_pairs("--input", inputs, "NAME=KEY"),
            outputs=read_pairs("--output", outputs, "ROLE=NAME"),
            signature=signature,
            stack=read_stack(stack),
            stack_fill=read_stack_fill(stack_fill),
            action_units=action_units,
            squash=squash,
            vecnormalize=vecnormalize,
        )

    def options(self) -> ImportOptions:
        """Return the library's options.

        Raises:
            UsageError: a role or a number that cannot be.
        """
        from quarl_export.importers import ImportOptions

        return ImportOptions(
            env_id=self.env_id,
            wrappers=self.wrappers,
            head=self.head.value if self.head else None,
            inputs=self.inputs,
            outputs=self.outputs,
            signature=self.signature,
            stack=self.stack,
            stack_fill=self.stack_fill,
            action_units=self.action_units.value if self.action_units else None,
            squash=self.squash.value,
            vecnormalize=self.vecnormalize,
        )


def read_pairs(option: str, words: Sequence[str] | None, form: str) -> dict[str, str]:
    """Return what `option` names, from words such as "NAME=KEY".

    Args:
        option: for messages.
        words: as they were given.
        form: of a word, for messages.

    Raises:
        UsageError: a word of another form, or one name twice.
    """
    pairs: dict[str, str] = {}
    for word in words or ():
        name, separator, value = word.partition("=")
        if not (name and separator and value):
            raise UsageError(f"{option} {word[:80]!r} is not of the form {form}", hint=_FORMS.get(option, ""))
        if name in pairs:
            raise UsageError(f"{option} {name[:80]!r} is given twice")
        pairs[name] = value
    return pairs


def read_stack(words: Sequence[str] | None) -> int | dict[str, int]:
    """Return how many frames are stacked, of every observation or by key.

    Raises:
        UsageError: no number, or a number for all beside one for some.
    """
    given = list(words or ())
    if not given:
        return 1
    if len(given) == 1 and "=" not in given[0]:
        return _count(given[0])
    return {key: _count(value) for key, value in read_pairs("--stack", given, "KEY=K").items()}


def _count(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"--stack {word[:80]!r}: expected a number of frames") from None


def read_stack_fill(word: str) -> float | Literal["first"] | None:
    """Return what lies before an episode's first frame, `None` where nothing is said.

    Raises:
        UsageError: neither a word that is known nor a number.
    """
    if word in ("", "first"):
        return "first" if word else None
    try:
        return 0.0 if word == "zeros" else float(word)
    except ValueError:
        raise UsageError(f"--stack-fill {word[:80]!r}: expected first, zeros or a number") from None
