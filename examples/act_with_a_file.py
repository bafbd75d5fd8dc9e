"""Act with an exported policy file, without a broker and without TensorFlow.

python examples/act_with_a_file.py model.tflite
"""

import sys
from pathlib import Path

import gymnasium

from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path


def main(path: Path) -> float:
    """Play one episode with the policy in `path` and return its return."""
    file = read_policy_path(path)
    # Lints the file, builds the interpreter and checks the golden vectors before it may act.
    policy = Policy.load(file)
    print(f"{file.contract.env_id}, {file.contract.scheme}, {policy.runtime_name}")
    env = gymnasium.make(file.contract.env_id)
    observation, _ = env.reset(seed=0)
    policy.begin_episode()
    total, done = 0.0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total += float(reward)
        done = terminated or truncated
    env.close()
    print(f"return {total:g}")
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "model.tflite"))
