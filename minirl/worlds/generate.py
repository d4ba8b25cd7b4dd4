"""Sites from a theme and a seed: pages and flows put together from fragments, in the theme's words.

`make_site` returns a World in which `lint` finds no fault, which `search` solves, `render` draws and `replay`
verifies. How an item is found (search, scrolling, filters), what is then done with it (by a form, with a
review, a date, a quantity ...), how pages are reached, names, records and looks: all is drawn from the seed.

Paper: AutoWebWorld, section 4.1, appendices A.1 and C, with the released code's profiles of difficulty.
Deviation: there, a language model proposes a machine for the name of a real site, and others repair it. Here
fragments share field names along a flow, so that a selected item is carried along by construction, and a plan
is drawn again if its paths do not have the profile's length.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from random import Random
from types import SimpleNamespace
from typing import Any

from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.looks import draw_looks, draw_words, tell
from minirl.worlds.render import SHAPES
from minirl.worlds.search import explore, symbolic
from minirl.worlds.widgets import Json, Offered, action, condition, control, effect

DAYS = [f"2026-{month:02}-{day:02}" for month in (5, 6, 7) for day in range(1, 29)]
VOCABULARY = tomllib.loads(files("minirl.worlds").joinpath("themes.toml").read_text(encoding="utf-8"))


def _records(table: str) -> Any:
    return json.loads(json.dumps(VOCABULARY[table]), object_hook=lambda fields: SimpleNamespace(**fields))


THEMES, PROFILES = {theme.name: theme for theme in _records("themes")}, vars(_records("profiles"))


def make_site(theme: str, seed: int, difficulty: str = "medium", skin: str = "") -> World:
    """Return the site `<theme>-<difficulty>-<seed>`: the same arguments give the same site. Another `skin` than
    the one that the seed draws changes the looks alone."""
    if theme not in THEMES:
        raise ValueError(f"there is no theme {theme!r}; there are: {', '.join(THEMES)}")
    profile = PROFILES[difficulty]
    for draw in range(200):
        plan = Plan(THEMES[theme], profile, Random(f"{theme} {difficulty} {seed} {draw}"), skin)
        world = plan.world(f"{theme}-{difficulty}-{seed}")
        graph = explore(symbolic(world.fsm), plain=False)
        hops = [graph.hops(page) or 0 for page in world.fsm.terminal_pages]
        is_sized = profile.pages[0] <= len(world.fsm.pages) <= profile.pages[1]
        if is_sized and all(profile.hops[0] <= count <= profile.hops[1] for count in hops):
            return world
    raise AssertionError(f"no plan fits {difficulty}")


class Plan:
    """One draw: pages and actions in the form of an fsm.json, and the words that go with them."""

    def __init__(self, theme: Any, profile: Any, rng: Random, skin: str = ""):
        self.theme, self.profile, self.rng, self.skin = theme, profile, rng, skin
        self.pages: dict[str, Json] = {}
        self.labels: dict[str, str] = {}  # of pages and actions
        self.messages: dict[str, str] = {}  # of terminal pages
        self.brand = rng.choice(theme.brands)
        self.data = {entity.plural: _things(entity, theme.category, rng) for entity in theme.entities}
        self.has_cookie = rng.random() < 0.7
        self.id_style = rng.choice(VOCABULARY["id_styles"])
        self.entities = theme.entities if profile.terminals > 3 else theme.entities[:1]

    def world(self, name: str) -> World:
        """Return the site with its records, words and looks; to be called once."""
        fsm, facts = load_fsm(self.fsm()), {}  # facts of a record in a row, and how they are said
        data = {entity.plural: self.data[entity.plural] for entity in self.entities}
        for entity in self.entities:
            numbers = {number.name: f"{number.name} {number.unit}" for number in entity.numbers}
            facts[entity.plural] = {"kind": "{}", **numbers, **dict.fromkeys(entity.flags, "{}")}
        words = {"brand": self.brand, "labels": self.labels, "messages": self.messages, "facts": facts}
        looks = draw_looks(Random(f"looks {name}"), self.skin)
        words["words"] = draw_words(Random(f"words {name}"), self.theme.category)
        return World(name, fsm, data, looks | words | {"look": "pages"})

    def fsm(self) -> Json:
        self._page("HOME", self.brand)
        if self.has_cookie:
            self.pages["HOME"]["signature_schema"]["cookie_accepted"] = "boolean|null"
            banner, unanswered = control("button", "#cookie-accept"), condition("cookie_accepted", "eq", None)
            answer = effect("set", "cookie_accepted", value=True)
            self._action("HOME", "ACCEPT", "Accept cookies", banner, gates=[unanswered], effects=[answer])
        for entity in self.entities:
            self._list(entity)
            one, many = entity.name, entity.plural.upper()
            self._page(one.upper(), one.capitalize(), many, _selected(entity))
        for n in range(self.profile.terminals):
            length = self.rng.randint(*self.profile.hops) - self.has_cookie
            if n < self.profile.terminals - 1:
                self._flow(self.entities[n % len(self.entities)], n, length - 3)
            else:
                self._settings(length - 1)
        self._fill()
        meta = {"app": self.brand, "initial_page_id": "HOME", "terminal_pages": list(self.messages)}
        return {"meta": meta, "pages": list(self.pages.values())}

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

    def _input(
        self, page: str, kind: str, role: str, label: str, field: str, offered: Offered = (), **more: Any
    ) -> Json:
        """Add a field to a page, and the action that fills it in. Return the condition that this is done."""
        types = {"checkbox": "boolean", "slider": "number|null"}
        self.pages[page]["signature_schema"][field] = types.get(kind, "string|null")
        ending = f"-{kind}" if kind in types else ""  # by which `widget_of` knows them
        selector = self._selector(page, more.pop("element", role)) + ending
        self._action(page, role, label, control(kind, selector, field, offered), **more)
        return condition(field, "eq", True) if kind == "checkbox" else condition(field, "length_gt", 0)

    def _selector(self, page: str, role: str) -> str:
        page, role = (name.lower().replace("_", "-") for name in (page, role))
        return "#" + self.id_style.format(page=page, role=role)

    def _from_home(self, to: str, label: str) -> None:
        """Add a way from the first page: a link, or an entry of a menu that opens on a click or under the
        pointer."""
        gates = [condition("cookie_accepted", "eq", True)] if self.has_cookie else []
        role, way, widget = f"GO_{to}", self.rng.choice(("direct", "menu", "hover")), None
        if way != "direct":
            opener, item = self._selector("HOME", f"{way}-opener"), self._selector("HOME", role)
            options = {"container": opener, "options": [{"value": label, "selector": item}]}
            op, name = ("hover", "hover_menu") if way == "hover" else ("click", "dropdown")
            choosing = {"op": "click", "selector": item, "ui_elements": options}
            widget = {"name": "select", "parameters": {"widget": name}}
            widget["gui_procedure"] = [{"op": op, "selector": opener}, choosing]
        self._action("HOME", role, label, widget, to=to, gates=gates)

    def _list(self, entity: Any) -> None:
        """Add the page that lists a kind of thing, with one to three ways to find one of them."""
        page, one, many = entity.plural.upper(), entity.name, entity.plural
        self._page(page, many.capitalize(), "HOME", _selected(entity))
        self._from_home(page, many.capitalize())
        ways = self.rng.sample(("search", "scroll", "filter"), self.rng.randint(1, 3))
        rows: Json = {"param": one, "collection": many, "where": {}}
        schema = self.pages[page]["signature_schema"]
        applied, searched = f"{many}_filters_applied", f"{many}_has_searched"
        matched, anchor = f"matched_{one}_id", f"{many}_viewport_anchor_id"
        if "filter" in ways:
            schema[applied] = "boolean|null"
            self._filters(entity, page, rows, [effect("set", applied, value=True)])
        if "search" in ways:
            rows["where"]["id"] = {"cond": "eq", "value": f"$.{matched}"}
            everything, done = {"param": one, "collection": many}, [effect("set", searched, value=True)]
            found = self._input(page, "search", "SEARCH", f"Search {many}", matched, everything, effects=done)
            schema[searched] = "boolean|null"
            self._open(entity, rows, "MATCHED", [found, condition(searched, "eq", True)], [searched, matched])
        if "scroll" in ways:
            seen = self._input(page, "scroll", "SCROLL", f"Scroll {many}", anchor, rows, element="LIST")
            self._open(entity, rows, "VISIBLE", [seen], [anchor])
        if "filter" in ways:
            self._open(entity, rows, "FILTERED", [condition(applied, "eq", True)], [applied])

    def _open(self, entity: Any, rows: Json, found: str, gates: list[Json], cleared: list[str]) -> None:
        """Add the rows that open an item that was `found` in this way, and forget how."""
        page, one = entity.plural.upper(), entity.name
        selector = f"{self._selector(page, 'LIST')} .{one}-row-{found.lower()}"
        row = control("row", selector, f"selected_{one}_id", rows)
        more: Json = {"to": one.upper(), "gates": gates, "effects": [effect("clear", f) for f in cleared]}
        self._action(page, f"OPEN_{found}", one.capitalize(), row, **more)

    def _filters(self, entity: Any, page: str, rows: Json, done: list[Json]) -> None:
        """Add two to four of: a flag's box, a number's slider, an order, a kind; each effects `done`."""
        many, where = entity.plural, rows["where"]
        drawn = self.rng.sample(("flag", "number", "order", "kind"), self.rng.randint(2, 4))
        if "flag" in drawn:
            flag = self.rng.choice(entity.flags)
            role, name = f"FILTER_{flag.upper()}", f"only_{flag}"
            where[flag] = {"cond": "flag", "value": f"$.{name}"}
            self._input(page, "checkbox", role, f"Only {flag}", name, element=flag, effects=done)
        if "number" in drawn:
            number = self.rng.choice(entity.numbers).name
            role, name = f"FILTER_{number.upper()}", f"least_{number}"
            where[number] = {"cond": "gte", "value": f"$.{name}"}
            label, values = f"{number.capitalize()} at least", sorted(one[number] for one in self.data[many])
            self._input(page, "slider", role, label, name, values[:-1], element=number, effects=done)
        if "order" in drawn:
            number, rows["order"] = self.rng.choice(entity.numbers).name, f"$.{many}_order"
            orders = (f"{number}:asc", f"{number}:desc")
            self._input(page, "choice", "SORT", f"Order by {number}", f"{many}_order", orders, effects=done)
        if "kind" in drawn:
            where["kind"] = {"cond": "eq", "value": f"$.{many}_kind"}
            self._input(page, "choice", "KIND", "Kind", f"{many}_kind", entity.kinds, effects=done)

    def _flow(self, entity: Any, n: int, length: int) -> None:
        """Add `length` actions from an item's page to a terminal page: the last one goes there, those before
        fill in what it waits for."""
        start, carried, steps = entity.name.upper(), _selected(entity), length - 1
        flow, here, gates = f"{start}_{n}", start, [condition(name, "length_gt", 0) for name in carried]
        is_first = n < len(self.theme.entities)  # of its kind of item, whose own verb it takes
        verb = entity.verb if is_first else self.rng.choice(VOCABULARY["verbs"])
        if steps >= 2 and self.rng.random() < 0.8:  # on a separate page, which costs a step
            here, steps = f"{flow}_FORM", steps - 1
            self._page(here, f"{verb} {entity.name}".capitalize(), start, carried)
            self._action(start, f"START_{n}", verb.capitalize(), to=here)
        review = steps >= 2 and self.rng.random() < 0.5
        gates += self._inputs(here, n, steps - review)
        message = entity.done if is_first else f"{verb.capitalize()}: done."
        done = self._end(f"{flow}_DONE", "Done", message, carried)
        if not review:
            self._action(here, f"FINISH_{n}", verb.capitalize(), to=done, gates=gates)
            return
        page, names = f"{flow}_REVIEW", [gate["path"].removeprefix("$.") for gate in gates]
        schema = self.pages[here]["signature_schema"]
        self._page(page, "Review", here, {name: schema[name] for name in names})
        self._action(here, f"REVIEW_{n}", "Review", to=page, gates=gates)
        self._action(page, "CONFIRM", "Confirm", to=done, gates=gates[:1])

    def _end(self, page: str, label: str, message: str, carried: Mapping[str, str] | None = None) -> str:
        """Add a terminal page, and return its id."""
        self._page(page, label, schema=carried)
        self.messages[page] = message
        self._action(page, "HOME", "Home", to="HOME")
        return page

    def _inputs(self, page: str, n: int, steps: int) -> list[Json]:
        """Add `steps` things to do on a page before it can be left: fields, a date, a choice, a number of
        pieces, a box to tick. Return the conditions that they fulfil."""
        others: dict[str, tuple[Any, ...]] = {  # arguments of `_input`
            "date": ("date", f"DATE_{n}", "Date", f"date_{n}", DAYS),
            "choice": ("choice", f"OPTION_{n}", "Option", f"option_{n}", VOCABULARY["options"]),
            "tick": ("checkbox", f"AGREE_{n}", "I agree to the terms", f"agreed_{n}"),
        }
        kinds, gates = ["field", "field", "field", *others, "count"], []
        names = self.rng.sample(self.theme.fields, len(self.theme.fields))
        while steps > 0:
            kind, wanted = kinds.pop(self.rng.randrange(len(kinds))), 1
            if kind == "count":
                wanted, pieces = self.rng.randint(1, min(2, steps)), f"pieces_{n}"
                self.pages[page]["signature_schema"][pieces] = "integer"
                few, more = condition(pieces, "lt", 5), effect("inc", pieces, by=1)
                self._action(page, f"MORE_{n}", "One more", gates=[few], effects=[more])
                gates.append(condition(pieces, "gte", wanted))
            elif kind != "field":
                gates.append(self._input(page, *others[kind]))
            elif names:
                name = names.pop()
                role, field, texts = f"TYPE_{name.upper()}_{n}", f"{name}_{n}", VOCABULARY["words"][name]
                gates.append(self._input(page, "field", role, name.capitalize(), field, texts, element=field))
            else:
                continue
            steps -= wanted
        return gates

    def _settings(self, length: int) -> None:
        """Add the page of switches: all but the last of `length` actions turn one each."""
        page, gates = "SETTINGS", []
        self._page(page, "Settings", "HOME")
        self._from_home(page, "Settings")
        for setting in self.theme.settings[: length - 1]:
            name = setting.replace(" ", "_")
            gates.append(self._input(page, "checkbox", name.upper(), setting.capitalize(), name))
        gates += self._inputs(page, 9, length - 1 - len(gates))
        saved = self._end("SETTINGS_SAVED", "Saved", "Your settings are saved.")
        self._action(page, "SAVE", "Save", to=saved, gates=gates)

    def _fill(self) -> None:
        """Add pages that no task needs, as sites have them, until there are enough."""
        wanted = self.rng.randint(*self.profile.pages)
        more = [(entity, topic) for entity in self.entities for topic in VOCABULARY["pages_of_items"]]
        more += [(None, topic) for topic in VOCABULARY["pages_of_sites"]]
        self.rng.shuffle(more)
        for entity, topic in more[: max(0, wanted - len(self.pages))]:
            role, label, item = topic.upper(), topic.capitalize(), entity.name.upper() if entity else ""
            if entity:
                self._page(f"{item}_{role}", label, item, _selected(entity))
                self._action(item, f"SHOW_{role}", label, to=f"{item}_{role}")
            else:
                self._page(role, label, "HOME")
                self._from_home(role, label)


def _selected(entity: Any) -> dict[str, str]:
    """Return the field that says which item a page is about."""
    return {f"selected_{entity.name}_id": "string|null"}


def _things(entity: Any, category: str, rng: Random) -> tuple[Json, ...]:
    """Return 12 to 24 things, with unique titles and pictures."""
    titles = [f"{adjective} {noun}" for adjective in entity.adjectives for noun in entity.nouns]
    fills = VOCABULARY["fills"]
    pictures = list(itertools.product(SHAPES, fills))
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
    for i, (title, (shape, colour)) in enumerate(zip(titles, pictures, strict=True)):
        record: Json = {"id": f"{entity.name}-{i + 1}", "title": title, "shape": shape, "fill": fills[colour]}
        record |= {name: column[i] for name, column in columns.items()}
        record |= {"colour": colour, "kind": entity.kinds[i % len(entity.kinds)]}
        out.append(record | tell(record, category, Random(f"{title} {i}")))
    rng.shuffle(out)
    return tuple(out)
