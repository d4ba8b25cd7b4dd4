"""Released site files as sites: what they leave open is guessed from names, and every guess is reported.

Where it stands: `python -m minirl.worlds render` turns an fsm.json, with or without data, into a World.

A released machine says that a filter was applied, not what it filters. Each list gets a collection, each filter a
field of its records, and the machine fields of its own that hold what was filtered, ordered or searched; texts get
words to type. A question in the way, such as a cookie banner, is to be answered before anything else on its page,
as in the released search, so that the ways to the terminal pages are as long as there.

Paper: AutoWebWorld's released code infers the same from names, anew in every stage and without a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from minirl.worlds.fsm_file import Action, Bind, Condition, Effect, Fsm, Page, is_number
from minirl.worlds.interpreter import World
from minirl.worlds.looks import TEXTS, dress
from minirl.worlds.render import SHAPES
from minirl.worlds.search import interceptors
from minirl.worlds.widgets import widget_of, words_in

INVENTED = 14  # records of a collection that no data are given for
STEPS = 8  # of a slider
TITLES = ("title", "name", "content", "body", "label")  # fields that can head a record
FILLS = {"red": "#c94f4f", "blue": "#4a7fc1", "green": "#4f9d69", "orange": "#d98a3d", "purple": "#8a5fb8"}
RANK = "title_rank"  # a record's place in the alphabet
RISING = {"inc", "asc", "oldest", "a", "az", "alpha", "alphabetical", "lowest", "cheapest"}
IN_THE_WAY = {"cookie", "cookies", "consent", "permission", "captcha", "popup", "modal", "gdpr"}
NOISE = set(
    "act action btn button checkbox box click direct dropdown dialog field filter form from go hover id inc desc asc "
    "input item link list menu nav open option page permission row select slider sort submit tab text textarea to toggle type".split()
)


def world_of(name: str, fsm: Fsm, data: Mapping[str, Any]) -> tuple[World, list[str]]:
    """Return the site, and a line for each guess that was made for it."""
    reader = Reader(fsm, {key: _records(key, value) for key, value in data.items()})
    pages = [reader.page(page) for page in fsm.pages.values()]
    style = {"look": "pages", "labels": reader.labels, "facts": {}, "brand": _brand(fsm)}
    for collection, records in reader.records.items():
        shown = {key: "{}" for key, value in records[0].items() if _is_fact(key, value)} if records else {}
        style["facts"][collection] = shown
    world = World(name, replace(fsm, pages=pages), reader.records, style)
    return dress(world, "communication"), reader.guesses


class Reader:
    """What has been made of a machine so far: records, labels, and the guesses in words."""

    def __init__(self, fsm: Fsm, records: dict[str, tuple[dict[str, Any], ...]]):
        self.fsm, self.records = fsm, records
        self.labels = {page: _said([w for w in words_in(page) if w not in NOISE]) or page for page in fsm.pages}
        self.guesses: list[str] = []
        self.asked = interceptors(fsm)

    def page(self, page: Page) -> Page:
        """Return a page whose lists have records, whose filters filter, and whose fields have words."""
        kinds = {action.id: widget_of(action, self.fsm).kind for action in page.actions.values()}
        lists = [one for one in page.actions.values() if kinds[one.id] in ("row", "scroll", "search")]
        lists = [one for one in lists if one.open_parameters]
        filters = [one for one in page.actions.values() if kinds[one.id] in ("checkbox", "slider", "menu")]
        filters = [one for one in filters if not (one.is_navigation or one.open_parameters)]
        schema, where, order, made = dict(page.schema), {}, "", {}
        collection = self._collection(page, lists, filters) if lists else ""
        used = {RANK}
        for action in filters if collection else ():
            kind, steps = kinds[action.id], action.gui_procedure
            field = self._field(action, collection, bool if kind == "checkbox" else float, used)
            if field is None:
                self._guess(action, f"{collection} have nothing that it could change")
                continue
            used |= {field} - {RANK}
            if kind == "menu":
                order, rises = f"{page.id.lower()}_order", RISING & {*words_in(str(steps[-1]["selector"]))}
                schema[order], value = "string|null", f"{field}:{'asc' if rises or field == RANK else 'desc'}"
                effect = Effect(op="set", path=(order,), value=value)
                self._guess(action, f"orders {collection} by {value}")
            elif kind == "checkbox":
                path, effect = f"only_{field}", Effect(op="toggle", path=(f"only_{field}",))
                schema[path], where[field] = "boolean|null", {"cond": "flag", "value": f"$.{path}"}
                self._guess(action, f"shows only {collection} with {field}")
            else:
                is_least = steps[-1].get("to_value") != "left"
                path, cond = f"{'least' if is_least else 'most'}_{field}", "gte" if is_least else "lte"
                schema[path], where[field] = "number|null", {"cond": cond, "value": f"$.{path}"}
                values = sorted({one[field] for one in self.records[collection]})[1:] or [0]
                bind = Bind("number", values=tuple(values[:: -(-len(values) // STEPS)]))
                action = replace(action, bind=bind, parameters={**action.parameters, "number": "{NUMBER}"})
                effect = Effect(op="set", path=(path,), ref="{number}")
                self._guess(action, f"shows {collection} with {field} at {'least' if is_least else 'most'} so much")
            made[action.id] = replace(action, effects=(*action.effects, effect))
        for action in lists:
            made[action.id] = self._bound(action, kinds[action.id], lists, collection, where, order)
        for action in page.actions.values():
            made.setdefault(action.id, self._filled(action, kinds[action.id]))
            self.labels[action.id] = self._label(action, kinds[action.id], collection)
            if kinds[action.id] == "menu" and action in filters:
                self.labels[str(action.gui_procedure[0]["selector"])] = "Sort"
            if IN_THE_WAY & {*words_in(action.id)} and action.id not in self.asked:
                self._guess(action, "is named like a question in the way, and drawn as what its procedure says")
        asked = [one for one in page.actions.values() if one.id in self.asked]
        answered = tuple(Condition(one.effects[0].path, "eq", True) for one in asked)
        for id in made.keys() - {one.id for one in asked}:
            made[id] = replace(made[id], preconditions=(*made[id].preconditions, *answered))
        return replace(page, schema=schema, actions=[made[id] for id in page.actions])

    def _guess(self, action: Action, what: str) -> None:
        self.guesses.append(f"{action.source}: {action.id}: {what}")

    def _bound(
        self, action: Action, kind: str, lists: Sequence[Action], collection: str, where: dict[str, Any], order: str
    ) -> Action:
        """Return an action on an item of a list with the collection as its values: all for a search, else what
        filters and searches leave."""
        if action.bind is not None:
            return action
        param, limits = action.open_parameters[0], dict(where)
        self._guess(action, f"{param} is one of {collection}")
        for search in lists if kind != "search" else ():
            if search.name == "search" and (paths := [e.path for e in search.effects if e.ref]):
                limits["id"] = {"cond": "eq", "value": "$." + ".".join(paths[0])}
        is_search = kind == "search"
        bind = Bind(param, collection, where={} if is_search else limits, order="" if is_search else f"$.{order}" * bool(order))
        return replace(action, bind=bind)

    def _filled(self, action: Action, kind: str) -> Action:
        """Return a field with words to be typed, or a list of choices with what can be chosen."""
        named = [name for name in action.open_parameters]
        effects = [self._referring(effect, action) for effect in action.effects]
        if action.bind is not None or kind not in ("field", "menu") or (kind == "menu" and not named):
            return action
        if kind == "menu":
            one = re.sub(r"_id$", "", named[0])
            collection = next((many for many in _plurals(one) if many in self.records), "")
            options = [o for step in action.gui_procedure for o in step.get("ui_elements", {}).get("options", [])]
            values = () if collection else tuple(str(option["value"]) for option in options)
            if collection or values:
                self._guess(action, f"{named[0]} is one of {collection or ', '.join(values)}")
                return replace(action, bind=Bind(named[0], collection, values=values))
            return action
        name, text = named[0] if named else "input_text", _words_for(action)
        parameters = {**action.parameters, name: action.parameters.get(name, "{TEXT}")}
        literal = [i for i, effect in enumerate(effects) if effect.op == "set" and isinstance(effect.value, str)]
        if not any(effect.ref == name for effect in effects) and literal:
            effects[literal[0]] = replace(effects[literal[0]], value=None, ref=f"{{{name}}}")
            self._guess(action, f"keeps the text that is typed, in place of {action.effects[literal[0]].value!r}")
        self._guess(action, f"{name} is a text like {text[0]!r}")
        return replace(action, parameters=parameters, effects=tuple(effects), bind=Bind(name, values=text))

    def _referring(self, effect: Effect, action: Action) -> Effect:
        """Return an effect whose expression is nothing but a parameter's name as a reference to it."""
        found = re.fullmatch(r"\{(\w+)\}", effect.expr) if isinstance(effect.expr, str) else None
        if found is None:
            return effect
        self._guess(action, f"the expression {effect.expr} is the parameter")
        return replace(effect, expr=None, ref=found[0])

    def _collection(self, page: Page, lists: Sequence[Action], filters: Sequence[Action]) -> str:
        """Return the one collection that a page lists: named by its own array of objects, by the parameters of
        its rows, or by what they are kept in. Invents records if there are none."""
        arrays = [name for name, kind in page.schema.items() if str(kind).startswith("array<object>")]
        rows = sorted(lists, key=lambda one: widget_of(one, self.fsm).kind != "row")
        fields = [name for one in rows for name in (one.open_parameters[0], *(e.path[-1] for e in one.effects if e.ref))]
        affixes = r"^(selected|matched|current)_|(_viewport_anchor)?_id$"  # selected_video_id -> video
        names = [re.sub(affixes, "", field) for field in fields if field not in ("item_id", "item")]
        plurals = [plural for name in names for plural in _plurals(name)]
        known = [many for many in (*plurals, *arrays) if many in self.records]
        agreed = [many for many in arrays if many in plurals]
        collection = [*known, *agreed, *plurals[:1], *arrays, page.id.lower()][0]
        if collection not in self.records:
            self.records[collection] = _invented(collection, filters, self.fsm)
            self.guesses.append(f"{collection}: there are no data, so {INVENTED} records are invented")
        return collection

    def _field(self, action: Action, collection: str, kind: type, used: set[str]) -> str | None:
        """Return the field that a filter or an order is about: one that its selector names, else another one."""
        records, asked = self.records[collection], words_in(str(action.gui_procedure[-1].get("selector", "")))
        if {"a", "az", "alpha", "alphabetical", "z"} & {*asked}:
            return RANK
        fits = [
            name for name, value in records[0].items()
            if isinstance(value, bool) == (kind is bool) and (kind is bool or is_number(value)) and name != RANK
        ] if records else []  # fmt: skip
        fits = [name for name in fits if all(type(one.get(name)) is type(records[0][name]) for one in records)]
        for name in [one for one in fits if kind is bool and f"un{one}" in asked]:
            self.records[collection] = tuple({**one, f"un{name}": not one[name]} for one in records)
            return f"un{name}"
        named = [name for name in fits if {w[:4] for w in words_in(name)} & {w[:4] for w in asked}]
        free = [name for name in fits if name not in used]
        return next(iter([*named, *free, *fits]), RANK if kind is not bool and records else None)

    def _label(self, action: Action, kind: str, collection: str) -> str:
        """Return an action's words for people, from the selector that names it best."""
        selectors = [str(step["selector"]) for step in action.gui_procedure if "selector" in step]
        said = words_in(selectors[-1].split()[-1] if selectors else action.id)
        options = {
            str(option["selector"]): str(option["value"])
            for step in action.gui_procedure
            for option in step.get("ui_elements", {}).get("options", [])
        }
        if selectors and selectors[-1] in options:
            return _said(words_in(options[selectors[-1]]))
        for word, label in (("back", "Back"), ("cancel", "Cancel"), ("home", "Home")):
            if word in said and action.is_navigation:
                return label
        if action.id in self.asked:
            said = [*[w for w in said if w in ("accept", "allow")], *[w for w in said if w not in ("accept", "allow")]]
        page = {*words_in(action.source), *words_in(collection)}
        left = [word for word in said if word not in NOISE]
        left = [word for word in left if word not in page] or left
        if kind == "menu" and action.open_parameters:
            return _said([word for word in words_in(action.open_parameters[0]) if word != "id"])
        if kind == "search":
            return f"Search {collection.replace('_', ' ')}"
        return _said(left or [w for w in words_in(action.id) if w not in NOISE] or words_in(action.target))


def _said(words: Sequence[str]) -> str:
    return " ".join(words).capitalize()


def _brand(fsm: Fsm) -> str:
    """Return the site's name, for "Q&A Community-Quora_app" its last part, "Quora"."""
    app = re.sub(r"[_ -]?app$", "", str(fsm.meta.get("app", "")), flags=re.IGNORECASE)
    return re.split(r"[-_]", app)[-1].strip().capitalize() or "Site"


def _plurals(name: str) -> tuple[str, ...]:
    return (name, f"{name}s", f"{name[:-1]}ies", f"{name}es") if name.endswith("s") else (f"{name}s", f"{name[:-1]}ies", f"{name}es", name)


def _words_for(action: Action) -> tuple[str, ...]:
    """Return texts that somebody would type into a field, by the words in its selector and path."""
    asked = {*words_in(action.id), *words_in(str(action.gui_procedure[-1].get("selector", "")))}
    if asked & {"name", "author", "user", "username"}:
        return tuple(TEXTS["people"][:5])
    if asked & {"email", "mail"}:
        return tuple(f"{name.split()[0].lower()}@post.test" for name in TEXTS["people"][:5])
    if asked & {"city", "address", "location", "place", "destination", "origin"}:
        return tuple(TEXTS["towns"][:5])
    if asked & {"copies", "quantity", "number", "count", "amount", "price", "budget", "year", "age", "guests"}:
        return ("1", "2", "3")
    return tuple(TEXTS["remarks"])


def _is_fact(name: str, value: Any) -> bool:
    """Return whether a record's field is shown beside its title."""
    hidden = {"id", "title", "shape", "fill", "colour", "text", "by", "place", "date", "image", "url", RANK}
    is_short = isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 30)
    return is_short and name not in hidden and not name.endswith("_id")


def _invented(collection: str, filters: Sequence[Action], fsm: Fsm) -> tuple[dict[str, Any], ...]:
    """Return records with titles, and with a field for each filter."""
    one, rng = collection.removesuffix("s"), Random(collection)
    records: list[dict[str, Any]] = [{"id": f"{one}_{n}", "title": f"{_said([one])} {n}"} for n in range(1, INVENTED + 1)]
    for action in filters:
        asked = [w for w in words_in(str(action.gui_procedure[-1].get("selector", ""))) if w not in NOISE]
        name = "_".join(w for w in asked if w not in words_in(action.source)) or "marked"
        kind = widget_of(action, fsm).kind
        values: Sequence[Any] = rng.sample(range(5, 100), INVENTED)
        if kind == "checkbox":
            values = rng.sample([True, False] * INVENTED, INVENTED - 2) + [True, False]
        for record, value in zip(records, values if kind != "menu" else (), strict=kind != "menu"):
            record[name] = value
    return _records(collection, records)


def _records(collection: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Return the records with titles, texts, and pictures in place of those that they may name."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("id") for one in value):
        raise ValueError(f"data: {collection!r} must be a list of records, each with an id")
    titles = [next((str(one[name]) for name in TITLES if one.get(name)), one["id"]) for one in value]
    ranks, out = {title: n for n, title in enumerate(sorted(titles))}, []
    for n, (record, title) in enumerate(zip(value, titles, strict=True)):
        colour = list(FILLS)[n % len(FILLS)]
        looks = {"title": title, "shape": SHAPES[n % len(SHAPES)], "fill": FILLS[colour], "colour": colour}
        out.append({**record, **looks, RANK: ranks[title]})
    return tuple(out)
