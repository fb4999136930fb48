"""The server's address, as `--server` and federation.toml have it."""

import pytest

from harmofl.deployment.tls.address import Address, complete_address
from harmofl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fl.example.org", "fl.example.org", 8443),
        ("fl.example.org:443", "fl.example.org", 443),
        ("10.0.0.1:9000", "10.0.0.1", 9000),
        ("[fe80::1]:9000", "fe80::1", 9000),
        ("fe80::1", "fe80::1", 8443),
    ],
)
def test_the_servers_address_is_read(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a host name or an address"),
        ("https://fl.example.org", "a host name or an address"),
        ("a b", "a host name or an address"),
        ("host:99999", "from 1 to 65535"),
        ("host:", "from 1 to 65535"),
        ("host:²", "from 1 to 65535"),
        ("host\n", "a host name or an address"),
    ],
)
def test_an_address_that_is_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Address.parse(text)


def test_an_address_is_completed_by_its_port() -> None:
    assert complete_address("fl.example.org") == "fl.example.org:8443"
    assert complete_address("fe80::1") == "[fe80::1]:8443"
