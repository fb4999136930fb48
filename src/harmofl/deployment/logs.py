"""What a party prints while it runs: one line per request, for a terminal or a service's journal.

A log may be read by people who may not see patients' files: it names the kind of an error, and where to read more.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

LINE = "%(asctime)s %(message)s"


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
