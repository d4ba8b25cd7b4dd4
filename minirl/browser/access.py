"""Which addresses the browser may reach, decided where neither an agent nor a page can get around it.

The rules; minirl/browser/proxy.py enforces them on all that Chromium sends, and tools ask before they open an
address, because only they can tell the agent the reason.

OpenWebRL, appendix A.1 (live sites) and the mitigations of appendix G. The released code does not check for
private addresses, so a page could send its visitor into the trainer's own network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

RESOLVE_SECONDS = 10.0

NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Public in the tables of some Python versions or all, yet not in use: clouds keep metadata in the first two.
ODD = ("192.0.0.0/24", "168.63.129.16", "192.88.99.0/24", "3fff::/20", "fec0::/10")
ODD_NETWORKS = [ipaddress.ip_network(network) for network in ODD]


def is_address(url: str) -> bool:
    """Whether a browser can open it: http or https, with a host, and a port that exists if there is one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that are no address
        return False


class Refused(Exception):
    """An address may not be opened; the message is the reason, for the agent."""


class Guard:
    """The rules. `example.org` in a list means itself and its subdomains, `deny` wins over `allow`, and an
    empty `allow` allows all. `sites` maps the generated sites to loopback ports; they are always allowed.
    `trusted` are hosts, each with a port, that may be private: the lists still count for them."""

    def __init__(
        self,
        private: bool = False,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        rate: float = 0.0,
        sites: Mapping[str, int] | None = None,
        trusted: Collection[tuple[str, int]] = (),
    ):
        if rate < 0:
            raise ValueError(f"{rate} actions per second: take a rate above 0, or 0 for no limit")
        self.private, self.rate, self.trusted = private, rate, trusted
        self.allow, self.deny = [domain(name) for name in allow], [domain(name) for name in deny]
        self.sites = {domain(host): port for host, port in (sites or {}).items()}
        self.refusals: Counter[str] = Counter()
        # An entry lives as long as somebody waits for its lock or a timer holds it.
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check_name(self, host: str, port: int = 0) -> None:
        """Raises Refused if the lists forbid a host, or if it is an IP address that is not public."""
        try:
            name = canonical(host)
        except ValueError:
            raise self._refused(host, f"{host[:80]!r} is no host name") from None
        if name in self.sites:
            return
        if listed(name, self.deny):
            raise self._refused(name, f"{name} is on the list of denied domains")
        if self.allow and not listed(name, self.allow):
            raise self._refused(name, f"{name} is not on the list of allowed domains")
        with contextlib.suppress(ValueError):  # not an IP address: what it resolves to is checked
            if not (self.private or (name, port) in self.trusted or public(name)):
                raise self._refused(name, f"{name} is a private address")

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        """The addresses that may be connected to. Raises Refused, or OSError if there are none at all."""
        self.check_name(host, port)
        name = canonical(host)
        if name in self.sites:
            return [("127.0.0.1", self.sites[name])]
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(entry[4][0] for entry in found))
        private = self.private or (name, port) in self.trusted
        allowed = [(ip, port) for ip in addresses if private or public(ip)]
        if addresses and not allowed:
            raise self._refused(name, f"{name} is at {addresses[0]}, a private address")
        return allowed

    async def check(self, url: str) -> None:
        """Raises Refused if `url` may not be opened. Of a name that is unknown the browser will tell."""
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise Refused(f"{url[:80]!r} is no web address") from None
        if parts.scheme not in ("http", "https"):
            raise Refused("only http and https addresses can be opened")
        with contextlib.suppress(OSError):
            await self.resolve(host, port or (443 if parts.scheme == "https" else 80))

    async def pace(self, host: str) -> None:
        """Waits for the next turn on a host, in order of arrival. Generated sites, our own, need no rest."""
        host = host.lower().removesuffix(".")
        if self.rate and host not in self.sites:
            turn = self.turns.setdefault(host, asyncio.Lock())
            await turn.acquire()
            asyncio.get_running_loop().call_later(1 / self.rate, turn.release)

    def _refused(self, host: str, reason: str) -> Refused:
        # A page can invent hosts without end.
        self.refusals[host if host in self.refusals or len(self.refusals) < 1000 else "others"] += 1
        return Refused(reason)


def domain(name: str) -> str:
    """An entry of a list. One that can match nothing would be a hole that nobody sees."""
    found = name.lower().removesuffix(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", found):
        fix = "write example.org, without scheme, port, path or *, and xn--... for letters beyond a-z"
        raise ValueError(f"{name!r} is no domain: {fix}; its subdomains are included")
    return found


def listed(name: str, domains: Sequence[str]) -> bool:
    return any(f".{name}".endswith(f".{domain}") for domain in domains)


def canonical(host: str) -> str:
    """A host as Chromium names it: ASCII, lower case, without brackets or a final dot. Raises ValueError."""
    name = host.removeprefix("[").removesuffix("]").encode("idna").decode().lower().removesuffix(".")
    if not name or not name.isprintable():
        raise ValueError(host)
    return name


def public(address: str) -> bool:
    """Whether an IP address is on the open internet. Raises ValueError if it is none."""
    ip = ipaddress.ip_address(address)
    if ip.version == 6:  # one that leads to an IPv4 address is as private as that is
        nat64 = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in NAT64 else None
        ip = ip.ipv4_mapped or ip.sixtofour or nat64 or ip
    odd = ip.is_multicast or ip.is_reserved or any(ip in network for network in ODD_NETWORKS)
    return ip.is_global and not odd
