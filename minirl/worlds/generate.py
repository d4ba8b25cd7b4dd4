"""Sites from a theme and a seed: pages and flows put together from fragments, in the theme's words.

`make_site` returns a World in which `lint` finds no fault, which `search` solves, `render` draws and `replay`
verifies. How an item is found (search, scrolling, filters), what is then done with it (by a form, with a
review, a date, a quantity ...), how pages are reached, names, records and looks: all is drawn from the seed.
Paper: AutoWebWorld, section 4.1, appendices A.1 and C, with the released code's profiles of difficulty.
Deviation: there, a language model proposes a machine for the name of a real site, and others repair it. Here
fragments share field names along a flow, so that a selected item is carried along by construction.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.looks import SHAPES, draw_style, dress, read_table
from minirl.worlds.shop import CHOICES, SHOP, TO_PRESS, draw_places, records_of
from minirl.worlds.widgets import Json, Offered, action, condition, control, effect

ITEM, *TILES = CHOICES  # the words for what tiles show first, and for what they can ask then
DAYS = [f"2026-{month:02}-{day:02}" for month in (5, 6, 7) for day in range(1, 29)]
VOCABULARY = read_table("themes")
NAMED = json.loads(json.dumps(VOCABULARY), object_hook=lambda fields: SimpleNamespace(**fields))
THEMES, LEVELS = {theme.name: theme for theme in NAMED.themes}, vars(NAMED.levels)


def make_site(theme: str, seed: int, level: str = "medium", skin: str = "") -> World:
    """Return the site `<theme>-<level>-<seed>`: the same arguments give the same site. Another `skin` than
    the one that the seed draws changes the looks alone."""
    if theme not in THEMES:
        raise ValueError(f"there is no theme {theme!r}; there are: {', '.join(THEMES)}")
    plan = Plan(THEMES[theme], LEVELS[level], Random(f"{theme} {level} {seed}"))
    world = plan.world(f"{theme}-{level}-{seed}")
    return world if plan.is_tiles else dress(world, THEMES[theme].category, skin)


class Plan:
    """One draw: pages and actions in the form of an fsm.json, and the words that go with them."""

    def __init__(self, theme: Any, level: Any, rng: Random):
        self.theme, self.level, self.rng = theme, level, rng
        self.pages: dict[str, Json] = {}
        self.labels: dict[str, str] = {}  # of pages and actions
        self.messages: dict[str, str] = {}  # of terminal pages
        self.lists: list[Json] = []  # what tasks.py is told of the lists
        self.flows: list[Json] = []  # and of what can be done
        self.done: dict[str, Json] = {}  # the types of the fields in which the session notes all that
        self.faces = Random(repr(rng.getstate()))  # which of several widgets that do the same
        self.brand = rng.choice(theme.brands)
        self.entities = theme.entities[: level.entities]
        self.is_tiles = level.look == "tiles"
        drawn = [records_of(ITEM, 8, rng) if self.is_tiles else _things(one, rng) for one in self.entities]
        self.data = dict(zip([one.plural for one in self.entities], drawn, strict=True))
        self.has_cookie = not self.is_tiles and rng.random() < 0.7
        self.id_style = rng.choice(VOCABULARY["id_styles"])

    def world(self, name: str) -> World:
        """Return the site with its records, words and looks; to be called once."""
        fsm, facts = load_fsm(self.fsm()), {}  # facts of a record in a row, and how they are said
        for entity in self.entities:
            numbers = {number.name: f"{number.name} {number.unit}" for number in entity.numbers}
            facts[entity.plural] = {"kind": "{}", **numbers, **dict.fromkeys(entity.flags, "{}")}
        words = {"brand": self.brand, "labels": self.labels, "messages": self.messages, "facts": facts}
        style = words | {"look": self.level.look}
        if self.is_tiles:
            style |= draw_style(self.rng) | {"letters": self.rng.randint(22, 28)}
            style["places"] = draw_places(fsm, self.data, self.rng)
        return World(name, fsm, self.data, style)

    def fsm(self) -> Json:
        self._page("HOME", self.brand)
        if self.has_cookie:
            self.pages["HOME"]["signature_schema"]["cookie_accepted"] = "boolean|null"
            banner, unanswered = control("button", "#cookie-accept"), condition("cookie_accepted", "eq", None)
            answer = effect("set", "cookie_accepted", value=True)
            self._action("HOME", "ACCEPT", "Accept cookies", banner, gates=[unanswered], effects=[answer])
        for entity in self.entities:
            page = self._list(entity)
            self._page(entity.name.upper(), entity.name.capitalize(), page, _selected(entity))
        self._item_flows()
        for extra in self.level.extras:
            getattr(self, f"_{extra}")()
        for page in self.pages.values():
            page["signature_schema"]["done"] = self.done
        meta = {"app": self.brand, "initial_page_id": "HOME", "terminal_pages": list(self.messages)}
        meta |= {"theme": self.theme.name, "level": self.level.name, "steps": self.level.steps}
        return {"meta": meta | {"lists": self.lists, "flows": self.flows}, "pages": list(self.pages.values())}

    def _page(self, id: str, label: str, back: str = "", schema: Mapping[str, str] | None = None) -> None:
        """Add a page with these fields, and a button that leads `back`."""
        self.pages[id] = {"id": id, "signature_schema": dict(schema or {}), "actions": []}
        self.labels[id] = label
        if back:
            self._action(id, "BACK", "Back", to=back)

    def _action(self, page: str, role: str, label: str, widget: Json | None = None, **more: Any) -> None:
        """Add an action to a page, by default a button; `more` are arguments of `widgets.action`."""
        self.labels[f"{page}_{role}"] = label
        widget = widget or control("button", self._selector(page, role))
        self.pages[page]["actions"].append(action(f"{page}_{role}", page, widget, **more))

    def _input(self, page: str, kind: str, role: str, label: str, field: str, offered: Offered) -> Json:
        """Add a field to a page, and the action that fills it in. Return the condition that this is done."""
        types = {"checkbox": "boolean", "slider": "number|null"}
        self.pages[page]["signature_schema"][field] = types.get(kind, "string|null")
        ending = f"-{kind}" if kind in types else ""  # by which `widget_of` knows them
        widget = control(kind, self._selector(page, role) + ending, field, offered)
        self._action(page, role, label, widget)
        return condition(field, "eq", True) if kind == "checkbox" else condition(field, "length_gt", 0)

    def _selector(self, page: str, role: str) -> str:
        page, role = (name.lower().replace("_", "-") for name in (page, role))
        return "#" + self.id_style.format(page=page, role=role)

    def _from_home(self, to: str, label: str, schema: Mapping[str, str] | None = None) -> None:
        """Add a page, and a way to it from the first one: a link, or a menu's entry (by click or pointer)."""
        self._page(to, label, "HOME", schema)
        gates = [condition("cookie_accepted", "eq", True)] if self.has_cookie else []
        role, way, widget = f"GO_{to}", self.rng.choice(("direct", "menu", "hover")), None
        if way != "direct":
            opener, item = self._selector("HOME", f"{way}-opener"), self._selector("HOME", role)
            menu = {"container": opener, "options": [{"value": label, "selector": item}]}
            op, name = ("hover", "hover_menu") if way == "hover" else ("click", "dropdown")
            steps = [{"op": op, "selector": opener}, {"op": "click", "selector": item, "ui_elements": menu}]
            widget = {"name": "select", "parameters": {"widget": name}, "gui_procedure": steps}
        self._action("HOME", role, label, widget, to=to, gates=gates)

    def _list(self, entity: Any) -> str:
        """Add the page that lists a kind of thing, and the ways to find one that are drawn. Return its id."""
        page, one, many = entity.plural.upper(), entity.name, entity.plural
        if self.is_tiles:  # which stand on the first page
            self.pages["HOME"]["signature_schema"] |= _selected(entity)
            self._rows(entity, "HOME", many.capitalize(), f"#{many} .row", {}, {})
            return "HOME"
        self._from_home(page, many.capitalize(), _selected(entity))
        flag, numbers = self.rng.choice(entity.flags), [number.name for number in entity.numbers]
        least, order = self.rng.choices(numbers, k=2)
        # each step of the slider leaves another number of rows, at least one
        steps = sorted({record[least] for record in self.data[many]})[1:]
        inputs = {  # a field of the page, the arguments of `_input`, and which field of records it filters
            "search": ("query", "search", f"Search {many}", {"param": one, "collection": many}, "id", "eq"),
            "checkbox": (f"only_{flag}", "checkbox", f"Only {flag}", (), flag, "flag"),
            "slider": (f"least_{least}", "slider", f"{least.capitalize()} at least", steps, least, "gte"),
            "sort": ("order", "choice", f"Order by {order}", (f"{order}:asc", f"{order}:desc"), "", ""),
            "kind": ("kind", "choice", "Kind", entity.kinds, "kind", "eq"),
        }
        drawn = [way for way in inputs if way in self.rng.sample(list(inputs), self.rng.randint(2, 5))]
        rows: Json = {"where": {}, "order": f"$.{many}_order" if "sort" in drawn else ""}
        for name, kind, label, offered, field, cond in (inputs[way] for way in drawn):
            self._input(page, kind, name.upper(), label, f"{many}_{name}", offered)
            if field:
                rows["where"][field] = {"cond": cond, "value": f"$.{many}_{name}"}
        selector = f"{self._selector(page, 'LIST')} .{one}-row"
        self._rows(entity, page, one.capitalize(), selector, rows, {way: inputs[way][0] for way in drawn})
        return page

    def _rows(self, entity: Any, page: str, label: str, selector: str, bind: Json, ways: Json) -> None:
        """Add a list to a page. Opening a row notes which it is, and how the `ways` to find it were set."""
        one, many, schema = entity.name, entity.plural, self.pages[page]["signature_schema"]
        self.done[many] = {"item": "string|null"} | {name: schema[f"{many}_{name}"] for name in ways.values()}
        kept = [effect("set", f"done.{many}.{name}", value_from=f"$.{many}_{name}") for name in ways.values()]
        kept.append(effect("set", f"done.{many}.item", value_ref=f"{{{one}}}"))
        row = control("row", selector, f"selected_{one}_id", {"param": one, "collection": many, **bind})
        self._action(page, "OPEN", label, row, to=one.upper(), effects=kept)
        self.lists.append({"id": many, "one": one, "page": page, "ways": ways})

    def _item_flows(self) -> None:
        """Add what can be done with an item: the theme's own verb, and others."""
        verbs = [verb for verb in VOCABULARY["verbs"] if all(verb != one.verb for one in self.entities)]
        self.rng.shuffle(verbs)
        for n in range(self.level.flows):
            entity = self.entities[n % len(self.entities)]
            is_first = n < len(self.entities)  # of its kind of item, whose own verb it takes
            verb = entity.verb if is_first else verbs.pop()
            id, item = f"{verb}_{entity.name}".replace(" ", "_"), f"selected_{entity.name}_id"
            end = self._end(id, entity.done if is_first else f"{verb.capitalize()}: done.")
            asks = self._draw_asks(self.rng.randint(*self.level.inputs))
            self._flow(id, verb, asks, entity.name.upper(), end, item, entity.plural)

    def _draw_asks(self, count: int) -> list[str]:
        """Return what a form asks: texts, a date, an option, a tick or a number of pieces, by their names."""
        if self.is_tiles:
            return sorted(self.rng.sample(TILES, count), key=TILES.index)  # as an order names them
        texts = self.rng.sample(self.theme.fields, min(count, len(self.theme.fields)))
        return self.rng.sample(["date", "option", "agreed", "pieces", "file", *texts], count)

    def _end(self, flow: str, message: str) -> str:
        """Add a terminal page, and return its id."""
        page = f"{flow.upper()}_DONE"
        self._page(page, "Done")
        self.messages[page] = message
        if not self.is_tiles:
            self._action(page, "HOME", "Home", to="HOME")
        return page

    def _flow(
        self, id: str, verb: str, asks: Sequence[str], start: str, end: str, item: str = "", of: str = ""
    ) -> None:
        """Add what leads from one page to another: inputs, there or on a page of their own, perhaps a review,
        and an action that notes in `done` what was asked, and the `item` (a set field) of the list `of`."""
        n, here, role, carried = len(self.flows), start, id.upper(), {item: "string|null"} if of else {}
        opens, ends = (SHOP["buttons"][name] if self.is_tiles else verb.capitalize() for name in TO_PRESS)
        gates = [condition(item, "length_gt", 0)] if item else []
        if len(asks) > 1 and (of or "." in item):
            here = f"{role}_FORM"
            self._page(here, verb.capitalize(), start, carried)
            self._press(start, f"START_{role}", opens, "window", to=here, gates=[] if of else gates)
        filled = [self._ask(here, name, n) for name in asks]
        gates += [gate for gate in filled if id != "settings"]  # switches may stay as they are
        if id == "order" and "login" in self.done:
            gates.append(condition("done.login.user", "length_gt", 0))
        fields, schema = {name: f"{name}_{n}" for name in asks}, self.pages[here]["signature_schema"]
        self.done[id] = {name: schema[field] for name, field in fields.items()}
        if item:
            fields["item"], self.done[id]["item"] = item, "string|null"
        if len(asks) > 2 and here != start and self.rng.random() < 0.5:
            review = f"{role}_REVIEW"
            self._page(review, "Review", here, schema)
            self._action(here, f"REVIEW_{role}", "Review", to=review, gates=gates)
            here = review
        notes = [effect("set", f"done.{id}.{name}", value_from=f"$.{f}") for name, f in fields.items()]
        self._press(here, f"FINISH_{role}", ends, "confirm", to=end, gates=gates, effects=notes)
        after = [gate["path"].split(".")[2] for gate in gates if gate["path"].startswith("$.done.")]
        shown = {name: self.data.get(fields[name]) for name in asks}
        offered = {n: [one["id"] for one in some] if some else self._offered(n) for n, some in shown.items()}
        self.flows.append({"id": id, "verb": verb, "list": of, "asks": offered, "after": after})

    def _ask(self, page: str, name: str, n: int) -> Json:
        """Add the nth flow's input of this name to a page. Return the condition that it is filled in."""
        field, role, label = f"{name}_{n}", f"{name.upper()}_{n}", name.replace("_", " ").capitalize()
        if self.is_tiles:
            self.data[field] = records_of(name, 5, self.rng)
            row = control("row", f"#{field} .row", field, {"param": name, "collection": field})
            self.pages[page]["signature_schema"][field] = "string|null"
            self._action(page, role, label, row)
            return condition(field, "length_gt", 0)
        if name == "pieces":
            self.pages[page]["signature_schema"][field] = "integer"
            for role, label, gate, by in (("MORE", "One more", "lt", 1), ("FEWER", "One less", "gt", -1)):
                gates, change = [condition(field, gate, 5 if by > 0 else 0)], effect("inc", field, by=by)
                self._action(page, f"{role}_{n}", label, gates=gates, effects=[change])
            return condition(field, "gte", 1)
        usual = "field" if name in VOCABULARY["words"] else "checkbox"
        kind = self.faces.choice(VOCABULARY["faces"].get(name, [usual]))
        label = "I agree to the terms" if name == "agreed" else label
        return self._input(page, kind, role, label, field, self._offered(name) if kind != "checkbox" else ())

    def _press(self, page: str, role: str, label: str, other: str, **more: Any) -> None:
        """Add an action by a button, or by chance by the `other` widget that does what a button does."""
        kind = self.faces.choices((other, "button"), (0 if self.is_tiles else 1, 3))[0]
        self._action(page, role, label, control(kind, self._selector(page, role)), **more)

    def _offered(self, name: str) -> list[Any]:
        """Return the values that an input may be given in a task."""
        return DAYS if name == "date" else VOCABULARY["words"].get(name, [True])

    def _settings(self) -> None:
        self._from_home("SETTINGS", "Settings")
        names = [name.replace(" ", "_") for name in self.theme.settings]
        self._flow("settings", "save", names, "SETTINGS", self._end("settings", "Your settings are saved."))

    def _login(self) -> None:
        self._from_home("LOGIN", "Log in")
        self._flow("login", "log in", ["user", "password"], "LOGIN", "HOME")

    def _cart(self) -> None:
        """Add a cart for the first kind of thing, and its checkout, which may want a login."""
        entity = self.entities[0]
        self._from_home("CART", "Cart")
        page, item = entity.name.upper(), f"selected_{entity.name}_id"
        self._flow("cart", "put into the cart", ["pieces"], page, "CART", item, entity.plural)
        asks = ["payment", *self._draw_asks(self.level.inputs[0] - 1)]
        self._flow("order", "check out", asks, "CART", self._end("order", "Thank you."), "done.cart.item")

    def _change(self) -> None:
        """Add a page on which what the first flow has booked is moved to another day."""
        self._from_home("BOOKINGS", "My bookings")
        item, end = f"done.{self.flows[0]['id']}.item", self._end("change", "Your change is noted.")
        self._flow("change", "change", ["date", "option"], "BOOKINGS", end, item)


def _selected(entity: Any) -> dict[str, str]:
    """Return the field that says which item a page is about."""
    return {f"selected_{entity.name}_id": "string|null"}


def _things(entity: Any, rng: Random) -> tuple[Json, ...]:
    """Return 12 to 24 things; titles and pictures are unique."""
    titles = [f"{adjective} {noun}" for adjective in entity.adjectives for noun in entity.nouns]
    pictures = list(itertools.product(SHAPES, SHOP["fills"].items()))
    count = rng.randint(12, 24)
    titles, pictures = rng.sample(titles, count), rng.sample(pictures, count)
    columns = {}
    for number in entity.numbers:  # all different where there are enough, so that an order has no ties
        choices = range(number.low, number.high + 1, number.step)
        draw = rng.sample if len(choices) >= count else rng.choices
        columns[number.name] = draw(choices, k=count)
    for k, flag in enumerate(entity.flags):  # at least one yes and one no of each
        columns[flag] = [(i + k) % 2 == 0 if i < 2 else rng.random() < 0.5 for i in range(count)]
    out: list[Json] = []
    for i, (title, (shape, (colour, fill))) in enumerate(zip(titles, pictures, strict=True)):
        record: Json = {"id": f"{entity.name}-{i + 1}", "title": title, "shape": shape, "fill": fill}
        record |= {name: column[i] for name, column in columns.items()}
        out.append(record | {"colour": colour, "kind": entity.kinds[i % len(entity.kinds)]})
    rng.shuffle(out)
    return tuple(out)
