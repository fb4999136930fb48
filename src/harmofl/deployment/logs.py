"""What a party prints while it runs: one line per request, for a terminal or a service's journal.

A log may be read by people who may not see patients' files: it names the kind of an error, and where to read more.
"""

from __future__ import annotations

import errno
import logging
import sys
from types import TracebackType

LINE = "%(asctime)s %(message)s"

CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the disk is broken",
    errno.EACCES: "a file or folder may not be used by this account",
    errno.EROFS: "the disk is read-only",
    errno.EMFILE: "too many files are open",
}
CLOCK = "this machine's clock may be wrong (or the certificate must be renewed): `harmofl deploy check` says which"


def name_cause(error: BaseException | None) -> str:
    """What is wrong with this machine, in a few words that name no file; the kind of error otherwise.

    >>> name_cause(OSError(28, "No space left on device", "/srv/images/patient-7.png"))
    'the disk is full'
    """
    first = error
    while error is not None:
        if isinstance(error, OSError) and error.errno in CAUSES:
            return CAUSES[error.errno]
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return "out of memory"
        error = error.__cause__ or error.__context__
    return type(first).__name__


def hint_at_clock(words: str) -> str:
    """The words of an engine, with what they mean where a certificate's dates are the problem."""
    dated = any(part in words.lower() for part in ("not yet valid", "has expired", "certificate_expired", "timestamp"))
    return f"{words}; {CLOCK}" if dated else words


class OneLine(logging.Formatter):
    """No traceback and no message of another package: they may name files of patients."""

    def formatException(  # noqa: N802  (logging's own name)
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """The kind of the error; the rest is for `harmofl deploy check`, or for --debug."""
        kind = ei[0].__name__ if ei[0] else "unknown"
        return f"  ({kind}; `harmofl deploy check` here says what is wrong with images, --debug the rest)"

    def format(self, record: logging.LogRecord) -> str:
        """Always one line: a traceback that another handler has stored is left out, too."""
        record = logging.makeLogRecord(record.__dict__ | {"exc_text": None, "stack_info": None})
        return super().format(record).replace("\n", " ")


def log_to_stdout(debug: bool = False) -> logging.Handler:
    """Print what harmofl's deployment does, line by line; with `debug` in full."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(LINE) if debug else OneLine(LINE))
    logger = logging.getLogger("harmofl.deployment")
    logger.handlers = [handler]
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    logger.propagate = False
    return handler
