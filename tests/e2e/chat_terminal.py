"""`muster chat` on a terminal: `chat_terminal.py MUSTER CONTROLLER MODEL`. The model must answer slowly and without end."""

import os
import pty
import select
import signal
import sys
import time

PROMPT = "› ".encode()


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.seen = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, wanted: bytes, limit: float = 20) -> bytes:
        """Reads until `wanted` has come; what came before it."""
        deadline = time.monotonic() + limit
        while wanted not in self.seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise AssertionError(f"not within {limit} s: {wanted!r}; seen: {self.seen!r}")
            self.seen += os.read(self.terminal, 65536)
        before, self.seen = self.seen.split(wanted, 1)
        return before


def main(muster: str, controller: str, model: str) -> None:
    chat = Terminal(muster, "--controller", controller, "chat", model, "--stats")
    try:
        chat.wait_for(PROMPT)
        chat.type("Tell me everything.\r")
        chat.wait_for(b"Tell me everything.")
        # Words come one by one, and Ctrl-C ends the answer but not the program.
        chat.wait_for(b" ")
        chat.wait_for(b" ")
        chat.type("\x03")
        chat.wait_for(b"interrupted")
        chat.wait_for(PROMPT)
        # At the prompt it only clears the line.
        chat.type("half a line\x03")
        chat.wait_for(PROMPT)
        chat.type("/clear\r")
        chat.wait_for(b"forgotten")
        chat.wait_for(PROMPT)
        chat.type("\x04")
        _, status = os.waitpid(chat.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
    except BaseException:
        os.kill(chat.pid, signal.SIGKILL)
        raise
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
