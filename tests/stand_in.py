"""Stand-ins for WebArena's sites, each on a loopback port of its own: pages that work like the real ones.

    with serve() as world:
        world.sites["REDDIT"]  # "http://127.0.0.1:40001"

The shop, its administration, the forum, the code host and the map share one `World`, which tests read and
change. Whoever logs in has a cookie; forms write to the world; the shop answers its administrator in JSON.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from html import escape
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pages

from minirl.benchmarks.webarena.login import LOGINS

TOKEN = "token-of-the-administrator"
ISSUES = {"opened": ["Contrast of links", "Missing label"], "closed": ["Old news"]}


@dataclass
class World:
    sites: dict[str, str] = field(default_factory=dict)  # by variable
    reset: str = ""  # the address of the reset server
    posts: list[tuple[str, str, str]] = field(default_factory=list)  # forum, title, body
    members: dict[str, str] = field(default_factory=dict)  # account -> role
    orders: list[list[str]] = field(default_factory=list)  # what was ordered, by SKU
    reviews: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # SKU, quoted -> author, percent
    rest_broken: bool | str = False  # the shop's server answers with an error, or with "a page"
    busy: int = 0  # so many times the reset server says that it is not ready
    resets: int = 0
    asked: list[str] = field(default_factory=list)  # every request, as "shopping GET /path?query"


@dataclass(frozen=True)
class Answer:
    body: str = ""
    status: int = 200
    kind: str = "text/html"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request: where, what was sent along, and whether by somebody who is logged in."""

    site: str
    method: str
    path: str
    sent: dict[str, str]  # the query's fields, or the form's
    member: bool
    token: str


def page(title: str, body: str) -> Answer:
    return Answer(f"<!doctype html><html><head><title>{title}</title></head><body>{body}</body></html>")


def go(path: str, **headers: str) -> Answer:
    return Answer(status=303, headers={"Location": path, **headers})


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(value), status, "application/json")


def form(action: str, user: str, password: str, more: str = "") -> str:
    return (
        f'<form method="post" action="{action}" {more}><input name="{user}"><input type="password" '
        f'name="{password}"><button type="submit">Sign in</button></form>'
    )


def blank(title: str, action: str, *names: str) -> Answer:
    """A page with a form of text fields and a button."""
    fields = "".join(f'<input name="{name}">' for name in names)
    return page(title, f'<form method="post" action="{action}">{fields}<button>{title}</button></form>')


def let_in(asked: Asked, user: str, password: str, inside: str, outside: str) -> Answer:
    account = LOGINS[asked.site]
    if (asked.sent.get(user), asked.sent.get(password)) == (account["user"], account["password"]):
        return go(inside, **{"Set-Cookie": f"{asked.site}_session=1; Path=/"})
    return go(outside)


def shopping(asked: Asked, world: World) -> Answer | None:
    login = "/customer/account/login/"
    match asked.method, asked.path.strip("/").split("/"):
        case "GET", ["customer", "account", "login"]:
            return page("Login", form(login, "login[username]", "login[password]", 'id="login-form"'))
        case "POST", ["customer", "account", "login"]:
            return let_in(asked, "login[username]", "login[password]", "/customer/account/", login)
        case "GET", ["customer", "account"]:
            return page("Account", "My account") if asked.member else go(login)
        case "GET", ["checkout"]:
            return blank("Place order", "/checkout", "skus")
        case "POST", ["checkout"]:
            world.orders.append(asked.sent["skus"].split(","))
            return page("Thanks", "Thank you")
        case "GET", ["sales", "order", "view", "order_id", number] if asked.member:
            rows = "".join(f"<tr><td>{escape(sku)}</td></tr>" for sku in world.orders[int(number) - 1])
            return page("Order", f'<table class="order-details-items ordered">{rows}</table>')
        case "GET", ["review", "product"]:
            return blank("Submit review", "/review/product", "sku", "nickname", "percent")
        case "POST", ["review", "product"]:
            review = (asked.sent["nickname"], int(asked.sent["percent"]))
            world.reviews.setdefault(quote(asked.sent["sku"], safe=""), []).append(review)
            return page("Thanks", "You submitted your review")
        case "POST", ["rest", "default", "V1", "integration", "admin", "token"]:
            admin = LOGINS["shopping_admin"]
            good = asked.sent == {"username": admin["user"], "password": admin["password"]}
            return as_json(TOKEN) if good else as_json({"message": "no"}, 401)
        case "GET", ["rest", "V1", *_] if world.rest_broken == "a page":
            return page("Back soon", "Maintenance")
        case "GET", ["rest", "V1", *_] if asked.token != f"Bearer {TOKEN}" or world.rest_broken:
            return as_json({"message": "The consumer isn't authorized"}, 401)
        case "GET", ["rest", "V1", "orders"]:
            newest = [{"increment_id": f"{len(world.orders):09}"}] if world.orders else []
            right = asked.sent.get("searchCriteria[sortOrders][0][direction]") == "DESC"
            return as_json({"items": newest if right else [{"increment_id": "000000001"}]})
        case "GET", ["rest", "V1", "products", sku, "reviews"]:
            reviews = world.reviews.get(sku, [])
            return as_json([{"nickname": who, "ratings": [{"percent": n}]} for who, n in reviews])
        case "GET", [""]:
            return page("One Stop Market", "Welcome")
        case "GET", [name] if name.endswith(".html"):
            return page(name, f"<h1>{escape(name)}</h1>")


def shopping_admin(asked: Asked, world: World) -> Answer | None:
    if not asked.member:
        if asked.method == "POST":
            return let_in(asked, "login[username]", "login[password]", "/admin/dashboard", "/admin")
        fields = '<input id="username" name="login[username]"><input id="login" name="login[password]">'
        button = '<button class="action-login">Sign in</button>'
        return page("Magento Admin", f'<form method="post" action="/admin">{fields}{button}</form>')
    match asked.path.strip("/").split("/")[1:]:
        case ["dashboard"] | []:
            return page("Dashboard", "<h1>Dashboard</h1>")
        case ["reports", "report_sales", "sales"]:
            return page("Orders", '<table id="report"><tr><td>Jan 2023</td><td>$12.50</td></tr></table>')
        case ["sales_rule", "edit"]:  # the fields are there once the section has been opened
            fields = """<input name='simple_action' value='by_percent'><select name='is_active'>
                <option value='1' selected>Yes<option value='0'>No</select>"""
            script = f"this.nextElementSibling.innerHTML = {json.dumps(fields)}"
            title = f'<b class="admin__collapsible-title" onclick="{escape(script)}">Actions</b><div></div>'
            return page("Rule", f'<div data-index="actions">{title}</div>')


def reddit(asked: Asked, world: World) -> Answer | None:
    match asked.method, asked.path.strip("/").split("/"):
        case "GET", ["login"]:
            return page("Log in", form("/login_check", "_username", "_password"))
        case "POST", ["login_check"]:
            return let_in(asked, "_username", "_password", "/", "/login")
        case "GET", ["submit"] if asked.member:
            return blank("Create", "/submit", "forum", "title", "body")
        case "GET", ["submit"]:
            return go("/login")
        case "POST", ["submit"] if asked.member:
            world.posts.append((asked.sent["forum"], asked.sent["title"], asked.sent.get("body", "")))
            slug = "-".join(asked.sent["title"].lower().split())
            return go(f"/f/{asked.sent['forum']}/{len(world.posts)}/{slug}")
        case "GET", ["submit", forum] if asked.member:  # named as the real form's fields are
            return blank("Create", f"/submit/{forum}", "submission[title]", "submission[forum]")
        case "POST", ["submit", forum] if asked.member:
            world.posts.append((forum, asked.sent["submission[title]"], ""))
            return Answer(status=302, headers={"Location": f"/f/{forum}/{len(world.posts)}/"})
        case "GET", ["f", forum, number, *_] if number.isdecimal() and 0 < int(number) <= len(world.posts):
            _, title, body = world.posts[int(number) - 1]
            words = f'<h1 class="submission__title">{escape(title)}</h1> <span>from /f/{escape(forum)}</span>'
            words += f'<div>{escape(body)}</div><a href="/f/{escape(forum)}/more">more</a>'
            return page(escape(title), f'<article class="submission__inner">{words}</article>')
        case "GET", [""]:
            return page("Postmill", "All forums" + (" (logged in)" if asked.member else ""))


def gitlab(asked: Asked, world: World) -> Answer | None:
    match asked.method, asked.path.strip("/").split("/"):
        case "GET", ["users", "sign_in"]:
            return page("Sign in", form("/users/sign_in", "user[login]", "user[password]"))
        case "POST", ["users", "sign_in"]:
            return let_in(asked, "user[login]", "user[password]", "/", "/users/sign_in")
        case _ if not asked.member:
            return go("/users/sign_in")
        case "GET", ["-", "profile"]:
            return page("Profile", "<h1>byteblaze</h1><p id=kept></p>")
        case "GET", [*_, "-", "issues"]:
            titles = ISSUES[asked.sent.get("state", "opened")]
            return page("Issues", f"<ul class=issues-list><li>{'<li>'.join(titles)}</ul>")
        case "GET", [*_, "-", "project_members"]:  # drawn late, as the real one is
            rows = "".join(
                "<tr><td data-label='Account'>"
                f"<span class='gl-avatar-labeled-sublabel'>@{escape(name)}</span></td>"
                f"<td class='col-max-role'><span>{escape(role)}</span></td></tr>"
                for name, role in world.members.items()
            )
            script = f"setTimeout(() => document.querySelector('table').innerHTML = {json.dumps(rows)}, 50)"
            return page("Members", f"<table></table><script>{script}</script>")
        case "GET", [*_, "-", "project_members", "new"]:
            return blank("Invite", asked.path.removesuffix("/new"), "account", "role")
        case "POST", [*_, "-", "project_members"]:
            world.members[asked.sent["account"]] = asked.sent["role"]
            return go(asked.path)
        case "GET", _:
            return page("Project", f"<h1>{escape(asked.path)}</h1>")


def osm(asked: Asked, world: World) -> Answer:
    return page("OpenStreetMap", f"Results for {escape(asked.sent.get('query', 'nothing'))}")


def resetting(asked: Asked, world: World) -> Answer:
    if asked.path == "/reset":
        world.resets += 1
        return Answer("Reset already running", 418) if world.busy else Answer("Reset initiated")
    world.busy -= 1
    return Answer("Ready for duty!" if world.busy < 0 else "Reset ongoing, already at work")


SITES = {"SHOPPING": shopping, "SHOPPING_ADMIN": shopping_admin, "REDDIT": reddit, "GITLAB": gitlab}
SERVED = SITES | {"MAP": osm, "WIKIPEDIA": osm, "HOMEPAGE": osm, "RESET": resetting}


class Handler(pages.Handler):
    protocol_version = "HTTP/1.1"

    def __init__(self, name: str, world: World, *args: Any):
        self.name, self.world = name, world
        super().__init__(*args)

    def do_GET(self) -> None:
        self.answer(dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        is_json = self.headers["Content-Type"] == "application/json"
        self.answer(json.loads(body) if is_json else dict(parse_qsl(body, keep_blank_values=True)))

    def answer(self, sent: dict[str, str]) -> None:
        site = self.name.lower()
        self.world.asked.append(f"{site} {self.command} {self.path}")
        member = f"{site}_session=1" in (self.headers["Cookie"] or "").split("; ")
        path, token = urlsplit(self.path).path, self.headers["Authorization"] or ""
        asked = Asked(site, self.command, path, sent, member, token)
        answer = SERVED[self.name](asked, self.world) or Answer("Not found", 404)
        self.reply(answer.body.encode(), status=answer.status, kind=answer.kind, **answer.headers)


@contextmanager
def serve() -> Iterator[World]:
    world = World()
    with ExitStack() as stack:
        for name in SERVED:
            server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, name, world))
            stack.enter_context(pages.running(server))
            tail = "/admin" if name == "SHOPPING_ADMIN" else ""
            world.sites[name] = f"http://127.0.0.1:{server.server_port}{tail}"
        world.reset = world.sites.pop("RESET")
        yield world


def record_of(site: str, start: str, intent: str, **rules: Any) -> dict[str, Any]:
    """A task on one of the sites as WebArena's files have it; `rules` go into its evaluation."""
    unused = {"string_note": "", "reference_answers": None, "reference_url": "", "program_html": []}
    return {
        "task_id": 1,
        "sites": [site],
        "intent": intent,
        "start_url": start,
        "require_login": True,
        "storage_state": None,
        "intent_template_id": 1,
        "eval": unused | rules,
    }
