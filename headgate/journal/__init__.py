"""The durable record of the control loop: readings, decisions, actions, outcomes and effects.

An action is written as intended before it is carried out, together with the state of the scheduler. A controller that
was killed at any moment therefore finds, by `restore()`, a whole round, and at most an action whose outcome it does not
know, which it may apply again.
"""

from headgate.journal.memory import MemoryJournal
from headgate.journal.sqlite import APPLICATION_ID, SCHEMA_VERSION, SIDE_FILES, SqliteJournal

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SIDE_FILES", "MemoryJournal", "SqliteJournal"]
