"""Sites from a theme and a seed: pages and flows put together from fragments, in the theme's words.

`make_site` returns a World in which `lint` finds no fault, which `search` solves, `render` draws and `replay`
verifies. How an item is found (search, scrolling, filters), what is then done with it (by a form, with a
review, a date, a quantity ...), how pages are reached, names, records and looks: all is drawn from the seed.
Paper: AutoWebWorld, section 4.1, appendices A.1 and C, with the released code's profiles of difficulty.
Deviation: there, a language model proposes a machine for the name of a real site, and others repair it. Here
fragments share field names along a flow, so that a selected item is carried along by construction.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

from minirl.worlds.interpreter import World
from minirl.worlds.looks import Json, draw_records, dress, read_table
from minirl.worlds.shop import make_first_site
from minirl.worlds.widgets import Offered, SiteDocument, condition, control, effect

DAYS = [f"2026-{month:02}-{day:02}" for month in (5, 6, 7) for day in range(1, 29)]
VOCABULARY = read_table("themes")
# The same with attributes in place of keys
_NAMED = json.loads(json.dumps(VOCABULARY), object_hook=lambda fields: SimpleNamespace(**fields))
THEMES = {theme.name: theme for theme in _NAMED.themes}
LEVELS = vars(_NAMED.levels)
FIELD_TYPES = {"checkbox": "boolean", "slider": "number|null"}  # others hold texts


def make_site(theme: str, seed: int, level: str = "medium", skin: str = "") -> World:
    """Return the site `<theme>-<level>-<seed>`: the same arguments give the same site. Another `skin` than
    the one that the seed draws changes the looks alone. ValueError if there is no such theme or skin."""
    if theme not in THEMES:
        raise ValueError(f"there is no theme {theme!r}; there are: {', '.join(THEMES)}")
    name = f"{theme}-{level}-{seed}"
    rng = Random(f"{theme} {level} {seed}")
    if LEVELS[level].look == "tiles":
        return make_first_site(name, THEMES[theme], LEVELS[level], VOCABULARY, rng)
    world = SiteBuilder(THEMES[theme], LEVELS[level], rng).build(name)
    return dress(world, THEMES[theme].category, skin)


@dataclass(frozen=True)
class Flow:
    """Something that can be done on a site, with what it asks for: texts, a date, an option, pieces ..."""

    id: str
    verb: str
    asks: Sequence[str]
    start: str  # the page on which it begins
    end: str  # and the one to which it leads
    item: str = ""  # the field that says with which item it is done, "" if with none
    collection: str = ""  # the list from which the item has been opened, "" if it hasn't


class SiteBuilder:
    """One draw of a site; `build` is to be called once."""

    def __init__(self, theme: Any, level: Any, rng: Random):
        self.theme = theme
        self.level = level
        self.rng = rng
        self.faces = Random(repr(rng.getstate()))  # which of several widgets that do the same
        self.brand = rng.choice(theme.brands)
        self.entities = theme.entities[: level.entities]
        self.data = {entity.plural: draw_records(entity, rng) for entity in self.entities}
        self.has_cookie = rng.random() < 0.7
        self.site = SiteDocument(rng.choice(VOCABULARY["id_styles"]))
        self.lists: list[Json] = []  # what tasks.py is told of the lists
        self.flows: list[Json] = []  # and of what can be done

    def build(self, name: str) -> World:
        """Return the site with its records and words."""
        self.site.add_page("HOME", self.brand)
        if self.has_cookie:
            self._add_cookie_banner()
        for entity in self.entities:
            self._add_list(entity)
            label = entity.name.capitalize()
            self.site.add_page(_page_of(entity), label, _list_of(entity), _selected(entity))
        self._add_item_flows()
        for extra in self.level.extras:
            self._add_extra(VOCABULARY["extras"][extra])
        meta = {
            "app": self.brand,
            "theme": self.theme.name,
            "level": self.level.name,
            "steps": self.level.steps,
            "lists": self.lists,
            "flows": self.flows,
        }
        style = {
            "look": "pages",
            "brand": self.brand,
            "labels": self.site.labels,
            "messages": self.site.messages,
            "facts": {entity.plural: _facts_of(entity) for entity in self.entities},
        }
        return World(name, self.site.machine(meta), self.data, style)

    def _add_cookie_banner(self) -> None:
        self.site.fields("HOME")["cookie_accepted"] = "boolean|null"
        banner = control("button", "#cookie-accept")
        gates = [condition("cookie_accepted", "eq", None)]
        effects = [effect("set", "cookie_accepted", value=True)]
        self.site.add_action("HOME", "ACCEPT", "Accept cookies", banner, gates=gates, effects=effects)

    # --- pages and lists ------------------------------------------------------------------------------------

    def _add_from_home(self, page: str, label: str, fields: Json) -> None:
        """Add a page, and a way to it from the first one: a link, or a menu's entry (by click or pointer)."""
        self.site.add_page(page, label, "HOME", fields)
        gates = []
        if self.has_cookie:
            gates.append(condition("cookie_accepted", "eq", True))
        role = f"GO_{page}"
        way = self.rng.choice(("direct", "menu", "hover"))
        widget = None if way == "direct" else self._menu_entry(way, role, label)
        self.site.add_action("HOME", role, label, widget, to=page, gates=gates)

    def _menu_entry(self, way: str, role: str, label: str) -> Json:
        """Return the widget of an entry of the first page's menu of this kind, "menu" or "hover"."""
        opener = self.site.selector("HOME", f"{way}-opener")
        entry = self.site.selector("HOME", role)
        options = [{"value": label, "selector": entry}]
        op, name = ("click", "dropdown") if way == "menu" else ("hover", "hover_menu")
        steps = [
            {"op": op, "selector": opener},
            {
                "op": "click",
                "selector": entry,
                "ui_elements": {"container": opener, "options": options},
            },
        ]
        return {"name": "select", "parameters": {"widget": name}, "gui_procedure": steps}

    def _add_list(self, entity: Any) -> None:
        """Add the page that lists a kind of thing, and the ways to find one that are drawn."""
        page = _list_of(entity)
        many = entity.plural
        self._add_from_home(page, many.capitalize(), _selected(entity))
        flag = self.rng.choice(entity.flags)
        numbers = [name for name, *_ in entity.numbers]
        least, order = self.rng.choices(numbers, k=2)
        # Each step of the slider leaves another number of rows, at least one.
        steps = sorted({record[least] for record in self.data[many]})
        bind = {"param": entity.name, "collection": many}
        # By ways: the page's field, what `_add_input` wants, and the field of records that it filters.
        inputs = {
            "search": ("query", "search", f"Search {many}", bind, "id", "eq"),
            "checkbox": (f"only_{flag}", "checkbox", f"Only {flag}", (), flag, "flag"),
            "slider": (f"least_{least}", "slider", f"{least.capitalize()} at least", steps[1:], least, "gte"),
            "sort": ("order", "choice", f"Order by {order}", (f"{order}:asc", f"{order}:desc"), "", ""),
            "kind": ("kind", "choice", "Kind", entity.kinds, "kind", "eq"),
        }
        ways = {}
        where = {}
        for way, (name, kind, label, offered, filtered, cond) in inputs.items():
            # Each way is drawn by itself, so that a list may have all of them, or none.
            count = self.rng.randint(2, 5)
            if way not in self.rng.sample(list(inputs), count):
                continue
            field = f"{many}_{name}"
            ways[way] = name
            self._add_input(page, kind, name.upper(), label, field, offered)
            if filtered:
                where[filtered] = {"cond": cond, "value": f"$.{field}"}
        order_field = f"$.{many}_order" if "sort" in ways else ""
        self._add_rows(entity, {**bind, "where": where, "order": order_field}, ways)

    def _add_rows(self, entity: Any, bind: Json, ways: Mapping[str, str]) -> None:
        """Add a list's rows. Opening one notes which it is, and how the `ways` to find it were set."""
        page = _list_of(entity)
        many = entity.plural
        types = self.site.fields(page)
        notes = []
        for name in ways.values():
            field = f"{many}_{name}"
            notes.append(self.site.note(many, name, types[field], value_from=f"$.{field}"))
        notes.append(self.site.note(many, "item", value_ref=f"{{{entity.name}}}"))
        rows = self.site.selector(page, "LIST")
        row = control("row", f"{rows} .{entity.name}-row", f"selected_{entity.name}_id", bind)
        label = entity.name.capitalize()
        self.site.add_action(page, "OPEN", label, row, to=_page_of(entity), effects=notes)
        self.lists.append({"id": many, "one": entity.name, "page": page, "ways": dict(ways)})

    # --- flows ----------------------------------------------------------------------------------------------

    def _add_item_flows(self) -> None:
        """Add what can be done with an item: the theme's own verb, and others."""
        entity_verbs = [entity.verb for entity in self.entities]
        verbs = [verb for verb in VOCABULARY["verbs"] if verb not in entity_verbs]
        self.rng.shuffle(verbs)
        for n in range(self.level.flows):
            entity = self.entities[n % len(self.entities)]
            verb = entity.verb
            message = entity.done
            if n >= len(self.entities):
                verb = verbs.pop()
                message = f"{verb.capitalize()}: done."
            id = f"{verb}_{entity.name}".replace(" ", "_")
            end = self._add_end(id, message)
            count = self.rng.randint(*self.level.inputs)
            asks = self._draw_asks(count)
            item = f"selected_{entity.name}_id"
            self._add_flow(Flow(id, verb, asks, _page_of(entity), end, item, entity.plural))

    def _draw_asks(self, count: int) -> list[str]:
        """Return what a form asks for, by its names in themes.toml."""
        fields = self.theme.fields
        texts = self.rng.sample(fields, min(count, len(fields)))
        return self.rng.sample(["date", "option", "agreed", "pieces", "file", *texts], count)

    def _add_end(self, flow: str, message: str) -> str:
        """Add a terminal page, and return its id."""
        page = f"{flow.upper()}_DONE"
        self.site.add_page(page, "Done")
        self.site.messages[page] = message
        self.site.add_action(page, "HOME", "Home", to="HOME")
        return page

    def _add_extra(self, extra: Mapping[str, Any]) -> None:
        """Add a page and its flows, as one of the tables `extras` of themes.toml says."""
        entity = self.entities[0]
        item_page = _page_of(entity)
        names = {
            "PAGE": item_page,
            "ITEM": f"selected_{entity.name}_id",
            "FLOW": self.flows[0]["id"],
        }
        self._add_from_home(extra["page"], extra["label"], {})
        for table in extra["flows"]:
            asks = table.get("asks", self.theme.settings)
            if "asks_more" in table:
                asks = asks + self._draw_asks(self.level.inputs[0] - 1)
            end = table.get("end") or self._add_end(table["id"], table["done"])
            start = table["start"].format(**names)
            item = table.get("item", "").format(**names)
            collection = entity.plural if start == item_page else ""
            self._add_flow(Flow(table["id"], table["verb"], asks, start, end, item, collection))

    def _add_flow(self, flow: Flow) -> None:
        """Add what leads from one page to another: inputs, there or on a page of their own, perhaps a review,
        and an action that notes in `done` what was given, and with which item it was done."""
        number = len(self.flows)
        role = flow.id.upper()
        label = flow.verb.capitalize()
        gates = []
        if flow.item:
            gates.append(condition(flow.item, "length_gt", 0))
        page = flow.start
        if flow.item and len(flow.asks) > 1:
            page = self._add_form(flow, gates)
        for name in flow.asks:
            is_filled = self._add_ask(page, name, number)
            if flow.id != "settings":  # whose switches may stay as they are
                gates.append(is_filled)
        after = []
        if flow.item.startswith("done."):
            after.append(flow.item.split(".")[1])
        if flow.id == "order" and "login" in self.site.done:
            gates.append(condition("done.login.user", "length_gt", 0))
            after.append("login")
        types = self.site.fields(page)
        notes = []
        for name in flow.asks:
            field = f"{name}_{number}"
            notes.append(self.site.note(flow.id, name, types[field], value_from=f"$.{field}"))
        if flow.item:
            notes.append(self.site.note(flow.id, "item", value_from=f"$.{flow.item}"))
        has_form = page != flow.start
        if has_form and len(flow.asks) > 2 and self.rng.random() < 0.5:
            review = f"{role}_REVIEW"
            self.site.add_page(review, "Review", page, types)
            self.site.add_action(page, f"REVIEW_{role}", "Review", to=review, gates=gates)
            page = review
        finish = f"FINISH_{role}"
        self._add_press(page, finish, label, "confirm", to=flow.end, gates=gates, effects=notes)
        self.flows.append(
            {
                "id": flow.id,
                "verb": flow.verb,
                "list": flow.collection,
                "asks": {name: _offered(name) for name in flow.asks},
                "after": after,
            }
        )

    def _add_form(self, flow: Flow, gates: Sequence[Json]) -> str:
        """Add a page for a flow's inputs, and the way to it. Return its id."""
        role = flow.id.upper()
        page = f"{role}_FORM"
        label = flow.verb.capitalize()
        fields = {}
        if flow.collection:
            # The item's page has the item, so nothing need be waited for.
            fields[flow.item] = "string|null"
            gates = []
        self.site.add_page(page, label, flow.start, fields)
        self._add_press(flow.start, f"START_{role}", label, "window", to=page, gates=gates)
        return page

    # --- inputs ---------------------------------------------------------------------------------------------

    def _add_ask(self, page: str, name: str, number: int) -> Json:
        """Add an input of the flow of this number. Return the condition that it is filled in."""
        field = f"{name}_{number}"
        if name == "pieces":
            self._add_counter(page, field, number)
            return condition(field, "gte", 1)
        usual = "field" if name in VOCABULARY["words"] else "checkbox"
        kind = self.faces.choice(VOCABULARY["faces"].get(name, [usual]))
        label = name.replace("_", " ").capitalize()
        if name == "agreed":
            label = "I agree to the terms"
        offered = () if kind == "checkbox" else _offered(name)
        return self._add_input(page, kind, field.upper(), label, field, offered)

    def _add_input(self, page: str, kind: str, role: str, label: str, field: str, offered: Offered) -> Json:
        """Add a field to a page, and the action that fills it in. Return the condition that this is done."""
        self.site.fields(page)[field] = FIELD_TYPES.get(kind, "string|null")
        selector = self.site.selector(page, role)
        if kind in FIELD_TYPES:  # which `widget_of` knows by the selector's end
            selector += f"-{kind}"
        self.site.add_action(page, role, label, control(kind, selector, field, offered))
        if kind == "checkbox":
            return condition(field, "eq", True)
        return condition(field, "length_gt", 0)

    def _add_counter(self, page: str, field: str, number: int) -> None:
        """Add two buttons that change a number between 0 and 5."""
        self.site.fields(page)[field] = "integer"
        for role, label, cond, limit, by in (
            ("MORE", "One more", "lt", 5, 1),
            ("FEWER", "One less", "gt", 0, -1),
        ):
            gates = [condition(field, cond, limit)]
            effects = [effect("inc", field, by=by)]
            self.site.add_action(page, f"{role}_{number}", label, gates=gates, effects=effects)

    def _add_press(self, page: str, role: str, label: str, other: str, **more: Any) -> None:
        """Add an action by a button, or by chance by the `other` widget that does what a button does."""
        (kind,) = self.faces.choices((other, "button"), (1, 3))
        widget = control(kind, self.site.selector(page, role))
        self.site.add_action(page, role, label, widget, **more)


def _page_of(entity: Any) -> str:
    """Return the id of the page that shows one of a kind of things."""
    return entity.name.upper()


def _list_of(entity: Any) -> str:
    """Return the id of the page that lists a kind of things."""
    return entity.plural.upper()


def _selected(entity: Any) -> dict[str, str]:
    """Return the field that says which item a page is about, with its type."""
    return {f"selected_{entity.name}_id": "string|null"}


def _offered(name: str) -> list[Any]:
    """Return the values that an input may be given in a task."""
    if name == "date":
        return DAYS
    return VOCABULARY["words"].get(name, [True])


def _facts_of(entity: Any) -> dict[str, str]:
    """Return how a row says the facts of a record, by fields: {"price": "price {} crowns"}."""
    facts = {"kind": "{}"}
    for name, unit, *_ in entity.numbers:
        facts[name] = f"{name} {unit}"
    return facts | dict.fromkeys(entity.flags, "{}")
