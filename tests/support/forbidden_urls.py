"""Names and URLs that must never make the server connect to an internal host.

They are tried on everything that connects to what a client's request names: remote tools and media.
"""

from __future__ import annotations

import socket

# what the names resolve to
ADDRESSES = {
    "example.com": ["93.184.216.34", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "localhost": ["127.0.0.1", "::1"],
    "inside.example": ["10.0.0.7"],
    "half.example": ["93.184.216.34", "192.168.1.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "ipv6.example": ["fd00::1"],
    "invalid.example": ["not an address"],
    "nothing.example": [],
    "metadata.google.internal": ["169.254.169.254"],
}


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name without asking a name server."""
    if host not in ADDRESSES:
        raise socket.gaierror("no such name")
    return ADDRESSES[host]


# addresses that are not public, in all their spellings
LOOPBACK = [
    *("127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "0", "0.0.0.0", "0.0.0.1"),
    *("2130706433", "017700000001", "0x7f000001", "0x7f.0x0.0x0.0x1", "0177.0.0.1", "127.0.0.01"),
    *("0x7f.1", "0177.1", "127.0x1", "00.0.0.0", "0x0", "127.0.0.1.", "127.0.0.1..", "1.127.0.0.1"),
    *("0000000127.0.0.1", "127.000.000.001", "4294967297", "0x100000001", "127.0.0.256", "256.1"),
    *("127.0.0.1%00.example.com", "127.0.0.1%2eexample.com", "%31%32%37.0.0.1", "127。0。0。1"),
    *("①②⑦.⓪.⓪.①", "１２７.0.0.1", "127.0.0.1\u200b", "loca\u017fho\u017ft", "ⓛocalhost"),
    *("localhost", "LOCALHOST", "localhost.", "LocalHost", "a.localhost", "localhost.localdomain"),
]
PRIVATE = [
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.1"),
    *("169.254.169.254", "169.254.0.1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"),
    *("100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "metadata.google.internal", "inside.example", "half.example"),
    *("mapped.example", "ipv6.example", "invalid.example", "nothing.example", "unknown.example"),
]
FORBIDDEN_IPV6 = [
    *(
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
    ),
    *("[0:0:0:0:0:ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::1]"),
    *("[2002:7f00:1::]", "[2002:a00:1::1]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25eth0]"),
    *("[fe80::1%eth0]", "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[ff0e::1]"),
    *("[2001:db8::1]", "[100::1]", "[3fff::1]", "[::ffff:0:7f00:1]", "[1]", "[]", "[::1", "::1"),
    *("[127.0.0.1]", "[localhost]", "[::1].example.com", "[::ffff:169.254.169.254]"),
]
# rejected for their spelling, whatever their host
MALFORMED = [
    *("http://127.0.0.1@example.com/", "http://example.com@127.0.0.1/", "http://a:b@example.com/"),
    *("http://example.com\\@127.0.0.1/", "http://127.0.0.1\\@example.com/", "http://@127.0.0.1/"),
    *("http://example.com#@127.0.0.1/", "http://127.0.0.1#@example.com/", "http:///127.0.0.1/"),
    *("http:127.0.0.1", "http:/127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "http:\\\\127.0.0.1\\"),
    *("file:///etc/passwd", "ftp://example.com/", "gopher://127.0.0.1:70/", "ws://example.com/"),
    *("javascript:alert(1)", "data:text/plain,x", "unix:///var/run/docker.sock", "dict://a:1/"),
    *("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "jar:http://example.com!/", "httpx://a.example/"),
    *(
        "http://",
        "https://",
        "",
        "http://:80/",
        "http://example.com:0/",
        "http://example.com:65536/",
    ),
    *("http://example.com:99999999/", "http://example.com:80:80/", "http://example.com:8a/"),
    *("http://exa mple.com/", "http://example.com /", " http://127.0.0.1/", "http://127.0.0.1\t/"),
    *("http://example.com\n127.0.0.1/", "http://exa\x00mple.com/", "http://127.0.0.1\r\nHost: a/"),
    *("http://münchen.example/", "http://example.com/ü", "http://-a.example/", "http://a..b/"),
    *("http://*.example.com/", "http://example.com,127.0.0.1/", "http://example.com;127.0.0.1/"),
    *("http://" + "a" * 300 + ".example/", "http://{}/", "http://$(hostname)/", "http://a|b/"),
]


def list_forbidden_urls(port: int) -> list[str]:
    """Return URLs that must be rejected; most of them lead to a port of this machine."""
    hosts = [*LOOPBACK, *PRIVATE, *FORBIDDEN_IPV6]
    with_port = [f"http://{host}:{port}/mcp" for host in hosts]
    return [*with_port, *(f"https://{host}/" for host in hosts), *MALFORMED, *add_port(port)]


def add_port(port: int) -> list[str]:
    """Return the malformed URLs that name this machine, with a port that a test watches."""
    return [
        url.replace("127.0.0.1", f"127.0.0.1:{port}", 1) for url in MALFORMED if "127.0.0.1" in url
    ]
