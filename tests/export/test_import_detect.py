"""The kind of a source is found by its content, and what is none says so."""

import zipfile

import pytest

from quarl_device.errors import ModelFileError, QuarlError, UsageError
from quarl_export.importers import ImportOptions, detect, import_policy

TAKEN = r"\.keras.*\.tflite.*Stable-Baselines3"


def test_a_missing_path(tmp_path):
    with pytest.raises(ModelFileError, match=f"not found.*{TAKEN}"):
        import_policy(tmp_path / "nothing.h5")


def test_an_empty_file(tmp_path):
    path = tmp_path / "empty.keras"
    path.touch()
    with pytest.raises(ModelFileError, match="is empty"):
        import_policy(path)


@pytest.mark.parametrize("content", [b"hello", b"\x80\x04\x95pickle", b"PK\x03\x04broken", b"\x00" * 100])
def test_a_foreign_file_whatever_it_is_called(tmp_path, content):
    for name in ("policy.h5", "policy.keras", "policy.tflite", "policy.zip"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=TAKEN):
            import_policy(path)


def test_a_zip_of_something_else(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("holiday.jpg", b"")
    with pytest.raises(ModelFileError, match="holds no policy that is known"):
        detect(path)


def test_a_directory_of_something_else(tmp_path):
    with pytest.raises(ModelFileError, match=f"directory.*{TAKEN}"):
        import_policy(tmp_path)


@pytest.mark.parametrize(
    "options", [{"outputs": {"value": "x"}}, {"head": "argmax"}, {"stack": 0}, {"action_units": "metres"}]
)
def test_options_that_cannot_be(options):
    with pytest.raises(UsageError):
        ImportOptions(**options)


def test_an_unreadable_file_is_an_error_of_ours(tmp_path):
    path = tmp_path / "loop.h5"
    path.symlink_to(path)
    with pytest.raises(QuarlError):
        import_policy(path)


def test_the_main_file_of_a_saved_model_names_its_directory(tmp_path):
    path = tmp_path / "saved_model.pb"
    path.write_bytes(b"\x08\x01")
    with pytest.raises(ModelFileError, match=f"one file of a SavedModel.*{tmp_path}"):
        detect(path)
