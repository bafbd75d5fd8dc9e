"""An arm with one joint. `_Joint` would move a real one; here it is computed, so that a learner can judge too."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

STEPS = 100  # of an episode
PERIOD_S = 0.05


class _Joint:
    """A motor and an encoder. On the robot: open the port here, and read and write it in the two methods."""

    def __init__(self) -> None:
        self.angle_rad, self.speed_rad_s = 0.0, 0.0

    def read(self) -> tuple[float, float]:
        return self.angle_rad, self.speed_rad_s

    def drive(self, torque: float) -> None:
        self.speed_rad_s = 0.9 * self.speed_rad_s + 4.0 * PERIOD_S * torque
        self.angle_rad = float(np.clip(self.angle_rad + PERIOD_S * self.speed_rad_s, -np.pi, np.pi))


class Arm(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Bring the joint to a target angle: observed are angle, speed and target, the action is a torque in [-1, 1]."""

    observation_space = Box(-np.float32(10.0), np.float32(10.0), (3,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self._joint, self._target_rad, self._steps = _Joint(), 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode with another target; the arm stays where it is."""
        super().reset(seed=seed)
        self._target_rad, self._steps = float(self.np_random.uniform(-1.0, 1.0)), 0
        return self._observed(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Drive for one period; on the robot `quarl-device run --mode deploy --hz 20` keeps the time."""
        self._joint.drive(float(np.clip(action[0], -1.0, 1.0)))
        self._steps += 1
        angle_rad, _ = self._joint.read()
        # Truncated and not terminated: nothing has failed, the time is over.
        return self._observed(), -abs(angle_rad - self._target_rad), False, self._steps >= STEPS, {}

    def close(self) -> None:
        """Leave the motor without torque, whatever ends the program."""
        self._joint.drive(0.0)

    def _observed(self) -> NDArray[np.float32]:
        return np.array([*self._joint.read(), self._target_rad], np.float32)
