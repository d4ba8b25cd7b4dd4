"""What the guard lets through: names, addresses, lists, and how often."""

import asyncio
import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.browser.access import Guard, Refused

# Networks with an address of each; those that are written in IPv6 may lead to an IPv4 address.
PRIVATE_4 = ["127.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.1", "192.168.1.1", "169.254.169.254"]
PRIVATE_4 += ["100.64.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1"]
PRIVATE_4 += ["192.0.0.192", "168.63.129.16", "192.88.99.1"]
PRIVATE_6 = ["::1", "::", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "4000::1"]
PRIVATE_6 += ["2001:db8::1", "3fff::1"]
INNER_6 = ["::ffff:10.0.0.1", "::ffff:7f00:1", "::10.0.0.1", "64:ff9b::a00:1", "64:ff9b::127.0.0.1"]
INNER_6 += ["64:ff9b:1::a00:1", "2002:0a00:0001::", "2002:7f00:1::1", "2001:0:808:808::f5ff:fffe"]
PUBLIC = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PUBLIC += ["2002:808:808::1"]


@pytest.mark.parametrize("ip", [*PRIVATE_4, *PRIVATE_6, *INNER_6])
def test_private_addresses_are_refused_in_every_spelling(ip):
    for host in (ip, f"[{ip}]", ip.upper(), f"{ip}."):
        with pytest.raises(Refused, match="is a private address"):
            Guard().check_name(host)
    Guard(private=True).check_name(ip)
    for public in PUBLIC:
        Guard().check_name(public)
        Guard().check_name(f"[{public}]")


INSIDE = ["EXAMPLE.org.", "a.b.example.org"]
OUTSIDE = ["notexample.org", "example.org.evil.test", "org", "8.8.8.8"]


@pytest.mark.parametrize("host", INSIDE + OUTSIDE)
def test_a_domain_means_itself_and_its_subdomains(host):
    allowing, denying = Guard(allow=["other.test", "Example.org."]), Guard(deny=["example.org"])
    lets, refuses = (allowing, denying) if host in INSIDE else (denying, allowing)
    lets.check_name(host)
    with pytest.raises(Refused, match="list of (allowed|denied) domains"):
        refuses.check_name(host)
    both = Guard(allow=["example.org"], deny=["bad.example.org"], sites={"Shop.test": 8000})
    both.check_name("shop.TEST")
    for denied in ("bad.example.org", "very.bad.example.org"):
        with pytest.raises(Refused, match="denied"):
            both.check_name(denied)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("BÜCHER.example", "denied"),
        ("xn--bcher-kva.example", "denied"),
        ("127。0。0。1", "127.0.0.1 is a private address"),
        ("１２７.0.0.1", "127.0.0.1 is a private address"),
        *((host, "is no host name") for host in ("", "[]", "a..b", "a" * 64, "a\0b", "\ud800")),
    ],
)
def test_names_are_read_as_chromium_reads_them(host, reason):
    with pytest.raises(Refused, match=reason):
        Guard(deny=["xn--bcher-kva.example"]).check_name(host)


@given(st.text() | st.ip_addresses().map(str) | st.from_regex(r"[0-9a-fx.:%\[\]]*", fullmatch=True))
def test_a_name_is_refused_or_let_through_whatever_it_is(host):
    with contextlib.suppress(Refused):
        Guard(allow=["org", "0"], deny=["example.org"]).check_name(host)


@pytest.mark.parametrize("entry", ["http://example.org", "example.org:80", "*.example.org", "", "ü.de"])
def test_an_entry_that_matches_nothing_is_a_mistake(entry):
    for lists in ({"allow": [entry]}, {"deny": [entry]}):
        with pytest.raises(ValueError, match="is no domain: write example.org, without scheme"):
            Guard(**lists)


async def test_only_public_addresses_of_a_name_are_used(names):
    names["mixed.test"] = ["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "8.8.8.8"]
    names["inner.test"] = ["192.168.0.7", "127.0.0.1"]
    names["none.test"] = []
    strict, loose = Guard(deny=["example.org"], sites={"shop.test": 8123}), Guard(private=True)
    with pytest.raises(Refused):  # without a look-up
        await strict.resolve("example.org", 80)
    assert await strict.resolve("SHOP.test.", 443) == [("127.0.0.1", 8123)] and names["asked"] == []
    assert await strict.resolve("Mixed.test", 80) == [("8.8.8.8", 80), ("2606:4700::1111", 80)]
    assert len(await loose.resolve("mixed.test", 80)) == 4
    with pytest.raises(Refused, match=r"inner.test is at 192.168.0.7, a private address"):
        await strict.resolve("inner.test", 443)
    with pytest.raises(OSError):
        await strict.resolve("unknown.test", 443)
    assert await strict.resolve("none.test", 443) == []
    for old in ("127.1", "2130706433", "0x7f.1", "0177.0.0.1"):  # spellings of an address
        with pytest.raises(Refused, match="is at 127.0.0.1, a private address"):
            await strict.resolve(old, 80)


HERE = "http://127.0.0.1:81/one?a=b"


@pytest.mark.parametrize(
    ("written", "opened"),
    [
        *((text, "http://127.0.0.1:81/two") for text in ("127.0.0.1:81/two", "/two", "//127.0.0.1:81/two")),
        *((f"{begin}127.0.0.1/two", "http://127.0.0.1/two") for begin in ("", "http:/", "http:", "http:////")),
        *((f"{a}http://a.org/x y{b}", "http://a.org/x y") for a, b in ("<>", "``", '""', "''", "  ", "\n\t")),
        ("http:\\\\a.org", "http://a.org"), ("`<a.org>`", "https://a.org"),
        ("HTTP://A.org/", "HTTP://A.org/"), ("a.org/?next=http://b.org", "https://a.org/?next=http://b.org"),
        ("localhost:8000", "http://localhost:8000"), ("localhost", "http://localhost"),
        ("[::1]:81/x", "http://[::1]:81/x"), ("a.org:8443/x", "http://a.org:8443/x"),
        ("a.org:443/x", "https://a.org:443/x"), ("shop.test/two", "http://shop.test/two"),
        ("shop.test:80", "http://shop.test:80"), ("bücher.org", "https://bücher.org"),
        ("?c=d", "http://127.0.0.1:81/one?c=d"), ("#top", f"{HERE}#top"),
        *((text, text) for text in ("file:///etc/passwd", "javascript:alert(1)", "data:text,x", "a:b@c.org")),
        ("//[a", "https:////[a"), ("", "https://"),
    ],
)  # fmt: skip
async def test_addresses_are_read_as_people_write_them(written, opened):
    guard = Guard(sites={"shop.test": 8123})
    assert guard.read(written, HERE) == opened
    for words in ("red mugs", "how to.do it"):
        with pytest.raises(Refused, match="these are words, not an address"):
            guard.read(words, HERE)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (" HTTP://user:pass@[::1]:8080/x", "::1 is a private address"),
        ("http://a..b/", "'a..b' is no host name"),
        ("example.org", "only http and https addresses can be opened"),
        ("http://a.test:99999/", "only http and https addresses can be opened"),
        ("http://127.0.0.1\\\\@example.org/", "only http and https addresses can be opened"),
        ("http://127%2E0.0.1/", "only http and https addresses can be opened"),
    ],
)
async def test_an_address_is_refused_with_its_reason(names, url, reason):
    with pytest.raises(Refused) as caught:
        await Guard().check(url)
    assert str(caught.value) == reason
    names["example.org"] = ["8.8.8.8"]
    for opens in ("http://example.org", "https://example.org:8443/a?b#c", "http://unknown.test/"):
        await Guard().check(opens)


async def test_why_the_proxy_did_not_connect_is_explained(names):
    guard, error = Guard(), "net::ERR_SOCKS_CONNECTION_FAILED"
    assert await guard.explain("http://10.0.0.1/", error) == "10.0.0.1 is a private address"
    assert await guard.explain("http://10.0.0.1/", "net::ERR_OTHER") == "net::ERR_OTHER"
    for redirects in ("http://unknown.test/", ""):
        assert (await guard.explain(redirects, error)).startswith("it leads to an address that is refused")


async def test_a_trusted_place_is_a_host_with_its_port_and_may_be_private(names):
    names["gitlab.internal"] = ["10.0.0.6"]
    places = {("10.0.0.5", 8023), ("gitlab.internal", 80)}
    guard = Guard(trusted=places)
    assert await guard.resolve("10.0.0.5", 8023) == [("10.0.0.5", 8023)]
    assert await guard.resolve("GitLab.internal.", 80) == [("10.0.0.6", 80)]
    await guard.check("http://10.0.0.5:8023/a?b")
    for other in ("10.0.0.5", "10.0.0.5:22", "10.0.0.6:8023", "gitlab.internal:8023"):
        with pytest.raises(Refused, match="a private address"):
            await guard.check(f"http://{other}/")
    with pytest.raises(Refused, match="denied"):
        await Guard(deny=["10.0.0.5"], trusted=places).check("http://10.0.0.5:8023/")


async def test_turns_on_a_host_come_in_order_and_apart():
    paced, came, before = Guard(rate=20, sites={"shop.test": 1}), [], time.monotonic()

    async def act(host: str, n: int) -> None:
        await paced.pace(f"http://{host}/{n}")
        came.append((host, n))

    await asyncio.gather(*[act(host, n) for n in range(4) for host in ("a.test", "A.test.", "b.test")])
    assert time.monotonic() - before >= 7 * 0.05 - 0.01
    assert [n for host, n in came if host == "b.test"] == [0, 1, 2, 3]
    assert [n for host, n in came if host != "b.test"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert came.index(("b.test", 3)) < came.index(("A.test.", 2))  # it did not wait for the other's
    async with asyncio.timeout(2):
        for _ in range(100):
            await paced.pace("http://shop.test/")  # our own sites need no rest


async def test_a_turn_that_is_given_up_leaves_no_gap():
    paced = Guard(rate=2)
    await paced.pace("http://a.test/")
    gone = [asyncio.create_task(paced.pace("http://a.test/")) for _ in range(100)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    async with asyncio.timeout(10):
        await paced.pace("http://a.test/")
