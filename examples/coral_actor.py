"""A board with a Coral Edge TPU that acts for a learner, with policies that are compiled for it as training goes on.

python examples/coral_actor.py

On the machine that learns:   quarl-edge train CartPole-v1 --actors 0 --edge-tpu --broker mqtt://learner@broker.local
On the board:                 quarl-device run --id coral --delegate edgetpu --broker mqtt://coral@broker.local

The learner needs Coral's edgetpu_compiler on its PATH (x86-64), the board libedgetpu1-std. Where either is missing,
that is said once and the board acts on its CPU: so this example runs anywhere. `quarl-edge top` shows "tpu" behind the
policy of a board that acts on it.
"""

from one_machine import learn_together

TRAIN = ["train", "CartPole-v1", "--actors", "0", "--steps", "8000", "--set", "goal_return=none"]
TRAIN += ["--edge-tpu"]  # every 20th push; --set edge_tpu_period_pushes=N for another
BOARD = ["run", "--id", "coral", "--delegate", "edgetpu"]

if __name__ == "__main__":
    learn_together(TRAIN, BOARD)
