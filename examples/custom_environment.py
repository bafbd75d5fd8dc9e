"""A robot's own environment: a class in a module of one's own (my_robot/arm.py), on the board and where it is learned.

python examples/custom_environment.py

On the machine that learns:   quarl-edge train my_robot.arm:Arm --algorithm ddpg --actors 0 --broker mqtt://learner@broker.local
On the robot:                 quarl-device run --id robot --env my_robot.arm:Arm --broker mqtt://robot@broker.local

Importing a module runs it, so each machine names its own: by wire goes the name alone, "Arm". The learner makes the
environment too, for its spaces and to judge; its spaces are compared with the robot's before anything moves.
"""

from one_machine import learn_together

ENV = "my_robot.arm:Arm"
TRAIN = ["train", ENV, "--algorithm", "ddpg", "--actors", "0", "--steps", "2000", "--set", "learning_starts=500"]
BOARD = ["run", "--id", "robot", "--env", ENV]

if __name__ == "__main__":
    learn_together(TRAIN, BOARD)
