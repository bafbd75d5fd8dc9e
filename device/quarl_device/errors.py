"""Every error that leaves quarl-edge, with its exit code.

Lower layers' exceptions (paho, OSError, flatbuffers, the interpreter, amqtt) never leak: they are mapped here.
A code is never renumbered and never reused.

::

    QuarlError                        1  ran and failed
    ├── UsageError                    2  wrong usage: a name, a flag, a value
    ├── ModelError
    │   ├── ModelFileError           10  missing, unreadable, truncated, not TFLite
    │   ├── ContractError            11  no contract in the file, or one that does not hold
    │   ├── SelfTestError            12  golden vectors do not come out as recorded
    │   ├── ConversionError          13  TensorFlow could not convert the policy
    │   ├── PatchError               14  a template and a policy do not fit
    │   ├── NonFiniteError           15  NaN or Inf in weights, ranges or outputs
    │   ├── UnsupportedModel         16  a layer or a form of model that cannot be imported
    │   ├── SourceMismatch           17  what was read from a model computes otherwise than the model itself
    │   ├── UnsafeSource             18  a model file that would run code of its own, or reach outside of itself
    │   └── CheckFailed              19  a file that would be wrong was not written
    ├── EnvironmentFault
    │   ├── UnknownEnvironment       20  no such registered gymnasium id
    │   ├── UnsupportedSpace         21  a space that this algorithm or build does not take
    │   ├── SpaceMismatch            22  environment and contract differ
    │   └── EnvironmentMisbehaved    23  NaN reward, wrong shape, an exception in step()
    ├── LinkError
    │   ├── BrokerUnreachable        30  nothing answers at the address
    │   ├── BrokerRefused            31  wrong user or password, or not allowed
    │   │   ├── CertificateRefused   37  the broker refused this client's certificate, or wants one
    │   │   └── BrokerNotTrusted     38  the broker's certificate does not hold
    │   ├── LinkLost                 32  the link went away and did not come back in time
    │   ├── PayloadTooLarge          33  over the cap of its kind, caught before publishing
    │   ├── PayloadRefused           34  an incoming payload that does not hold (W4)
    │   │   └── StaleExperience      39  experience of a policy further behind than the learner allows
    │   ├── WireVersionMismatch      35  peers speak different wire versions (W10)
    │   └── BrokerStartFailed        36  a broker that is ours did not come up
    ├── TrustError
    │   ├── BadSignature             40  not signed by the learner's key
    │   ├── KeyMismatch              41  another learner key than the pinned one
    │   ├── KeyFileError             42  key file missing, unreadable, malformed or too open
    │   ├── CredentialsError         43  a client's credentials are missing, damaged, expired or too open
    │   ├── AuthorityError           44  a broker's directory (authority, enrolled clients) is missing or damaged
    │   └── OlderVersion             45  an older policy than the current one, and nobody asked for that
    ├── DeviceError
    │   ├── StateUnwritable          50  the state directory cannot be written
    │   ├── ActorFailed              51  an actor process ended by itself
    │   ├── IdInUse                  52  another process uses this device's id on the same broker
    │   ├── SpoolInUse               53  another process uses this device's spool
    │   ├── AgentInUse               54  another agent acts with this state directory
    │   ├── PolicyFailed             55  a policy that passed its self-test failed as it acted
    │   └── BoardAtFault             59  `quarl-device doctor` found a problem
    ├── LearnerError
    │   ├── LearnerAlive             70  another learner serves this fleet (--takeover)
    │   ├── CheckpointError          71  a checkpoint is incomplete, damaged or of another run
    │   ├── RunNotFound              72  no run to export or resume
    │   ├── JournalError             73  the journal cannot be written or read
    │   ├── TrainingStalled          74  no experience arrived within the deadline
    │   ├── NotSolved                75  the budget ended before the goal was reached
    │   ├── StreamFault              76  experience was lost, stored twice or changed on its way
    │   └── RunInUse                 77  another process trains in this run directory
    ├── MissingPart
    │   ├── MissingExtra             80  a Python extra is not installed
    │   ├── MissingRuntime           81  no TFLite runtime is installed
    │   ├── MissingTool              82  a program is not installed
    │   └── MissingDelegate          83  a delegate that is required is not there, or does not work
    ├── InstallError
    │   ├── BundleRefused            84  what is to be installed is not whole, not what was listed, or no bundle
    │   ├── InstallFailed            85  a step failed; what was there before is there again
    │   └── BoardUnfit               86  this board cannot be installed on as it is
    └── DeployError
        ├── BoardUnreachable         87  the board's SSH server does not answer, or the connection was lost
        ├── BoardRefused             88  host key unknown or changed; login, sudo or files refused
        └── NotBorn                  89  the agent was installed, and its birth did not come in time
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class QuarlError(Exception):
    """Root of all errors of quarl-edge.

    Args:
        message: what was found and what was expected, on one line.
        hint: what mends it, ideally a command; shown after the message.

    Attributes:
        code: process exit code of a command that ends with this error.
    """

    code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(QuarlError):
    """Wrong usage: a name, flag or value that can never work."""

    code = 2


class ModelError(QuarlError):
    """A policy file or model is at fault."""


class ModelFileError(ModelError):
    """The file is missing, unreadable, truncated or not a TFLite flatbuffer."""

    code = 10


class ContractError(ModelError):
    """The file carries no policy contract, or one that does not hold."""

    code = 11


class SelfTestError(ModelError):
    """The golden vectors do not come out as recorded."""

    code = 12


class ConversionError(ModelError):
    """TensorFlow could not convert the policy."""

    code = 13


class PatchError(ModelError):
    """A template and a policy do not fit each other."""

    code = 14


class NonFiniteError(ModelError):
    """NaN or Inf in weights, ranges or outputs."""

    code = 15


class UnsupportedModel(ModelError):
    """A layer or a form of model that cannot be imported."""

    code = 16


class SourceMismatch(ModelError):
    """What was read from a model computes otherwise than the model itself."""

    code = 17


class UnsafeSource(ModelError):
    """A model file that would run code of its own, or reach outside of itself."""

    code = 18


class CheckFailed(ModelError):
    """A check before a file is written did not pass; the message has its code.

    Attributes:
        checks: JSON entries of all checks that were made.
    """

    code = 19

    def __init__(self, message: str, *, hint: str = "", checks: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(message, hint=hint)
        self.checks = tuple(checks)


class EnvironmentFault(QuarlError):
    """An environment or one of its spaces is at fault."""


class UnknownEnvironment(EnvironmentFault):
    """No such registered gymnasium id."""

    code = 20


class UnsupportedSpace(EnvironmentFault):
    """A space that the algorithm or this version does not take."""

    code = 21


class SpaceMismatch(EnvironmentFault):
    """Environment and contract differ."""

    code = 22


class EnvironmentMisbehaved(EnvironmentFault):
    """The environment returned NaN, a wrong shape, or raised."""

    code = 23


class LinkError(QuarlError):
    """The link or the broker is at fault."""


class BrokerUnreachable(LinkError):
    """Nothing answers at the broker's address."""

    code = 30


class BrokerRefused(LinkError):
    """The broker refused the user, the password or the client id."""

    code = 31


class LinkLost(LinkError):
    """The link went away and did not come back in time."""

    code = 32


class PayloadTooLarge(LinkError):
    """A payload is over the cap of its kind; caught before it is published."""

    code = 33


class PayloadRefused(LinkError):
    """An incoming payload does not hold: size, schema, shape, dtype or value (W4)."""

    code = 34


class WireVersionMismatch(LinkError):
    """Peers speak different wire versions (W10)."""

    code = 35


class BrokerStartFailed(LinkError):
    """A broker that is ours did not come up."""

    code = 36


class CertificateRefused(BrokerRefused):
    """The broker refused this client's certificate (revoked, expired, of another authority), or wants one."""

    code = 37


class BrokerNotTrusted(BrokerRefused):
    """The broker's certificate does not hold: another authority, another host name, or expired."""

    code = 38


class StaleExperience(PayloadRefused):
    """Experience of a policy further behind than the learner allows."""

    code = 39


class TrustError(QuarlError):
    """A signature or key is at fault."""


class BadSignature(TrustError):
    """Not signed by the learner's key."""

    code = 40


class KeyMismatch(TrustError):
    """Another learner key than the pinned one."""

    code = 41


class KeyFileError(TrustError):
    """A key file is missing, unreadable, malformed or readable by others."""

    code = 42


class CredentialsError(TrustError):
    """A client's credentials are missing, damaged, expired, or their key is readable by others."""

    code = 43


class AuthorityError(TrustError):
    """A broker's directory, its authority or its list of enrolled clients is missing or damaged."""

    code = 44


class OlderVersion(TrustError):
    """An older policy than the current one, which an attacker may replay: a rollback must be asked for."""

    code = 45


class DeviceError(QuarlError):
    """The device or its agent is at fault."""


class StateUnwritable(DeviceError):
    """The state directory cannot be written."""

    code = 50


class ActorFailed(DeviceError):
    """An actor process ended by itself."""

    code = 51


class IdInUse(DeviceError):
    """Another process uses this device's id on the same broker."""

    code = 52


class SpoolInUse(DeviceError):
    """Another process uses this device's spool."""

    code = 53


class AgentInUse(DeviceError):
    """Another agent acts with this state directory."""

    code = 54


class PolicyFailed(DeviceError):
    """A policy that passed its self-test failed as it acted: NaN, too slow, out of bounds, a crash, a hang."""

    code = 55


class BoardAtFault(DeviceError):
    """`quarl-device doctor` found a problem, or several."""

    code = 59


class LearnerError(QuarlError):
    """The learner, its run directory or its checkpoint is at fault."""


class LearnerAlive(LearnerError):
    """Another learner serves this fleet."""

    code = 70


class CheckpointError(LearnerError):
    """A checkpoint is incomplete, damaged or of another run."""

    code = 71


class RunNotFound(LearnerError):
    """No run to export, evaluate or resume."""

    code = 72


class JournalError(LearnerError):
    """The journal cannot be written or read."""

    code = 73


class TrainingStalled(LearnerError):
    """No experience arrived within the deadline."""

    code = 74


class NotSolved(LearnerError):
    """The budget ended before the goal was reached."""

    code = 75


class StreamFault(LearnerError):
    """Experience was lost, stored twice or changed on its way into replay."""

    code = 76


class RunInUse(LearnerError):
    """Another process trains in this run directory."""

    code = 77


class MissingPart(QuarlError):
    """A part that is installed separately is missing."""


class MissingExtra(MissingPart):
    """A Python extra is not installed."""

    code = 80


class MissingRuntime(MissingPart):
    """No TFLite runtime is installed."""

    code = 81


class MissingTool(MissingPart):
    """A program that is installed separately is missing."""

    code = 82


class MissingDelegate(MissingPart):
    """A delegate that is required is not there, or does not work."""

    code = 83


class InstallError(QuarlError):
    """An agent could not be installed, or removed."""


class BundleRefused(InstallError):
    """What is to be installed is not whole, has what was not listed, or is no bundle."""

    code = 84


class InstallFailed(InstallError):
    """A step failed; what was there before it is there again."""

    code = 85


class BoardUnfit(InstallError):
    """This board cannot be installed on as it is: Python, disk, clock, rights, another installation."""

    code = 86


class DeployError(QuarlError):
    """Putting an agent onto a board over SSH failed; the code may be that of the installer on the board."""


class BoardUnreachable(DeployError):
    """The board's SSH server does not answer, or the connection was lost."""

    code = 87


class BoardRefused(DeployError):
    """The board's host key is unknown or has changed, or it refused the login, sudo or files."""

    code = 88


class NotBorn(DeployError):
    """The agent was installed and started, and its birth did not come in time."""

    code = 89
