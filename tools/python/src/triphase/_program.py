"""The `triphase` program as a child process: where it is, its options, a pipe to it, its errors."""

import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import threading
from typing import Any, Dict, FrozenSet, IO, Iterable, List, Mapping, Optional, Tuple, Union

LOG = logging.getLogger("triphase")
PACKAGE = pathlib.Path(__file__).resolve().parent
SECONDS_OF_IDLE = 1.0  # for an idle child whose input ended, before it is asked to end
SECONDS_TO_END = 30.0  # for a child that was asked to end, before it is killed

# How the child's pipe works; no caller may choose otherwise. A job of Slurm's would leave lines to others, and
# calls that share a child may share ids.
FIXED_OPTIONS = ("--output=-", "--order=completed", "--shard=0/1", "--log-format=text", "--progress=off", "--quiet",
                 "--allow-duplicate-ids")
FIXED_NAMES = frozenset(("model", "prompts", "requests", "output", "order", "shard", "input_format", "log_format",
                         "progress", "quiet", "verbose", "dry_run", "overwrite", "resume", "retry_failed",
                         "token_logprobs", "help", "allow_duplicate_ids"))


class TriphaseError(RuntimeError):
    """The program ended without answering. `line` is its one line of error, `code` that line's (docs/errors.md),
    `exit_code` the program's; a negative one is the signal that ended it."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.line = line
        self.exit_code = exit_code
        found = re.search(r"\[(E-[A-Z0-9-]+)\]$", line)
        self.code: Optional[str] = found.group(1) if found else None

    def __reduce__(self) -> Tuple[type, Tuple[str, int]]:
        """Pools of processes send errors as pickles; an exception's own would call __init__ with the line alone."""
        return type(self), (self.line, self.exit_code)


class OptionError(TriphaseError, ValueError):
    """The program refused an option: its name or its value."""


def find_program(name: Union[str, "os.PathLike[str]", None] = None) -> str:
    """The program `name`, else the one in this package, else the checkout's around it, else that of the PATH."""
    if name is not None:
        candidates = [os.fspath(name)]
    else:
        candidates = [str(PACKAGE / "bin" / "triphase")]
        if len(PACKAGE.parents) > 3:
            candidates.append(str(PACKAGE.parents[3] / "build" / "release" / "bin" / "triphase"))
        candidates.append("triphase")
    for candidate in candidates:
        found = shutil.which(candidate)
        if found is not None:
            return found
    raise FileNotFoundError(f"no program {candidates[-1]}: build it (tools/build.sh release triphase) or give program=")


def environment(left: FrozenSet[str] = frozenset()) -> Dict[str, str]:
    """Without options that are set here, or contradict those. The program runs the templates of chats by the
    PATH's python3: this one's jinja2 goes first."""
    fixed = {"TRIPHASE_" + name.upper() for name in FIXED_NAMES - left}
    variables = {name: value for name, value in os.environ.items() if name not in fixed}
    if importlib.util.find_spec("jinja2") is not None and sys.executable:
        variables["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), variables.get("PATH", os.defpath)))
    return variables


def command_line(options: Mapping[str, Any]) -> List[str]:
    """Words of a command line: device_memory="8GiB" is --device-memory=8GiB, True a flag, a list several
    options, a mapping an option of NAME=VALUE for each entry. None and False are left out."""
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [f"{option}={key}={entry}" for key, entry in value.items()]
        elif isinstance(value, (list, tuple)):
            words += [f"{option}={entry}" for entry in value]
        else:
            words.append(f"{option}={value}")
    return words


def failure(line: str, exit_code: int) -> TriphaseError:
    if not line:
        how = f"by signal {-exit_code}" if exit_code < 0 else f"with {exit_code}"
        line = f"triphase ended {how} before it had answered"
    return (OptionError if exit_code == 2 else TriphaseError)(line, exit_code)


def check(command: List[str]) -> None:
    """Has the program look at its model, options and memory, without loading anything. Throws its error."""
    result = subprocess.run([*command, "--dry-run"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, check=False, env=environment())
    messages = Messages()
    for line in result.stderr.decode(errors="replace").splitlines():
        messages.add(line)
    if result.returncode not in (0, 1):
        raise failure(messages.error, result.returncode)


class Messages:
    """Lines of the program's stderr: warnings are logged, the last error is kept."""

    def __init__(self) -> None:
        self.error = ""
        self.calls: List[int] = []  # the number of each call's first line, from 0

    def add(self, line: str) -> None:
        if line.startswith("triphase: error: "):
            self.error = line
        elif line:
            line = line[len("triphase: warning: "):] if line.startswith("triphase: warning: ") else line
            LOG.warning("%s", self._of_a_call(line))

    def _of_a_call(self, line: str) -> str:
        """The program counts lines over its whole life, from 1; a caller knows the answers of a call by `index`."""
        found = re.fullmatch(r"line (\d+) failed, (.*); its record says so, others are counted", line)
        if found is None or not self.calls:
            return line
        number = int(found.group(1)) - 1
        index = number - max(first for first in self.calls if first <= number)
        return f"the request of index {index} failed, {found.group(2)}; its answer says so, others are not named"


def _plain(value: Any) -> Any:
    """Arrays and their numbers as Python's own, for json."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in a prompt, expected what JSON has")


class AllSent:
    """How many requests a call had, or why no more could be sent."""

    def __init__(self, count: int, error: Optional[BaseException]) -> None:
        self.count = count
        self.error = error


class Child:
    """A running program that answers lines of its standard input. Threads write to it and read from it, so that
    neither side waits for the other; one call at a time uses it."""

    def __init__(self, command: List[str]) -> None:
        # In a session of its own: the terminal's Ctrl-C is Python's to pass on.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, start_new_session=True, env=environment())
        self._messages = Messages()
        self._sender: Optional[threading.Thread] = None
        self.answers: "queue.SimpleQueue[Union[bytes, AllSent, None]]" = queue.SimpleQueue()
        self.lines = 0  # sent so far
        self.busy = False
        self._readers = [threading.Thread(target=target, daemon=True)
                         for target in (self._read_answers, self._read_messages)]
        for reader in self._readers:
            reader.start()

    def _read_answers(self) -> None:
        for line in _pipe(self._process.stdout):
            self.answers.put(line)
        self.answers.put(None)

    def _read_messages(self) -> None:
        for line in _pipe(self._process.stderr):
            self._messages.add(line.decode(errors="replace").rstrip("\n"))

    def send(self, requests: Iterable[Tuple[Any, Mapping[str, Any]]], asked: Dict[int, Any]) -> None:
        """Sends each pair's second as a line, from a thread; the first goes into `asked` under the line's number."""
        self._messages.calls.append(self.lines)
        self._sender = threading.Thread(target=self._send, args=(requests, asked), daemon=True)
        self._sender.start()

    def _send(self, requests: Iterable[Tuple[Any, Mapping[str, Any]]], asked: Dict[int, Any]) -> None:
        stream = _pipe(self._process.stdin)
        count = 0
        error: Optional[BaseException] = None
        try:
            for request, fields in requests:
                line = json.dumps(fields, default=_plain).encode() + b"\n"
                asked[self.lines] = request
                self.lines += 1
                count += 1
                stream.write(line)
                stream.flush()
        except BrokenPipeError:
            pass  # the program ended: its error says more
        except BaseException as caught:  # pylint: disable=broad-except
            error = caught  # of the caller's own iterator: raised where its answers are awaited
        self.answers.put(AllSent(count, error))

    def ended(self) -> TriphaseError:
        """Why it ended by itself. Waits for the end."""
        code = self._process.wait()
        for reader in self._readers:
            reader.join()
        return failure(self._messages.error, code)

    def stop(self) -> None:
        """Ends the program: at once where it is busy, else as its input ends. Waits for it."""
        if not self.busy and (self._sender is None or not self._sender.is_alive()):
            _close(self._process.stdin)
            # A process that was forked from this one may hold the pipe open.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_OF_IDLE)
        self._process.terminate()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        # A sender that waits for its caller's iterator may never end; it is a daemon.
        for thread, stream in ((self._readers[0], self._process.stdout), (self._readers[1], self._process.stderr),
                               (self._sender, self._process.stdin)):
            if thread is not None and thread is not threading.current_thread():
                thread.join(1.0)
            if thread is None or not thread.is_alive():
                _close(stream)


def _pipe(stream: Optional[IO[bytes]]) -> IO[bytes]:
    assert stream is not None  # Popen was asked for it
    return stream


def _close(stream: Optional[IO[bytes]]) -> None:
    try:
        _pipe(stream).close()
    except BrokenPipeError:
        pass
