"""A Raspberry Pi that acts for a learner: int8 policies come to it, its experience goes back.

python examples/pi_actor.py

On the machine that learns:   quarl-edge train CartPole-v1 --actors 0 --broker mqtt://learner@broker.local
On the Pi:                    quarl-device run --id pi-1 --envs 2 --broker mqtt://pi-1@broker.local

The Pi needs no TensorFlow, and no word about the environment: the learner's birth names it. Experience waits in a spool
on its disk until the learner has it safe, so either may be switched off at any time.
"""

from one_machine import learn_together

TRAIN = ["train", "CartPole-v1", "--actors", "0", "--steps", "2000"]
BOARD = ["run", "--id", "pi-1", "--envs", "2"]

if __name__ == "__main__":
    learn_together(TRAIN, BOARD)
