"""What the server makes of what came from a site."""

from __future__ import annotations

from dataclasses import replace

from harmofl.federation.checks import to_plain_text
from harmofl.federation.messages import Reply, decode_reply

LARGEST_REPLY = 2**31
LARGEST_NUMBER = 2**53
LONGEST_NAME = 100
PLACE = {"round", "site", "phase", "error", "selected", "num_examples", "num_steps", "bytes_down", "bytes_up"}
"""What the server itself writes into a record: no score may be called so."""


def reply_of(site: str, data: bytes | str, largest: int = LARGEST_REPLY) -> Reply:
    """Read the reply of a site, known by its key; text, or bytes that are not a reply, give one with the reason."""
    if isinstance(data, str):  # an engine's own, in which a site may have had its say
        return Reply(site, error=to_plain_text(data))
    if len(data) > largest:
        return Reply(site, error=f"its answer has {len(data)} bytes, at most {largest} are accepted")
    try:
        reply = decode_reply(data)
    except ValueError as error:
        return Reply(site, error=to_plain_text(f"its answer is {error}"))
    if reply.site != site:
        return Reply(site, error=f"it answered in the name of {reply.site!r:.80}")
    if not has_valid_fields(reply):
        return Reply(site, error="its answer is not a message: a field has another type or name than it should")
    return replace(reply, error=to_plain_text(reply.error))


def has_valid_fields(reply: Reply) -> bool:
    """Whether the plain fields are of their types, as JSON could hold anything."""
    return (
        all(type(number) is int and 0 <= number < LARGEST_NUMBER for number in (reply.num_examples, reply.num_steps))
        and isinstance(reply.description, dict)
        and isinstance(reply.notes, dict)
        and isinstance(reply.error, str)
        and isinstance(reply.metrics, dict)
        and all(is_phase(phase, values, reply.site) for phase, values in reply.metrics.items())
    )


def is_phase(phase: str, values: object, site: str) -> bool:
    """Whether these are numbers of a phase: of training, or scores of the site's own images and no other's."""
    if phase == "train":
        return are_scores(values, "loss")
    return (
        phase in ("val", "test")
        and isinstance(values, dict)
        and all(name == site and are_scores(scores, "loss", "metric") for name, scores in values.items())
    )


def are_scores(values: object, *needed: str) -> bool:
    """Whether there are numbers below names, those that are needed among them."""
    return (
        isinstance(values, dict)
        and all(name in values for name in needed)
        and all(is_name(name) and is_number(value) for name, value in values.items())
    )


def is_name(name: str) -> bool:
    """Whether a score may be called so in records, tables and pages."""
    return name.isprintable() and len(name) <= LONGEST_NAME and name not in PLACE


def is_number(value: object) -> bool:
    """Whether it is a number that can be computed with; JSON's whole numbers have no end."""
    return type(value) is float or (type(value) is int and abs(value) < LARGEST_NUMBER)
