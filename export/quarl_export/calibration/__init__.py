"""Observations to calibrate with: where they come from, what they must be, and what ranges follow from them."""

from quarl_export.calibration.data import CalibrationData, load_npz
from quarl_export.calibration.per_dimension import with_input_normalizer
from quarl_export.calibration.play import play
from quarl_export.calibration.rules import RangeRule

__all__ = ["CalibrationData", "RangeRule", "load_npz", "play", "with_input_normalizer"]
