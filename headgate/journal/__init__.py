"""The durable record of the control loop: readings, decisions, actions, outcomes and effects.

An action is written as intended before it is carried out, together with the state of the scheduler. After a kill
at any moment, `restore()` therefore returns a whole round, and possibly an action without an outcome, which the controller
may apply again.
"""

from headgate.journal.memory import MemoryJournal
from headgate.journal.sqlite import APPLICATION_ID, SCHEMA_VERSION, SIDE_FILES, SqliteJournal

__all__ = ["APPLICATION_ID", "SCHEMA_VERSION", "SIDE_FILES", "MemoryJournal", "SqliteJournal"]
