"""Which addresses the browser may reach, decided where neither an agent nor a page can get around it.

proxy.py enforces these rules on all that Chromium sends; sessions ask too, to tell the agent the reason.
OpenWebRL, appendix A.1 (live sites) and the mitigations of appendix G. Deviation: private addresses are
refused, as the released code does not: a page could send its visitor into the trainer's own network.
"""

import asyncio
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address, ip_address, ip_network
from urllib.parse import urljoin, urlsplit

from minirl.types import ToolFailure

RESOLVE_SECONDS = 10.0
LOOKUPS = 8  # of one guard at once; one that is given up holds its place until the system gives it up too
PROXY_ERROR = "ERR_SOCKS_CONNECTION_FAILED"  # what Chromium says if the proxy did not connect it

Place = tuple[str, int]  # a host, or its IP address, and a port

AROUND = " \t\r\n<>\"'`"  # what may stand around an address in a text
SLOPPY = re.compile(r"^(https?):[/\\]*", re.IGNORECASE)  # also without the two slashes
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\d+([/?#]|$))", re.IGNORECASE)  # HOST:PORT has none
PLAIN_HOST = re.compile(r"localhost|[\d.]+|\[.*|.*:(?!443$)\d+", re.IGNORECASE)  # asked by http

NAT64 = ip_network("64:ff9b::/96")
# Public in the tables of some Python versions or all, yet not in use: clouds keep metadata in the first two
RESERVED = ("192.0.0.0/24", "168.63.129.16", "192.88.99.0/24", "3fff::/20", "fec0::/10")
RESERVED_NETWORKS = [ip_network(network) for network in RESERVED]


def is_address(url: str) -> bool:
    """Return True if a browser can open it: http or https, with a host, and a valid port if there is one."""
    with suppress(ValueError):  # a port that is no number, brackets that are no address
        parts = urlsplit(url)
        host = parts.hostname or ""
        if "\\" in parts.netloc or "%" in host:  # Chromium would go to another host than is read here
            return False
        return parts.scheme in ("http", "https") and host != "" and parts.port != 0
    return False


def host_and_port(url: str) -> Place:
    """Return what an address means: ("example.org", 443)."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return (parts.hostname or "").removesuffix("."), port


class Refused(ToolFailure):
    """An address may not be opened; the message is the reason."""


@dataclass
class Guard:
    """The rules. `example.org` in a list means itself and its subdomains, `deny` wins over `allow`, and an
    empty `allow` allows all. `sites` maps the generated sites to loopback ports; they are always allowed.
    `trusted` are hosts, each with a port, that may be private: the lists still count for them. `servers` are
    where an episode's own copies of such hosts are."""

    private: bool = False
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    rate: float = 0.0  # most actions a second on one host; 0: no limit
    sites: Mapping[str, int] = field(default_factory=dict)
    trusted: Collection[Place] = ()
    servers: Mapping[Place, Place] = field(default_factory=dict)
    turns: dict[str, asyncio.Lock] = field(default_factory=dict)  # by host
    # Of this guard alone: `replace(guard)`, an episode's, shares the turns and waits for nobody else's names
    lookups: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, LOOKUPS), init=False)

    def __post_init__(self) -> None:
        self.allow = [domain(name) for name in self.allow]
        self.deny = [domain(name) for name in self.deny]
        self.sites = {domain(host): port for host, port in self.sites.items()}

    def read(self, text: str, page_url: str) -> str:
        """Return the address that a browser's address bar opens for a text, on a page, allowed or not. Raises
        Refused if the text is words.

        >>> Guard().read("`<localhost:8000/two>`", "about:blank"), Guard().read("/two", "https://a.org/b/c")
        ('http://localhost:8000/two', 'https://a.org/two')
        """
        url = SLOPPY.sub(r"\1://", text.strip(AROUND))
        if url.startswith(("/", "?", "#")):
            with suppress(ValueError):  # brackets that are no address
                return urljoin(page_url, url)
        if SCHEME.match(url):
            return url
        host = re.split("[/?#]", url)[0]
        if " " in host:
            raise Refused("these are words, not an address")
        if PLAIN_HOST.fullmatch(host) or host in self.sites or page_url.startswith(f"http://{host}/"):
            return f"http://{url}"
        return f"https://{url}"

    def check_name(self, host: str, port: int = 0) -> str:
        """Return a host's canonical name. Raises Refused if the lists forbid it, or if it is private."""
        try:
            name = canonical(host)
        except ValueError:
            raise Refused(f"{host[:80]!r} is no host name") from None
        if name in self.sites:
            return name
        if is_within(name, self.deny):
            raise Refused(f"{name} is on the list of denied domains")
        if self.allow and not is_within(name, self.allow):
            raise Refused(f"{name} is not on the list of allowed domains")
        with suppress(ValueError):  # not an IP address: what it resolves to is checked
            if not self._reaches(name, name, port):
                raise Refused(f"{name} is a private address")
        return name

    def server_of(self, url: str) -> str:
        """Return the address of what answers to a URL in this episode.

        >>> Guard(servers={("shop.test", 80): ("10.0.0.2", 8001)}).server_of("http://shop.test/a?b=c")
        'http://10.0.0.2:8001/a?b=c'
        """
        host, port = self.servers.get(host_and_port(url), ("", 0))
        return urlsplit(url)._replace(netloc=f"{host}:{port}").geturl() if host else url

    def is_trusted(self, url: str) -> bool:
        """Return True for a generated site, or one of `trusted`."""
        place = host_and_port(url)
        return place[0] in self.sites or place in self.trusted

    async def resolve(self, host: str, port: int) -> list[Place]:
        """Return the (IP address, port) pairs that may be connected to. Raises Refused or OSError."""
        name = self.check_name(host, port)
        if name in self.sites:
            return [("127.0.0.1", self.sites[name])]
        place = self.servers.get((name, port), (name, port))
        look_up = partial(socket.getaddrinfo, *place, type=socket.SOCK_STREAM)
        async with asyncio.timeout(RESOLVE_SECONDS):
            entries = await asyncio.get_running_loop().run_in_executor(self.lookups, look_up)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        allowed = [(ip, place[1]) for ip in addresses if self._reaches(ip, name, port)]
        if addresses and not allowed:
            raise Refused(f"{name} is at {addresses[0]}, a private address")
        return allowed

    async def check(self, url: str) -> None:
        """Raise Refused if `url` may not be opened. A name without an address is left to the browser."""
        url = url.strip()
        if not is_address(url):
            raise Refused("only http and https addresses can be opened")
        with suppress(OSError):
            await self.resolve(*host_and_port(url))

    async def explain(self, url: str, error: str) -> str:
        """Return why the proxy did not reach the host of `url`, or Chromium's `error` if that says more."""
        if PROXY_ERROR not in error:
            return error
        try:
            if url:
                await self.check(url)
        except Refused as refused:
            return str(refused)
        return "it leads to an address that is refused, or can't be reached"

    async def pace(self, url: str) -> None:
        """Wait for the next turn on a host, in order of arrival. Generated sites, our own, need no rest."""
        host, _ = host_and_port(url)
        if host and self.rate and host not in self.sites:
            turn = self.turns.setdefault(host, asyncio.Lock())
            await turn.acquire()
            asyncio.get_running_loop().call_later(1 / self.rate, turn.release)

    def _reaches(self, ip: str, name: str, port: int) -> bool:
        return self.private or (name, port) in self.trusted or is_public(ip)


def is_within(name: str, domains: Sequence[str]) -> bool:
    """Return True for one of the domains and for their subdomains."""
    return any(f".{name}".endswith(f".{domain}") for domain in domains)


def domain(name: str) -> str:
    """Return an entry of a list as hosts are compared with it. Raises ValueError if it can match nothing."""
    host = name.lower().removesuffix(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host):
        raise ValueError(f"{name!r} is no domain: write example.org, without scheme, port, path or *")
    return host


def canonical(host: str) -> str:
    """Return a host as Chromium names it: ASCII, lower case, no brackets, no final dot. Raises ValueError."""
    name = host.removeprefix("[").removesuffix("]").encode("idna").decode().lower().removesuffix(".")
    if not name or not name.isprintable():
        raise ValueError(host)
    return name


def is_public(address: str) -> bool:
    """Return True if an IP address is on the open internet. Raises ValueError if it is none."""
    ip = ip_address(address)
    # An IPv6 address that leads to an IPv4 address is as private as that is
    if ip.version == 6:
        nat64 = IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or nat64 or ip
    if ip.is_multicast or ip.is_reserved or any(ip in network for network in RESERVED_NETWORKS):
        return False
    return ip.is_global
