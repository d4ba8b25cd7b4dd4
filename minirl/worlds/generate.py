"""Sites from a theme and a seed: pages and flows put together from fragments, in the theme's words.

`make_site` returns a World in which `lint` finds no fault, which `search` solves, `render` draws and `replay`
verifies. How an item is found (search, scrolling, filters), what is then done with it (a date, an option, a
text ...), how pages are reached, names, records and looks: all is drawn from the seed. A site of the level
`first` is drawn as tiles, in the words of shops (shop.py): its list is its first page, without filters.
Paper: AutoWebWorld, section 4.1, appendices A.1 and C.

1. There a language model proposes a machine for the name of a real site, and others repair it. Here fragments
   share field names along a flow, so that a selected item is carried along by construction.
2. The released code's profiles of difficulty have 10 to 35 pages; the levels `easy`, `medium` and `hard` have
   6 to 19, and differ by the steps of a task: 5 to 8, 10 to 15, 20 to 40.
"""

from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from minirl.types import Fields, Json
from minirl.worlds.interpreter import World
from minirl.worlds.looks import draw_records, dress, read_table
from minirl.worlds.shop import ITEM, ORDER_FIELDS, SHOP, arrange, records_of
from minirl.worlds.widgets import Offered, SiteDocument, condition, control, effect

DAYS = [f"2026-{month:02}-{day:02}" for month in (5, 6, 7) for day in range(1, 29)]
VOCABULARY = read_table("themes")
FIELD_TYPES = {"checkbox": "boolean", "slider": "number|null"}  # others hold texts


def _named(tables: Json) -> dict[str, Any]:
    """Return tables as objects, each with its name, and by default that with an s as its plural."""
    named = {}
    for name, fields in tables.items():
        named[name] = SimpleNamespace(**{"name": name, "plural": f"{name}s", **fields})
    return named


THEMES = _named(VOCABULARY["themes"])
LEVELS = _named(VOCABULARY["levels"])
for _theme in THEMES.values():
    _theme.entities = list(_named(_theme.entities).values())


def make_site(theme: str, seed: int, level: str = "medium", skin: str = "") -> World:
    """Return the site `<theme>-<level>-<seed>`: the same arguments give the same site. Another `skin` than
    the one that the seed draws changes the looks alone. ValueError if there is no such theme."""
    if theme not in THEMES:
        raise ValueError(f"there is no theme {theme!r}; there are: {', '.join(THEMES)}")
    name = f"{theme}-{level}-{seed}"
    rng = Random(f"{theme} {level} {seed}")
    builder = SiteBuilder(THEMES[theme], LEVELS[level], rng)
    world = builder.build(name)
    if builder.is_tiles:
        return arrange(world, rng)
    return dress(world, THEMES[theme].category, skin)


class SiteBuilder:
    """One draw of a site; `build` is to be called once."""

    def __init__(self, theme: Any, level: Any, rng: Random):
        self.theme = theme
        self.level = level
        self.rng = rng
        self.is_tiles = level.look == "tiles"
        self.buttons = SHOP["buttons"] if self.is_tiles else {}  # else they bear the names of flows
        self.brand = rng.choice(theme.brands)
        self.entities = theme.entities[: level.entities]
        self.data = {}
        for entity in self.entities:
            records = records_of(ITEM, 8, rng) if self.is_tiles else draw_records(entity, rng)
            self.data[entity.plural] = records
        self.has_cookie = not self.is_tiles and rng.random() < 0.7
        self.site = SiteDocument(rng.choice(VOCABULARY["id_styles"]))
        self.lists = []  # what tasks.py is told of the lists
        self.flows = []  # and of what can be done

    def build(self, name: str) -> World:
        """Return the site with its records and words."""
        self.site.add_page("HOME", self.brand)
        if self.has_cookie:
            self.site.fields("HOME")["cookie_accepted"] = "boolean|null"
            banner = control("button", "#cookie-accept")
            gates = [condition("cookie_accepted", "eq", None)]
            effects = [effect("set", "cookie_accepted", value=True)]
            self.site.add_action("HOME", "ACCEPT", "Accept cookies", banner, gates=gates, effects=effects)
        facts = {}  # how pages say the fields of a record
        for entity in self.entities:
            self._add_list(entity)
            wordings = {"kind": "{}"}
            for number, unit, *_ in entity.numbers:
                wordings[number] = unit
            facts[entity.plural] = wordings | dict.fromkeys(entity.flags, "{}")
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
        style = {"brand": self.brand, "labels": self.site.labels, "messages": self.site.messages}
        if not self.is_tiles:
            style["facts"] = facts
        return World(name, self.site.machine(meta), self.data, style)

    # --- pages and lists ------------------------------------------------------------------------------------

    def _add_from_home(self, page: str, label: str) -> None:
        """Add a page, and a way to it from the first one: a link, or an entry of a menu that opens by a click
        or under the pointer."""
        self.site.add_page(page, label, "HOME")
        role = f"GO_{page}"
        opens = self.rng.choice(("", "click", "hover"))
        widget = None
        if opens:
            menu = self.site.selector("HOME", f"{opens}-menu")
            entry = self.site.selector("HOME", role)
            widget = {"gui_procedure": [{"op": opens, "selector": menu}, {"op": "click", "selector": entry}]}
        gates = []
        if self.has_cookie:
            gates.append(condition("cookie_accepted", "eq", True))
        self.site.add_action("HOME", role, label, widget, to=page, gates=gates)

    def _add_list(self, entity: Any) -> None:
        """Add the page that lists a kind of thing, and the one that shows one of them."""
        many = entity.plural
        list_page = "HOME"
        bind = {"param": entity.name, "collection": many}
        notes = []
        ways = {}
        if not self.is_tiles:
            list_page = many.upper()
            self._add_from_home(list_page, many.capitalize())
            ways = self._add_ways(entity, list_page, bind, notes)
        # Opening a row notes which it is, and how the ways to find it were set.
        notes.append(self.site.note(many, "item", value_ref=f"{{{entity.name}}}"))
        item = f"selected_{entity.name}_id"
        item_page = entity.name.upper()
        self._add_input(list_page, "row", "OPEN", many, item, bind, to=item_page, effects=notes)
        self.site.add_page(item_page, entity.name.capitalize(), list_page, {item: "string|null"})
        self.lists.append({"id": many, "one": entity.name, "page": list_page, "ways": ways})

    def _add_ways(self, entity: Any, page: str, bind: Json, notes: list[Json]) -> Json:
        """Add two to four ways to find a thing on a list, to its `bind` and to what is noted as well. Return
        the names of their fields, and what can be put in."""
        many = entity.plural
        flag = self.rng.choice(entity.flags)
        numbers = [name for name, *_ in entity.numbers]
        least, order = self.rng.choices(numbers, k=2)
        # Each step of the slider leaves another number of rows, at least one.
        steps = sorted({record[least] for record in self.data[many]})[1:]
        # By ways: the page's field, what `_add_input` is given, and how which field of records is filtered
        inputs = {
            "search": ("query", "search", f"Search {many}", dict(bind), "id", "eq"),
            "checkbox": (f"only_{flag}", "checkbox", f"Only {flag}", (True,), flag, "flag"),
            "slider": (f"least_{least}", "slider", f"{least.capitalize()} at least", steps, least, "gte"),
            "sort": ("order", "choice", f"Order by {order}", (f"{order}:asc", f"{order}:desc"), "", ""),
        }
        count = self.rng.randint(2, len(inputs))
        ways = {}
        bind["where"] = {}
        for way in self.rng.sample(list(inputs), count):
            name, kind, label, offered, filtered, cond = inputs[way]
            field = f"{many}_{name}"
            self._add_input(page, kind, name, label, field, offered)
            type = self.site.fields(page)[field]
            notes.append(self.site.note(many, name, type, value_from=f"$.{field}"))
            ways[way] = {"name": name, "offered": offered}
            if filtered:
                bind["where"][filtered] = {"cond": cond, "value": f"$.{field}"}
            else:
                bind["order"] = f"$.{field}"
        return ways

    # --- flows ----------------------------------------------------------------------------------------------

    def _add_item_flows(self) -> None:
        """Add what can be done with an item: the theme's own verb, and others."""
        entity_verbs = [entity.verb for entity in self.entities]
        verbs = [verb for verb in VOCABULARY["verbs"] if verb not in entity_verbs]
        self.rng.shuffle(verbs)
        for n in range(self.level.flows):
            entity = self.entities[n % len(self.entities)]
            verb = entity.verb
            done = entity.done
            if n >= len(self.entities):
                verb = verbs.pop()
                done = f"{verb.capitalize()}: done."
            id = f"{verb}_{entity.name}".replace(" ", "_")
            item = f"selected_{entity.name}_id"
            asks = self._draw_asks(verb)
            self._add_flow(id, verb, asks, entity.name.upper(), item, entity.plural, done=done)

    def _draw_asks(self, verb: str) -> dict[str, Sequence[Any]]:
        """Return what the form of a verb asks for, by its names in themes.toml or shop.toml, and what it
        offers."""
        count = self.rng.randint(*self.level.inputs)
        if not self.is_tiles:
            return {name: _offered(name) for name in self.rng.sample(VOCABULARY["asks"][verb], count)}
        asks = {}
        fields = self.rng.sample(ORDER_FIELDS, count)
        for field in sorted(fields, key=ORDER_FIELDS.index):  # as an order names them
            records = records_of(field, 5, self.rng)
            self.data[f"{field}_{len(self.flows)}"] = records
            asks[field] = [record["id"] for record in records]
        return asks

    def _add_extra(self, extra: Fields) -> None:
        """Add a page and its flows, as one of the tables `extras` of themes.toml says."""
        entity = self.entities[0]
        # What stands in the table in place of the theme's own words
        names = {
            "PAGE": entity.name.upper(),
            "ITEM": f"selected_{entity.name}_id",
            "LIST": entity.plural,
            "FLOW": self.flows[0]["id"],
        }
        self._add_from_home(extra["page"], extra["label"])
        for flow in extra["flows"]:
            asks = {name: _offered(name) for name in flow["asks"]}
            texts = {key: text.format(**names) for key, text in flow.items() if key != "asks"}
            self._add_flow(asks=asks, **texts)

    def _add_flow(
        self,
        id: str,
        verb: str,
        asks: Mapping[str, Sequence[Any]],
        start: str,
        item: str,
        collection: str = "",
        end: str = "",
        done: str = "",
    ) -> None:
        """Add what leads from the page `start` to the page `end`, or to one that says what is `done`: inputs,
        there or on a page of their own, and an action that notes what was given, and for which item. `item`
        is the field that knows it, `collection` the list from which it is opened, "" if it is not."""
        number = len(self.flows)
        role = id.upper()
        label = verb.capitalize()
        if done:
            end = f"{role}_DONE"
            self.site.add_page(end, "Done", "" if self.is_tiles else "HOME")
            self.site.messages[end] = done
        gates = [condition(item, "length_gt", 0)]
        page = start
        if len(asks) > 1:
            page = f"{role}_FORM"
            # An item's own page has the item, so nothing need be waited for.
            fields = {item: "string|null"} if collection else {}
            start_gates = [] if collection else gates
            self.site.add_page(page, label, start, fields)
            start_label = self.buttons.get("next", label)
            self.site.add_action(start, f"START_{role}", start_label, to=page, gates=start_gates)
        # All that is asked must be given, and is noted.
        notes = []
        for name, offered in asks.items():
            field = f"{name}_{number}"
            kind = "row"
            if self.is_tiles:
                offered = {"param": name, "collection": field}
            else:
                kind = self.rng.choice(VOCABULARY["faces"].get(name, ["field"]))
            gates.append(self._add_input(page, kind, field, name, field, offered))
            type = self.site.fields(page)[field]
            notes.append(self.site.note(id, name, type, value_from=f"$.{field}"))
        notes.append(self.site.note(id, "item", value_from=f"$.{item}"))
        finish_label = self.buttons.get("order", label)
        self.site.add_action(page, f"FINISH_{role}", finish_label, to=end, gates=gates, effects=notes)
        after = item.split(".")[1:2]  # of done.cart.item: only what is in the cart can be ordered
        self.flows.append({"id": id, "verb": verb, "list": collection, "asks": dict(asks), "after": after})

    # --- inputs ---------------------------------------------------------------------------------------------

    def _add_input(
        self, page: str, kind: str, role: str, name: str, field: str, offered: Offered, **more: Any
    ) -> Json:
        """Add a field to a page, and the action that fills it in; `more` are arguments of `action`. Return
        the condition that this is done."""
        self.site.fields(page)[field] = FIELD_TYPES.get(kind, "string|null")
        selector = self.site.selector(page, role)
        if kind == "row":
            selector = f"#{offered['collection']} .row"  # pyright: ignore
        widget = control(kind, selector, field, offered)
        label = name.replace("_", " ").capitalize()
        self.site.add_action(page, role.upper(), label, widget, **more)
        if kind == "checkbox":
            return condition(field, "eq", True)
        return condition(field, "length_gt", 0)


def _offered(name: str) -> list[Any]:
    """Return the values that an input may be given in a task."""
    return DAYS if name == "date" else VOCABULARY["words"][name]
