"""A drawn site's pages and flows: the fragments of which every site is put together, in a theme's words.

Where it stands: `generate` draws a Plan, takes its `fsm()` and asks the search whether it has the wanted
size. Whether an item is found by search, scrolling or filters, what is then done with it (at once, by a form,
with a review, a date, a quantity ...), how pages are reached and what stands in the way: all of it is drawn.

Paper: AutoWebWorld, appendix A.1. Deviation: a language model proposes the machine there. Here fragments
share field names along a flow, so that what is selected is carried along by construction.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minirl.worlds.themes import WORDS, Entity, Theme

Json = dict[str, Any]

VERBS = ("recommend", "report", "rate", "save")  # what can be done with anything
OF_ITEMS = ("reviews", "pictures", "similar", "history", "facts")
OF_SITES = ("help", "about", "terms", "press", "jobs", "contact", "privacy", "partners")


@dataclass(frozen=True)
class Profile:
    """What makes a site easy or hard: numbers of pages, of terminal pages, and of actions to those."""

    pages: tuple[int, int]
    terminals: int
    hops: tuple[int, int]


def _set(path: str, value: Any) -> Json:
    return {"op": "set", "path": f"$.{path}", "value": value}


def _keep(path: str, parameter: str) -> Json:
    return {"op": "set", "path": f"$.{path}", "value_ref": f"{{{parameter}}}"}


def _more(path: str) -> Json:
    return {"op": "inc", "path": f"$.{path}", "by": 1}


def _clear(path: str) -> Json:
    return {"op": "clear", "path": f"$.{path}"}


def _is(path: str, value: Any) -> Json:
    return {"path": f"$.{path}", "cond": "eq", "value": value}


def _given(path: str) -> Json:
    return {"path": f"$.{path}", "cond": "length_gt", "value": 0}


def _click(selector: str) -> Json:
    return {"op": "click", "selector": selector}


@dataclass
class Plan:
    """One draw: pages and actions in the form of an fsm.json, and the words that go with them."""

    theme: Theme
    profile: Profile
    brand: str
    data: Mapping[str, tuple[Json, ...]]
    rng: random.Random
    pages: dict[str, Json] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)  # of pages and actions
    messages: dict[str, str] = field(default_factory=dict)  # of terminal pages

    def __post_init__(self) -> None:
        self.has_cookie = self.rng.random() < 0.7
        self.id_style = self.rng.choice(
            ("{page}-{role}", "{role}-{page}", "btn-{page}-{role}", "x-{page}_{role}")
        )

    def fsm(self) -> Json:
        """All of it, as an fsm.json."""
        self._home()
        for entity in self.entities:
            self._list(entity)
            self._detail(entity)
        self._flows()
        self._fill()
        meta = {"app": self.brand, "initial_page_id": "HOME", "terminal_pages": list(self.messages)}
        return {"meta": meta, "pages": list(self.pages.values())}

    @property
    def entities(self) -> Sequence[Entity]:
        """What the site is about; a small site has one kind of thing only."""
        return self.theme.entities if self.profile.terminals > 3 else self.theme.entities[:1]

    # --- pages and actions ----------------------------------------------------------------------------

    def page(self, id: str, label: str, back: str = "", **schema: str) -> None:
        self.pages[id] = {"id": id, "signature_schema": schema, "actions": []}
        self.labels[id] = label
        if back:
            self.action(id, "BACK", "Back", to=back)

    def action(
        self,
        page: str,
        role: str,
        label: str,
        to: str = "",
        gates: Sequence[Json] = (),
        effects: Sequence[Json] = (),
        gui: Sequence[Json] = (),
        name: str = "click",
        parameters: Mapping[str, Any] | None = None,
        bind: Json | None = None,
    ) -> None:
        id = f"{page}_{role}"
        self.labels[id] = label
        action = {
            "id": id,
            "name": name,
            "from": page,
            "to": to or page,
            "is_navigation": bool(to),
            "parameters": dict(parameters or {}),
            "preconditions": list(gates),
            "effects": list(effects),
            "gui_procedure": list(gui) or [_click("#" + self.selector(page, role))],
        }
        self.pages[page]["actions"].append(action | ({"bind": bind} if bind else {}))

    def selector(self, page: str, role: str) -> str:
        return self.id_style.format(page=page.lower().replace("_", "-"), role=role.lower().replace("_", "-"))

    def _home(self) -> None:
        self.page("HOME", self.brand, **({"cookie_accepted": "boolean|null"} if self.has_cookie else {}))
        if self.has_cookie:
            gui = [_click("#cookie-accept")]
            asked = [_is("cookie_accepted", None)]
            self.action(
                "HOME",
                "ACCEPT",
                "Accept cookies",
                gates=asked,
                effects=[_set("cookie_accepted", True)],
                gui=gui,
            )

    def _from_home(self, to: str, label: str) -> None:
        """A way from the first page: a link, or an entry of a menu that opens on a click or under the
        pointer."""
        gates = [_is("cookie_accepted", True)] if self.has_cookie else []
        role, way = f"GO_{to}", self.rng.choice(("direct", "menu", "hover"))
        item, menu = self.selector("HOME", role), self.selector("HOME", f"{way}-opener")
        options = {"container": f"#{menu}", "options": [{"value": label, "selector": f"#{item}"}]}
        if way == "direct":
            gui, name, parameters = [_click(f"#{item}")], "click", {}
        else:
            first = _click(f"#{menu}") if way == "menu" else {"op": "hover", "selector": f"#{menu}"}
            gui = [first, _click(f"#{item}") | {"ui_elements": options}]
            name, parameters = "select", {"widget": "hover_menu" if way == "hover" else "dropdown"}
        self.action("HOME", role, label, to=to, gates=gates, gui=gui, name=name, parameters=parameters)

    # --- lists ----------------------------------------------------------------------------------------

    def _list(self, entity: Entity) -> None:
        page, one, many = entity.plural.upper(), entity.name, entity.plural
        self.page(page, many.capitalize(), back="HOME")
        self._from_home(page, many.capitalize())
        schema = self.pages[page]["signature_schema"]
        schema[f"selected_{one}_id"] = "string|null"
        ways = self.rng.sample(("search", "scroll", "filter"), self.rng.randint(1, 3))
        rows: Json = {"collection": many, "where": {}}
        if "filter" in ways:
            self._filters(entity, page, schema, rows)
        if "search" in ways:
            schema |= {f"matched_{one}_id": "string|null", f"{many}_has_searched": "boolean|null"}
            rows["where"]["id"] = {"cond": "eq", "value": f"$.matched_{one}_id"}
            box = "#" + self.selector(page, "SEARCH")
            typing = {"op": "type_text", "selector": box, "text": "{search_query}"}
            self.action(
                page,
                "SEARCH",
                f"Search {many}",
                name="search",
                parameters={one: "{ITEM_ANY}"},
                bind={one: {"collection": many}},
                effects=[_keep(f"matched_{one}_id", one), _set(f"{many}_has_searched", True)],
                gui=[_click(box), typing, {"op": "key_press", "key": "Enter"}],
            )
            gates = [_given(f"matched_{one}_id"), _is(f"{many}_has_searched", True)]
            cleared = [_clear(f"{many}_has_searched"), _clear(f"matched_{one}_id")]
            self._open(entity, page, "MATCHED", gates, cleared, rows)
        if "scroll" in ways:
            schema[f"{many}_viewport_anchor_id"] = "string|null"
            area = "#" + self.selector(page, "LIST")
            self.action(
                page,
                "SCROLL",
                f"Scroll {many}",
                parameters={one: "{ITEM_ANY}"},
                bind={one: rows},
                effects=[_keep(f"{many}_viewport_anchor_id", one)],
                gui=[_click(area), {"op": "drag", "selector": area, "to_value": "down"}],
            )
            cleared = [_clear(f"{many}_viewport_anchor_id")]
            self._open(entity, page, "VISIBLE", [_given(f"{many}_viewport_anchor_id")], cleared, rows)
        if "filter" in ways:
            applied = f"{many}_filters_applied"
            self._open(entity, page, "FILTERED", [_is(applied, True)], [_clear(applied)], rows)

    def _open(
        self, entity: Entity, page: str, how: str, gates: list[Json], effects: list[Json], rows: Json
    ) -> None:
        row = f"#{self.selector(page, 'LIST')} .{entity.name}-row-{how.lower()}"
        self.action(
            page,
            f"OPEN_{how}",
            entity.name.capitalize(),
            to=entity.name.upper(),
            parameters={entity.name: "{ITEM_ANY}"},
            bind={entity.name: rows},
            gates=gates,
            effects=[_keep(f"selected_{entity.name}_id", entity.name), *effects],
            gui=[_click(row)],
        )

    def _filters(self, entity: Entity, page: str, schema: Json, rows: Json) -> None:
        """Two to four of: a flag's box, a number's slider, an order, a kind."""
        many, where = entity.plural, rows["where"]
        applied = f"{many}_filters_applied"
        schema[applied] = "boolean|null"
        shapes = self.rng.sample(("flag", "number", "order", "kind"), self.rng.randint(2, 4))
        if "flag" in shapes:
            flag = self.rng.choice(entity.flags)
            where[flag] = {"cond": "flag", "value": f"$.only_{flag}"}
            role = f"FILTER_{flag.upper()}"
            self._tick(page, role, f"Only {flag}", f"only_{flag}", flag, [_set(applied, True)])
        if "number" in shapes:
            number = self.rng.choice(entity.numbers)
            least = f"least_{number.name}"
            schema[least] = "number|null"
            where[number.name] = {"cond": "gte", "value": f"$.{least}"}
            ordered = sorted(record[number.name] for record in self.data[many])
            slider = f"#{self.selector(page, number.name)}-slider"
            self.action(
                page,
                f"FILTER_{number.name.upper()}",
                f"{number.name.capitalize()} at least",
                name="select",
                parameters={"least": "{NUMBER_ANY}"},
                bind={"least": {"values": ordered[:-1]}},
                effects=[_keep(least, "least"), _set(applied, True)],
                gui=[_click(slider), {"op": "drag", "selector": slider, "to_value": "right"}],
            )
        if "order" in shapes:
            number, order = self.rng.choice(entity.numbers), f"{many}_order"
            rows["order"] = f"$.{order}"
            values = [f"{number.name}:asc", f"{number.name}:desc"]
            self._choice(page, "SORT", f"Order by {number.name}", order, values, [_set(applied, True)])
        if "kind" in shapes:
            kind = f"{many}_kind"
            where["kind"] = {"cond": "eq", "value": f"$.{kind}"}
            self._choice(page, "KIND", "Kind", kind, list(entity.kinds), [_set(applied, True)])

    # --- items and what is done with them ---------------------------------------------------------------

    def _detail(self, entity: Entity) -> None:
        page = entity.name.upper()
        self.page(page, entity.name.capitalize(), entity.plural.upper(), **self._carried(entity))

    def _carried(self, entity: Entity) -> dict[str, str]:
        return {f"selected_{entity.name}_id": "string|null"}

    def _flows(self) -> None:
        """As many as there are terminal pages, each as long as the profile wants."""
        first = 1 if self.has_cookie else 0
        for n in range(self.profile.terminals):
            hops = self.rng.randint(*self.profile.hops)
            if n == self.profile.terminals - 1:
                self._settings(hops - first - 1)
            else:
                self._flow(self.entities[n % len(self.entities)], n, hops - first - 3)

    def _flow(self, entity: Entity, n: int, actions: int) -> None:
        """`actions` actions from an item's page to its own terminal page: the last one goes there, those
        before fill in what it waits for."""
        start, carried = entity.name.upper(), self._carried(entity)
        flow, here, gates = f"{start}_{n}", start, [_given(f"selected_{entity.name}_id")]
        steps = actions - 1
        is_first = n < len(self.theme.entities)  # of its kind of item, whose own verb it takes
        verb = entity.verb if is_first else self.rng.choice(VERBS)
        if steps >= 2 and self.rng.random() < 0.8:  # on a page of its own, which costs a step
            here, steps = f"{flow}_FORM", steps - 1
            self.page(here, f"{verb} {entity.name}".capitalize(), start, **carried)
            self.action(start, f"START_{n}", verb.capitalize(), to=here)
        review = steps >= 2 and self.rng.random() < 0.5
        steps -= review
        gates += self._wants(here, n, steps)
        done = f"{flow}_DONE"
        self.messages[done] = entity.done if is_first else f"{verb.capitalize()}: done."
        self.page(done, "Done", **carried)
        self.action(done, "HOME", "Home", to="HOME")
        if review:
            page = f"{flow}_REVIEW"
            filled = {g["path"][2:]: self.pages[here]["signature_schema"][g["path"][2:]] for g in gates}
            self.page(page, "Review", here, **filled)
            self.action(here, f"REVIEW_{n}", "Review", to=page, gates=gates)
            self.action(page, "CONFIRM", "Confirm", to=done, gates=gates[:1])
        else:
            self.action(here, f"FINISH_{n}", verb.capitalize(), to=done, gates=gates)

    def _wants(self, page: str, n: int, steps: int) -> list[Json]:
        """`steps` things to do on a page before it can be left: fields, a date, a choice, a number of
        pieces, a box to tick. Returns the gates that they open."""
        gates = []
        kinds = ["field"] * 3 + ["date", "choice", "tick", "count"]
        names = list(self.rng.sample(self.theme.fields, len(self.theme.fields)))
        while steps > 0:
            kind, done = kinds.pop(self.rng.randrange(len(kinds))), 1
            if kind == "field" and names:
                gates.append(self._field(page, n, names.pop()))
            elif kind == "date":
                gates.append(self._date(page, n))
            elif kind == "choice":
                values = ["basic", "plus", "premium", "family"]
                gates.append(self._choice(page, f"OPTION_{n}", "Option", f"option_{n}", values))
            elif kind == "tick":
                label = "I agree to the terms"
                gates.append(self._tick(page, f"AGREE_{n}", label, f"agreed_{n}", f"agree-{n}"))
            elif kind == "count":
                done = self.rng.randint(1, min(2, steps))
                gates.append(self._count(page, n, done))
            else:
                done = 0
            steps -= done
        return gates

    def _field(self, page: str, n: int, name: str) -> Json:
        path, box = f"{name}_{n}", "#" + self.selector(page, f"{name}-{n}")
        self._declare(page, path, "string|null")
        self.action(
            page,
            f"TYPE_{name.upper()}_{n}",
            name.capitalize(),
            name="type",
            parameters={"input_text": "{TEXT_ANY}"},
            bind={"input_text": {"values": list(WORDS[name])}},
            effects=[_keep(path, "input_text")],
            gui=[_click(box), {"op": "type_text", "selector": box, "text": "{input_text}"}],
        )
        return _given(path)

    def _date(self, page: str, n: int) -> Json:
        path, box = f"date_{n}", "#" + self.selector(page, f"date-{n}")
        self._declare(page, path, "string|null")
        days = [f"2026-{month:02}-{day:02}" for month in (5, 6, 7) for day in range(1, 29)]
        self.action(
            page,
            f"DATE_{n}",
            "Date",
            name="select",
            parameters={"date": "{DATE_ANY}", "widget": "date_picker"},
            bind={"date": {"values": days}},
            effects=[_keep(path, "date")],
            gui=[_click(box), _click(f"{box} .month"), _click(f"{box} .day")],
        )
        return _given(path)

    def _choice(
        self, page: str, role: str, label: str, path: str, values: list[str], effects: Sequence[Json] = ()
    ) -> Json:
        """A list that opens on a click, of which one is chosen."""
        opener = self.selector(page, role)
        self._declare(page, path, "string|null")
        self.action(
            page,
            role,
            label,
            name="select",
            parameters={"choice": "{OPTION_ANY}"},
            bind={"choice": {"values": values}},
            effects=[_keep(path, "choice"), *effects],
            gui=[_click(f"#{opener}"), _click(f"#{opener} .option")],
        )
        return _given(path)

    def _tick(
        self, page: str, role: str, label: str, path: str, box: str, effects: Sequence[Json] = ()
    ) -> Json:
        self._declare(page, path, "boolean")
        toggled = [{"op": "toggle", "path": f"$.{path}"}, *effects]
        gui = [_click(f"#{self.selector(page, box)}-checkbox")]
        self.action(page, role, label, effects=toggled, gui=gui)
        return _is(path, True)

    def _count(self, page: str, n: int, wanted: int) -> Json:
        path = f"pieces_{n}"
        self._declare(page, path, "integer")
        few = [{"path": f"$.{path}", "cond": "lt", "value": 5}]
        self.action(page, f"MORE_{n}", "One more", gates=few, effects=[_more(path)])
        return {"path": f"$.{path}", "cond": "gte", "value": wanted}

    def _declare(self, page: str, path: str, kind: str) -> None:
        self.pages[page]["signature_schema"][path] = kind

    def _settings(self, actions: int) -> None:
        """Switches, of which all but the last action turn one each."""
        self.page("SETTINGS", "Settings", back="HOME")
        self._from_home("SETTINGS", "Settings")
        gates = []
        settings = list(self.theme.settings)
        for setting in settings[: actions - 1]:
            name = setting.replace(" ", "_")
            gates.append(self._tick("SETTINGS", name.upper(), setting.capitalize(), name, name))
        gates += self._wants("SETTINGS", 9, actions - 1 - len(gates))
        self.page("SETTINGS_SAVED", "Saved")
        self.messages["SETTINGS_SAVED"] = "Your settings are saved."
        self.action("SETTINGS", "SAVE", "Save", to="SETTINGS_SAVED", gates=gates)
        self.action("SETTINGS_SAVED", "HOME", "Home", to="HOME")

    def _fill(self) -> None:
        """Pages that lead nowhere in particular, as sites have them, until there are enough."""
        least, most = self.profile.pages
        wanted = self.rng.randint(least, most)
        more = [(entity, what) for entity in self.entities for what in OF_ITEMS]
        more += [(None, what) for what in OF_SITES]
        self.rng.shuffle(more)
        for entity, what in more[: max(0, wanted - len(self.pages))]:
            if entity is None:
                self.page(what.upper(), what.capitalize(), back="HOME")
                self._from_home(what.upper(), what.capitalize())
                continue
            page = f"{entity.name.upper()}_{what.upper()}"
            self.page(page, what.capitalize(), back=entity.name.upper(), **self._carried(entity))
            self.action(entity.name.upper(), f"SHOW_{what.upper()}", what.capitalize(), to=page)
