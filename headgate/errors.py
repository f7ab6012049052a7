"""Every error Headgate raises on purpose.

HeadgateError
├── InputError        something the user gave is wrong: one sentence, exit 2
│   ├── IntentError       an intent that is not valid
│   ├── GraphError        operators that do not form a job
│   ├── ScenarioError     a scenario file that cannot be run
│   ├── SettingError      an unknown setting, or a value out of its range
│   ├── HostError         hosts, prices or a budget that are not valid
│   ├── JobFileError      a job file or a cluster file that cannot be run
│   │   └── NeedsSparkError   a job file that can be loaded only while Spark runs
│   ├── UnknownJobError   there is no such job
│   ├── DuplicateJobError another job has this name
│   ├── BusyError         the service processes another request of this kind
│   ├── LoginError        a login code or token that is not, or no longer, valid
│   │   └── TooManyLoginsError   too many failed logins lately
│   ├── QuotaError        a tenant has no room for a job or a change
│   └── NoServiceError    no service runs where a command looked for one
├── JournalError      the journal cannot be read or written
│   └── JournalDamagedError  the content of the journal is damaged
├── StateError        keyed state cannot be read or written
│   ├── StateSchemaError  an operator's state was written with another schema
│   ├── StateDamagedError a file of state is damaged
│   ├── StateLostError    no copy of a slice is left that could be rebuilt
│   ├── StateBusyError    another process holds a slice, or has continued with the slice
│   ├── StateFullError    the disk has too little free space for state
│   └── StateAwayError    the storage of the checkpoint location does not answer
├── InvalidTransitionError   no rule of the scheduler fits; carries the last decisions
└── EngineError       an engine could not carry out a request
    ├── OutageError       a resource of a job is missing; the engine retries the job without limit
    ├── NoRoomError       the machine has too little free memory to start a job now; the start is tried again
    └── EngineLostError   the engine was lost; exit 75 if the service does not start again
"""

from __future__ import annotations


class HeadgateError(Exception):
    """Base of all errors that a person reads as one sentence."""

    exit_code = 1


class InputError(HeadgateError):
    """The user's input is wrong; the sentence names the thing, the value and the remedy."""

    exit_code = 2


class IntentError(InputError):
    """An intent is not valid."""


class GraphError(InputError):
    """The operators do not form a directed acyclic graph with known inputs."""


class ScenarioError(InputError):
    """A scenario file cannot be run as written."""


class SettingError(InputError):
    """A setting is unknown, or its value is out of range."""


class HostError(InputError):
    """Hosts, prices or a budget are not valid."""


class JobFileError(InputError):
    """A job file or a cluster file cannot be run as written."""


class NeedsSparkError(JobFileError):
    """A job file asks for a Spark session while it is loaded, and there is none yet."""


class UnknownJobError(InputError):
    """There is no job of this name."""


class DuplicateJobError(InputError):
    """There is another job of this name."""


class BusyError(InputError):
    """The service processes one such request at a time; a later request succeeds."""


class LoginError(InputError):
    """A login code or a token is not valid."""


class TooManyLoginsError(LoginError):
    """Too many logins failed lately; the next attempt has to wait."""


class QuotaError(InputError):
    """A tenant has no room for a job or a change."""


class NoServiceError(InputError):
    """No service runs in this home directory."""


class JournalError(HeadgateError):
    """The journal cannot be read or written."""

    exit_code = 2


class JournalDamagedError(JournalError):
    """The content of the journal is damaged."""


class StateError(HeadgateError):
    """Keyed state cannot be read or written."""


class StateSchemaError(StateError):
    """An operator's state was written with another schema."""

    exit_code = 2


class StateDamagedError(StateError):
    """A file of state is damaged."""


class StateLostError(StateError):
    """No copy of a slice is left that could be rebuilt."""


class StateBusyError(StateError):
    """Another process holds a slice, or has continued with the slice."""


class StateFullError(StateError):
    """The disk has too little free space for state."""


class StateAwayError(StateError):
    """The storage of the checkpoint location does not answer; operations on the storage are tried again."""


class InvalidTransitionError(HeadgateError):
    """The scheduler is in a state that its rules do not foresee; `story` has the last decisions, oldest first."""

    def __init__(self, text: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(text + "".join(f"\n  {line}" for line in story))
        self.text, self.story = text, story


class EngineError(HeadgateError):
    """The engine could not carry out a request."""


class OutageError(EngineError):
    """A resource of a job is missing, such as its table; the engine retries the job until the resource exists."""


class NoRoomError(EngineError):
    """The machine has too little free memory to start a job now; the start is tried again."""


class EngineLostError(EngineError):
    """The engine was lost: only a new process can start another engine."""

    exit_code = 75
