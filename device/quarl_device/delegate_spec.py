"""What `--delegate` may say, as data: where a policy's calls run, and with which library and options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from quarl_device.errors import UsageError

LIBRARY_VARIABLE = "QUARL_EDGETPU_LIBRARY"
EDGE_TPU_LIBRARY = "libedgetpu.so.1"
EDGE_TPU_OPERATOR = "edgetpu-custom-op"
"""The custom operator that `edgetpu_compiler` puts in the place of what runs on the Edge TPU."""
COMPILED_LAG_S = 30.0
"""How long a policy that was replaced may act by default, where one that is compiled for the Edge TPU is awaited."""

FORMS = "cpu, edgetpu, edgetpu:usb, edgetpu:pci or edgetpu:N, each edgetpu also with =/path/of/the/library.so"
_FORM = re.compile(r"edgetpu(?::(?P<bus>usb|pci))?(?::(?P<number>\d{1,2}))?(?:=(?P<library>.+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class DelegateSpec:
    """An Edge TPU, and the library that reaches it.

    Attributes:
        device: as libedgetpu names it: "" for the first found, "usb", "pci", ":0" (by number), "usb:0".
        library: name or path of a shared library with TFLite's external-delegate interface.
    """

    device: str = ""
    library: str = EDGE_TPU_LIBRARY

    @property
    def options(self) -> dict[str, str]:
        """Options for `load_delegate`; libedgetpu takes the first device where it is told none."""
        return {"device": self.device} if self.device else {}

    def __str__(self) -> str:
        return f"edgetpu{':' * bool(self.device)}{self.device.removeprefix(':')}"


def parse_delegate(text: str) -> DelegateSpec | None:
    """Read `--delegate`; `None` for the CPU.

    A library that is not named comes from QUARL_EDGETPU_LIBRARY, else it is `libedgetpu.so.1`, which the system finds.

    Raises:
        UsageError: none of the forms.
    """
    if text == "cpu":
        return None
    match = _FORM.fullmatch(text)
    if match is None or "\0" in text:
        raise UsageError(f"bad delegate {text[:80]!r}: expected {FORMS}")
    bus, number = match["bus"] or "", match["number"]
    return DelegateSpec(
        device=bus if number is None else f"{bus}:{int(number)}",
        library=match["library"] or os.environ.get(LIBRARY_VARIABLE, "") or EDGE_TPU_LIBRARY,
    )
