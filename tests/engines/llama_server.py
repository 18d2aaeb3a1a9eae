"""llama.cpp's own HTTP server behind `llama-server`'s command line, from the PyPI package `xllamacpp`.

That package's `Server` *is* llama.cpp's server (b11549 for xllamacpp 2026.10.11549); it only leaves out `main`. So this
script is that `main`: the command line is read by llama.cpp's own parser (`common_params_parse`, which the package's
library exports), and everything after it is llama.cpp. Flags, `LLAMA_ARG_*` variables, defaults, error messages and exit
codes are therefore the original's: an unknown flag or a missing model file ends it with 1.

What differs from the original binary:
- no router mode: without a model it exits with 1;
- no web UI, and no TLS;
- SIGTERM stops generation and exits with 0, as in the original; a second one kills it at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import xllamacpp
from xllamacpp import xllamacpp as extension

# LLAMA_EXAMPLE_SERVER in the `enum llama_example` of common/common.h, per release of the package: a release that is not
# listed has not been looked at.
LLAMA_EXAMPLE_SERVER = {"2026.10.11549": 12}

# common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))
PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"

# void common_init()
INIT = "_Z11common_initv"

# common_log * common_log_main(), void common_log_flush(common_log *)
LOG, FLUSH = "_Z15common_log_mainv", "_Z16common_log_flushP10common_log"

LIBRARY = ctypes.CDLL(extension.__file__)


def parse(arguments: list[str]) -> xllamacpp.CommonParams | None:
    """Reads a command line as llama-server would; None if it was wrong (the reason is on stderr by then)."""
    parameters = xllamacpp.CommonParams()
    if hasattr(xllamacpp.CommonParams, "__pyx_vtable__"):
        raise RuntimeError("CommonParams got a method table: its common_params is no longer right behind the object header")
    # The package starts from port 0, llama-server from 8080.
    parameters.port = 8080
    values = [os.fsencode(value) for value in ("llama-server", *arguments)]
    argv = (ctypes.c_char_p * (len(values) + 1))(*values, None)
    common_params = ctypes.c_void_p(id(parameters) + object.__basicsize__)
    init = LIBRARY[INIT]
    init.restype = None
    init()
    read = LIBRARY[PARSE]
    read.restype = ctypes.c_bool
    if not read(len(values), argv, common_params, LLAMA_EXAMPLE_SERVER[xllamacpp.__version__], None):
        return None
    return parameters


def wait_for_stop() -> None:
    """Returns at the first SIGTERM or SIGINT. The signal may be handled on any of llama.cpp's threads, hence the pipe."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reader, True)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.read(reader, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def flush_logs() -> None:
    """llama.cpp logs from a thread of its own: waits until all of it is written."""
    log, flush = LIBRARY[LOG], LIBRARY[FLUSH]
    log.restype, flush.restype = ctypes.c_void_p, None
    flush(ctypes.c_void_p(log()))


def main() -> int:
    parameters = parse(sys.argv[1:])
    if parameters is None:
        return 1
    if not parameters.model.path:
        print("error: --model is required: the router mode of llama-server is not in here", file=sys.stderr)
        return 1
    # Until the model is loaded a signal simply ends the process, as in the original.
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        print(f"llama-server: {error}", file=sys.stderr)
        return 1
    wait_for_stop()
    # Ends the task loop, then the HTTP server, and waits for both. llama.cpp forgets a stop that comes just before its loop
    # begins, and would wait for ever: then the alarm ends the process.
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    del server
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


if __name__ == "__main__":
    code = main()
    flush_logs()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own teardown has nothing left to do and would only race with the library's static objects.
    os._exit(code)
