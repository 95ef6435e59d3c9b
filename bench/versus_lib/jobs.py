"""A contender's standing job: launched once per round, asked for one cell after another."""

import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
import time

import numpy as np

START_SECONDS = 90      # gloo needs 25 s for 32 ranks on 2 cores; the MPIs 2.5
CELL_SECONDS = 120


class JobFailed(Exception):
    """A contender's job did not start, died, hung, or refused a cell."""


class Job:
    """n ranks of a contender, each connected to this process by its own socket."""

    def __init__(self, contender, n):
        self.contender, self.n = contender, n
        self.ranks, self.procs = [None] * n, []
        self.log = tempfile.TemporaryFile()
        name = f"strata-versus-{os.getpid()}-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("\0" + name)
        listener.listen(n)
        try:
            self._launch(name)
            self._greet(listener)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()

    def _launch(self, name):
        with socket.socket() as probe:      # a free port, for gloo alone
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(self.n if self.contender.library == "gloo" else 1):
            self.procs.append(subprocess.Popen(
                self.contender.command(self.n, rank, name),
                env=self.contender.environment(self.n, rank, port), stdin=subprocess.DEVNULL,
                stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True))

    def _greet(self, listener):
        deadline = time.monotonic() + START_SECONDS
        listener.settimeout(0.25)
        while None in self.ranks:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise JobFailed(f"did not start in {START_SECONDS} s: {self.said()}") from None
                if any(p.poll() is not None for p in self.procs):
                    raise JobFailed(f"ended while starting: {self.said()}") from None
                continue
            sock.settimeout(CELL_SECONDS)
            hello, _ = self._read(sock)
            if hello["size"] != self.n:
                raise JobFailed(f"{hello['size']} ranks came up instead of {self.n}")
            self.ranks[hello["rank"]] = sock
            self.contender.about = hello["about"]

    def said(self):
        """The end of what the job printed."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 400))
        return self.log.read().decode(errors="replace").strip() or "it printed nothing"

    @staticmethod
    def _exactly(sock, size):
        parts = bytearray()
        while len(parts) < size:
            piece = sock.recv(size - len(parts))
            if not piece:
                raise EOFError
            parts += piece
        return bytes(parts)

    def _read(self, sock):
        try:
            reply = json.loads(self._exactly(sock, struct.unpack("<I", self._exactly(sock, 4))[0]))
            raw = self._exactly(sock, reply.get("raw", 0))
        except (EOFError, ConnectionError):
            raise JobFailed(f"a rank died: {self.said()}") from None
        except TimeoutError:
            raise JobFailed(f"no answer for {CELL_SECONDS} s") from None
        if not reply.get("ok", True):
            raise JobFailed(reply["error"])
        return reply, raw

    def ask(self, **order):
        """Give all ranks one order; their answers in rank order."""
        line = json.dumps(order).encode() + b"\n"
        try:
            for sock in self.ranks:
                sock.sendall(line)
        except OSError:
            raise JobFailed(f"a rank died: {self.said()}") from None
        return [self._read(sock) for sock in self.ranks]

    def verify(self, salt):
        """Wrong elements over all ranks of one call on fresh data."""
        return sum(reply["wrong"] for reply, _ in self.ask(do="verify", salt=salt))

    def time(self, iters):
        """Nanoseconds of each of `iters` iterations; one is complete when its last rank is."""
        stamps = [np.frombuffer(raw, np.int64) for _, raw in self.ask(do="time", iters=iters)]
        return np.diff(np.max(stamps, axis=0))

    def close(self):
        """Let the ranks end by themselves, then make sure of it."""
        try:
            for sock in self.ranks:
                sock.sendall(b'{"do": "quit"}\n')
            for proc in self.procs:
                proc.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            pass        # kill() follows either way
        self.kill()

    def kill(self):
        for sock in filter(None, self.ranks):
            sock.close()        # a rank that reads end-of-file ends itself
        for proc in self.procs:
            try:
                os.killpg(proc.pid, signal.SIGTERM)
                proc.wait(3)
            except ProcessLookupError:
                pass
            except subprocess.TimeoutExpired:
                os.killpg(proc.pid, signal.SIGKILL)
            proc.wait()
        self.log.close()
