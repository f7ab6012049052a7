"""Process of one user-defined policy, started by `processes`: loads the policy, then answers questions."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO

import msgspec

import headgate
from headgate.health.examining import examine
from headgate.health.isolation.processes import GROUP, Hello, PolicyAnswer, read, write
from headgate.health.policies import HealthPolicy


def main(path: str, directory: str) -> None:
    """Load the policy and answer questions until the pipe is closed."""
    questions, answers = _pipes()
    sys.path.insert(0, directory)
    try:
        policy = load(path)
    except BaseException as error:  # user code: importing the module may raise anything
        write(answers, msgspec.msgpack.encode(Hello(True, f"it cannot be loaded: {sentence(error)}")))
        return
    write(answers, msgspec.msgpack.encode(Hello(bool(policy.invasive))))
    while (question := read(questions)) is not None:
        write(answers, _answered(policy, question))


def _pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The pipes for questions and answers; everything that the policy prints goes to stderr instead."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return questions, answers


def load(path: str) -> HealthPolicy:
    """Load a policy by import path or entry point name; a class is instantiated without arguments."""
    module, colon, name = path.partition(":")
    if colon:
        found = getattr(importlib.import_module(module), name)
    else:
        (entry,) = entry_points(group=GROUP, name=path) or (None,)
        if entry is None:
            raise LookupError(f'there is no entry point "{path}" of {GROUP}; an import path is "module:Class"')
        found = entry.load()
    policy = found() if isinstance(found, type) else found
    if not isinstance(policy, HealthPolicy):
        raise TypeError(f"{path} is {type(policy).__name__}, not a HealthPolicy")
    return policy


def _answered(policy: HealthPolicy, question: bytes) -> bytes:
    history, observed = pickle.loads(question)
    try:
        return msgspec.msgpack.encode(PolicyAnswer(examine(history, policy, observed)))
    except (TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
        # Usually a part that returns the wrong type, such as None instead of a list.
        return msgspec.msgpack.encode(
            PolicyAnswer(trouble=f"it raised an error or returned an invalid answer: {sentence(error)}")
        )
    except BaseException as error:  # user code may raise anything, or call exit()
        return msgspec.msgpack.encode(PolicyAnswer(trouble=f"it raised {sentence(error)}"))


def sentence(error: BaseException) -> str:
    """The error and its source location on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(headgate.__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith((here, "<frozen"))]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split()) + place


if __name__ == "__main__":
    main(*sys.argv[1:])
