"""What can go wrong in `pdd`, each with the exit code that the command ends with.

CliError                    1
├── InvalidUsageError       2   the command line asks for something that cannot be
├── InvalidObjectError      2   a file has something that is no PDDeployment, or one that breaks rules
├── ClusterReadError        1   the cluster could not be asked: kubeconfig, credentials, rights, no answer in time
├── NotInClusterError       4   what was asked for is not in the cluster
├── MissingEngineError      3   the engine environment is not installed
├── StartError              4   a child process ended early or did not get ready
│   └── LostEngineError         an engine that ran does not answer any more
└── BrokenPromiseError      5   everything ran, but something that was promised did not hold
    └── StillHeldError          an engine holds blocks that nobody needs any more

Codes from 3 on mean something for each command alone. A message is for a person: what happened, then what to do.
"""


class CliError(Exception):
    """Base of all; `str()` of it is what the person sees."""

    exit_code = 1


class InvalidUsageError(CliError):
    exit_code = 2


class InvalidObjectError(CliError):
    exit_code = 2


class ClusterReadError(CliError):
    """Nothing can be said of the cluster."""


class NotInClusterError(CliError):
    exit_code = 4


class MissingEngineError(CliError):
    exit_code = 3


class StartError(CliError):
    exit_code = 4


class LostEngineError(StartError):
    """An engine was up and is not."""


class BrokenPromiseError(CliError):
    exit_code = 5


class StillHeldError(BrokenPromiseError):
    """Blocks were not let go in time."""
