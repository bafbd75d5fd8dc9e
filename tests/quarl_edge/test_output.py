"""One JSON object on the last line, whatever the numbers."""

import json

from quarl_device.errors import BrokerUnreachable
from quarl_edge.cli.output import Format, write_error, write_json


def test_json_is_one_line_and_knows_no_nan(capsys):
    write_json({"a": float("nan"), "b": [1.0, float("inf")], "c": {"d": "x"}})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [1.0, None], "c": {"d": "x"}}


def test_an_error_is_one_line_on_stderr(capsys):
    write_error(BrokerUnreachable("nothing answers at h:1883", hint="start it"), Format.TEXT)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "quarl-edge: error: nothing answers at h:1883 (start it)\n"


def test_in_json_mode_an_error_is_an_object_too(capsys):
    write_error(BrokerUnreachable("nothing answers", hint="start it"), Format.JSON)
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": 30, "kind": "BrokerUnreachable", "message": "nothing answers", "hint": "start it"}
