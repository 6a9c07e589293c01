"""Python programs in processes that are forked from one which has loaded torch, as importing it takes seconds.

`run` and `start` take what follows the name of Python on a command line (`-c CODE`, `-m MODULE` or a file, and
arguments), and are to `subprocess.run` and `subprocess.Popen` what they are for. A program runs as the main one and its
interpreter ends as any other. What Python reads as it starts (its options, PYTHONWARNINGS, what is installed) is as it
was, and torch is loaded already: tests of these start a process of their own.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LOADED = (
    "pydantic.type_adapter",  # typer's
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "equipoise.board.server",
    "equipoise.cli",
    "equipoise.lab.models.gpt",
    "equipoise.monitor.attach.watcher",
    "equipoise.monitor.diagnose.diagnosis",
)
PIPE = subprocess.PIPE


class Child:
    """A program that runs: a part of `subprocess.Popen`."""

    def __init__(self, answers: socket.socket, words: Sequence[Any], stdin: IO[str] | None, stdout: IO[str] | None):
        self._answers, self.words = answers, words
        self.stdin, self.stdout = stdin, stdout
        self.pid = int(answers.recv(64))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([str(word) for word in self.words], timeout or 0)
            self.returncode = int(self._answers.recv(64))
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait, as Popen does."""
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()


class Server:
    """A process that has loaded modules, and forks for each program that it is asked to run.

    Args:
        modules: what it loads.
        within: a server whose process it is forked from, so that what that one has loaded is there.
    """

    def __init__(self, *modules: str, within: "Server | None" = None) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [__file__, *modules]
        self._process: Any = (
            subprocess.Popen([sys.executable, *words], stdin=theirs.fileno())
            if within is None
            else within.start(*words, stdin=theirs.fileno())
        )
        self.pid = self._process.pid
        theirs.close()

    def close(self) -> None:
        """End the process; it also ends when the one that started it does."""
        self._control.close()
        self._process.wait()

    def start(
        self, *words: Any, cwd: Path | None = None, env: Mapping[str, str] | None = None,
        stdin: Any = None, stdout: Any = None, stderr: Any = None,
    ) -> Child:  # fmt: skip
        """Start a program.

        Streams are files, or their numbers; stdin and stdout may be `PIPE`. Default: no input, and what pytest has.
        """
        environment = dict(os.environ if env is None else env)
        request = {"words": [str(word) for word in words], "cwd": str(cwd or Path.cwd()), "env": environment}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as given:
            given.enter_context(theirs)
            own: list[IO[str] | None] = [None, None]
            streams: list[Any] = [stdin, stdout, stderr]
            for at, mode in enumerate(("r", "w")):
                if streams[at] == PIPE:
                    pipe = os.pipe()
                    streams[at] = given.enter_context(os.fdopen(pipe[at], mode))
                    own[at] = os.fdopen(pipe[1 - at], "rw"[1 - at], buffering=1)
            if stdin is None:
                streams[0] = given.enter_context(open(os.devnull))
            numbers = [at if s is None else s if isinstance(s, int) else s.fileno() for at, s in enumerate(streams)]
            socket.send_fds(self._control, [json.dumps(request).encode()], [*numbers, theirs.fileno()])
        return Child(ours, words, own[0], own[1])

    def run(
        self, *words: Any, check: bool = False, timeout: float | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and take what it writes."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = self.start(*words, stdout=out, stderr=err, **options)
            try:
                code = child.wait(timeout)
            finally:
                child.kill()
            out.seek(0)
            err.seek(0)
            done = subprocess.CompletedProcess([str(word) for word in words], code, out.read(), err.read())
        if check and code:
            raise AssertionError(f"{code}: {done.stderr}")
        return done


@functools.cache
def server() -> Server:
    """The process that has loaded torch: one for all tests of a process, started when it is first asked."""
    made = Server(*LOADED)
    atexit.register(made.close)
    return made


def start(*words: Any, **options: Any) -> Child:
    return server().start(*words, **options)


def run(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return server().run(*words, **options)


def equipoise(*words: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return run(Path(sys.executable).with_name("equipoise"), *words, **options)


def ranks(*words: Any, count: int = 2, timeout: float = 600.0, at: Server | None = None) -> tuple[list[int], str]:
    """Run a program once for each rank, as torchrun does: their exit codes, and what they wrote.

    When one fails the others are ended.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "TORCHELASTIC_RUN_ID": "tests"}
    with tempfile.TemporaryFile("w+") as said:
        children = []
        for rank in range(count):
            own = {k: str(v) for k, v in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            children.append((at or server()).start(*words, stdout=said, stderr=said, env=os.environ | own))
        try:
            waiting = [child._answers for child in children]
            while waiting and not any(child.poll() for child in children):
                ready = select.select(waiting, [], [], timeout)[0]
                if not ready:
                    raise subprocess.TimeoutExpired([str(word) for word in words], timeout)
                for child in children:
                    if child._answers in ready:
                        child.wait()
                waiting = [child._answers for child in children if child.returncode is None]
        finally:
            for child in children:
                child.kill()
        said.seek(0)
        return [child.wait() for child in children], said.read()


def _asked(control: socket.socket) -> dict[str, Any]:
    """In the server, wait for programs to run, for ever; returns in the process that runs one."""
    while True:
        message, files, _, _ = socket.recv_fds(control, 1 << 20, 4)
        if not message:  # whoever asks has ended
            os._exit(0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:  # one that waits for it and says how it ended
            control.close()
            child = os.fork()
            if child == 0:
                for own, given in enumerate(files[:3]):
                    os.dup2(given, own)
                for file in files:
                    os.close(file)
                return json.loads(message)
            for file in files[:3]:
                os.close(file)
            with socket.socket(fileno=files[3]) as answers, contextlib.suppress(BrokenPipeError):
                answers.send(str(child).encode())
                answers.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
            os._exit(0)
        for file in files:
            os.close(file)


def _main(words: Sequence[str], cwd: str, env: Mapping[str, str]) -> None:
    """Be `python WORDS`."""
    os.environ.clear()
    os.environ |= env
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where pytest runs in a shell's background
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    first, *rest = words
    if first == "-m":
        sys.path[0] = cwd
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    text, sys.path[0] = (rest.pop(0), "") if first == "-c" else (Path(first).read_text(), str(Path(first).parent))
    sys.argv = [first, *rest]
    if first != "-c":
        program.__file__ = str(Path(first).absolute())
    exec(compile(text, "<string>" if first == "-c" else first, "exec"), program.__dict__)


if __name__ == "__main__":
    _control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for _module in sys.argv[1:]:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(_module)
    gc.collect()
    gc.freeze()
    __name__ = "tests.forked"  # the main module is the program
    _main(**_asked(_control))
