"""What the server makes of bytes that came from a site."""

from __future__ import annotations

from harmofl.federation.messages import Reply, decode_reply


def reply_of(site: str, data: bytes, largest: int) -> Reply:
    """The reply of the site whose key brought it; bytes that are none give one with the reason."""
    if len(data) > largest:
        return Reply(site, error=f"its answer has {len(data)} bytes, at most {largest} are accepted")
    try:
        reply = decode_reply(data)
    except ValueError as error:
        return Reply(site, error=f"its answer is {error}"[:200])
    if reply.site != site:
        return Reply(site, error=f"it answered in the name of {reply.site!r:.80}")
    return reply if is_sound(reply) else Reply(site, error="its answer is not a message: a field has another type")


def is_sound(reply: Reply) -> bool:
    """Whether the plain fields are of their types, as JSON could hold anything."""
    numbers = (reply.num_examples, reply.num_steps)
    return (
        all(type(number) is int and number >= 0 for number in numbers)
        and isinstance(reply.metrics, dict)
        and isinstance(reply.description, dict)
        and isinstance(reply.error, str)
        and are_scores(reply.metrics)
    )


def are_scores(values: object, depth: int = 3) -> bool:
    """Whether there is nothing but numbers below names."""
    if isinstance(values, dict):
        return depth > 0 and all(are_scores(value, depth - 1) for value in values.values())
    return type(values) in (int, float)
