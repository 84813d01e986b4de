"""Which URLs are read, how they are printed, and which machines are never asked.

A URL may come from anybody. It must not make this machine ask the machines behind its firewall, and
whatever of it is a secret must not reach a verdict, a message or a log.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit

from neuralmark.errors import AddressError

LONGEST = 4096
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_IN_TEXT = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^\s\"'<>)]+)", re.IGNORECASE)
_SECRET = re.compile(
    r"x-(amz|goog)-(signature|credential|security-token)|(.*[_-])?(sig|signature|token|secret"
    r"|password|passwd|pwd|apikey|api[_-]key|access[_-]?key([_-]?id)?|auth|authorization"
    r"|credentials?|key|key-pair-id|policy|jwt)|awsaccesskeyid|googleaccessid",
    re.IGNORECASE,
)
_SIXTY_FOUR = IPv6Address("64:ff9b::")


@dataclass(frozen=True)
class Address:
    """A URL in its parts; nothing in it is a credential."""

    scheme: str
    host: str
    port: int | None
    path: str
    """As it was written, with the first slash."""
    query: str = ""

    @property
    def place(self) -> str:
        """Host and port, as URLs have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole of it: for requests, not to be printed."""
        return f"{self.scheme}://{self.place}{self.path}" + (f"?{self.query}" if self.query else "")

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """Whom credentials are for."""
        port = self.port or {"http": 80, "https": 443}.get(self.scheme)
        return self.scheme, self.host.lower(), port

    @property
    def shown(self) -> str:
        """As it may be printed: what a query asks for is nobody's business."""
        return printable(f"{self.scheme}://{self.place}{self.path}" + ("?…" if self.query else ""))


def is_url(text: str) -> bool:
    """Whether a text is meant as a URL, not as a path.

    >>> is_url("hf://acme/bert"), is_url("models/bert.safetensors")
    (True, False)
    """
    return _SCHEME.match(text) is not None


def scheme_of(url: str) -> str:
    """What a URL begins with, in small letters."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def parsed(url: str) -> Address:
    """A URL that somebody gave, in its parts; refuses signatures and tokens in it."""
    address = split(url)
    named = [name for name, _ in parse_qsl(address.query, True) if _SECRET.fullmatch(name)]
    if named:
        raise AddressError(
            f"{redacted(url)}: has a signature or a token in it ({printable(named[0])[:40]});"
            " credentials are taken from the client's usual places only: give the plain address,"
            " or download the file first"
        )
    return address


def split(url: str) -> Address:
    """A URL in its parts; refuses user and password, control characters and what is no URL."""
    if len(url) > LONGEST:
        raise AddressError(f"{redacted(url)[:80]}…: is longer than a URL may be ({LONGEST:,})")
    if not all(character.isprintable() for character in url):
        raise AddressError(f"{redacted(url)}: has control characters: write them as %0A and such")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise AddressError(f"{redacted(url)}: is not a URL") from None
    if "@" in parts.netloc:
        raise AddressError(
            f"{redacted(url)}: has a user or a password in it; credentials are taken from the"
            " client's usual places only: take them out of the URL (docs/remote.md says where)"
        )
    at = parts.netloc.lower().find(host)
    host = parts.netloc[at : at + len(host)]  # as it was written: owners have capital letters
    scheme = parts.scheme.lower()
    # only on the web does a # lead to a place inside a document
    rest = f"#{parts.fragment}" if parts.fragment and scheme not in ("http", "https") else ""
    return Address(scheme, host, port, parts.path + rest, parts.query)


def led_to(address: Address, link: str) -> Address:
    """What a server names as the place to go on, seen from the address that named it."""
    try:
        following = urljoin(address.url, link)
    except ValueError:
        raise AddressError(f"{redacted(link[:LONGEST])}: is not a URL") from None
    return split(following)


def redacted(text: str) -> str:
    """A text in which every URL is without user, password and query.

    >>> redacted("cannot open https://me:pw@host/a?sig=1 (404)")
    'cannot open https://host/a?… (404)'
    """

    def cleaned(found: re.Match[str]) -> str:
        rest, query, _ = found[2].partition("?")
        place, slash, path = rest.partition("/")
        bare = place.rpartition("@")[2]
        return f"{found[1]}://{bare}{slash}{path}" + ("?…" if query else "")

    return printable(_IN_TEXT.sub(cleaned, text))


def masked(url: str) -> str:
    """A URL without the credentials in it, which is refused for them all the same.

    >>> masked("https://me:pw@host/a?sig=1&id=2")
    'https://…@host/a?sig=…&id=2'
    """
    rest, mark, query = url.partition("?")
    start, slashes, path = rest.partition("://")
    place, slash, path = path.partition("/")
    _, at, host = place.rpartition("@")
    told = [each.partition("=") for each in query.split("&")] if query else []
    shown = [f"{n}{e}{'…' if _SECRET.fullmatch(unquote(n)) else v}" for n, e, v in told]
    place = f"…@{host}" if at else place
    return f"{start}{slashes}{place}{slash}{path}{mark}{'&'.join(shown)}"


def printable(text: str) -> str:
    """Control characters escaped: names come from people whom nobody vouches for."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def joined(folder: str, name: str) -> str:
    """The raw path of a name in a folder of a web server."""
    return f"{folder.rstrip('/')}/{quote(name, safe='')}"


def bare_name(path: str) -> str:
    """The last part of a raw path, as people write it."""
    return unquote(path.rstrip("/").rpartition("/")[2])


def is_public(address: str) -> bool:
    """Whether an address is somebody's on the internet: not this machine, nor one near it.

    >>> [is_public(a) for a in ("93.184.215.14", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    found = ip_address(address.partition("%")[0])
    inner = _inside(found) if isinstance(found, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    return found.is_global and not found.is_multicast and not found.is_reserved


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, if it does."""
    if int(address) >> 32 == int(_SIXTY_FOUR) >> 32:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    low = int(address)
    if low >> 32 == 0 and low > 1:  # ::a.b.c.d, long out of use
        return IPv4Address(low)
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def private(shown: str) -> AddressError:
    """The error for a machine that is not to be asked."""
    return AddressError(
        f"{shown}: leads to a private address (this machine, or one of its network), and those are"
        " not asked unless you say so: RemoteOptions(allow_private=True)"
    )


def unencrypted(shown: str) -> AddressError:
    """The error for a public machine that would be asked without encryption."""
    return AddressError(
        f"{shown}: http is not encrypted, so anybody on the way could swap the model: use https"
        " (http is for private addresses only, with RemoteOptions(allow_private=True))"
    )
