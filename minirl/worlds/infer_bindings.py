"""Released site files as sites: what they leave open is guessed from names, and every guess is reported.

Where it stands: `python -m minirl.worlds render` turns an fsm.json, with or without data, into a World.

A released machine says that a filter was applied, not what it filters. Each list gets a collection, each
filter a field of its records, and the machine fields of its own that hold what was filtered, ordered or
searched; texts get words to type. A question in the way, such as a cookie banner, is answered before anything
else on its page, as in the released search, so that the ways to the terminal pages are as long as there.
Paper: AutoWebWorld's released code infers the same from names, anew in every stage and without a report.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from minirl.worlds.fsm_file import Action, Bind, Condition, Effect, Fsm, Page, is_number
from minirl.worlds.interpreter import World
from minirl.worlds.looks import SHAPES, dress, read_table
from minirl.worlds.search import interceptors
from minirl.worlds.widgets import options_of, widget_of, words_in

WORDS = read_table("released")
NOISE = {*WORDS["noise"].split()}
INVENTED = 14  # records of a collection that no data are given for
STEPS = 8  # of a slider
SKIN = "table"
RANK = "title_rank"  # a record's place in the alphabet
FILTERS = ("checkbox", "slider", "menu")  # widgets that may change a list


def world_of(name: str, fsm: Fsm, data: Mapping[str, Any]) -> tuple[World, list[str]]:
    """Return the site, and a line for each guess that was made for it."""
    reader = Reader(fsm, {key: _records(key, value) for key, value in data.items()})
    pages = [reader.page(page) for page in fsm.pages.values()]
    facts = {many: _facts(records[0]) if records else {} for many, records in reader.records.items()}
    app = re.split(r"[-_ ]", re.sub(r"[_ -]?app$", "", str(fsm.meta.get("app", "")), flags=re.IGNORECASE))
    brand = app[-1].capitalize() or "Site"
    style = {"look": "pages", "labels": reader.labels, "facts": facts, "brand": brand}
    world = World(name, replace(fsm, pages=pages), reader.records, style)
    # The looks are those of the file's app, in whichever folder the site lies.
    app_name = "-".join(words_in(brand)) or "site"
    dressed = dress(replace(world, name=app_name), "communication", SKIN)
    return replace(dressed, name=name), reader.guesses


@dataclass
class Listing:
    """What has been found out about a page's list: its records, and what decides which of them it shows."""

    collection: str
    schema: dict[str, Any]  # the page's own
    where: dict[str, Any] = field(default_factory=dict)
    order: str = ""
    used: set[str] = field(default_factory=set)  # fields of records that have a filter


class Reader:
    """What has been made of a machine so far: records, labels, and the guesses in words."""

    def __init__(self, fsm: Fsm, records: dict[str, tuple[dict[str, Any], ...]]):
        self.fsm, self.records, self.asked = fsm, records, interceptors(fsm)
        self.kinds = {action.id: widget_of(action, fsm).kind for action in fsm.actions}
        self.labels = {id: _said([w for w in words_in(id) if w not in NOISE]) or id for id in fsm.pages}
        self.guesses: list[str] = []

    def page(self, page: Page) -> Page:
        """Return a page whose lists have records, whose filters filter, and whose fields have words."""
        actions = page.actions.values()
        lists = [a for a in actions if self.kinds[a.id] in ("row", "scroll", "search") and a.open_parameters]
        filters = [a for a in actions if self.kinds[a.id] in FILTERS and lists and not a.open_parameters]
        filters = [action for action in filters if not action.is_navigation]
        listing = Listing(self._collection(page, lists, filters) if lists else "", dict(page.schema))
        made = {action.id: self._filter(action, listing) for action in filters}
        for search in (one for one in lists if self.kinds[one.id] == "search"):
            found = next((effect.path for effect in search.effects if effect.ref), None)
            listing.where |= {"id": {"cond": "eq", "value": f"$.{'.'.join(found)}"}} if found else {}
        made |= {action.id: self._bound(action, listing) for action in lists}
        asked = [action for action in actions if action.id in self.asked]
        answered = tuple(Condition(one.effects[0].path, "eq", True) for one in asked)
        for action in actions:
            whole = made.get(action.id) or self._filled(action)
            gates = () if action in asked else answered
            made[action.id] = replace(whole, preconditions=(*whole.preconditions, *gates))
            self.labels[action.id] = self._label(action, listing.collection)
            if self.kinds[action.id] == "menu" and action in filters:
                self.labels[str(action.gui_procedure[0].get("selector"))] = "Sort"
            if {*WORDS["in_the_way"]} & {*words_in(action.id)} and action not in asked:
                self._guess(action, "is named like a question in the way, and drawn by its procedure")
        return replace(page, schema=listing.schema, actions=[made[id] for id in page.actions])

    def _guess(self, action: Action, what: str) -> None:
        self.guesses.append(f"{action.source}: {action.id}: {what}")

    def _filter(self, action: Action, listing: Listing) -> Action:
        """Return a box, slider or order that notes what it is set to, and let the list heed it."""
        many, last, kind = listing.collection, action.gui_procedure[-1], self.kinds[action.id]
        name = self._field(action, many, bool if kind == "checkbox" else float, listing.used)
        if name is None:
            self._guess(action, f"{many} have nothing that it could change")
            return action
        listing.used |= {name} - {RANK}
        if kind == "menu":
            rises = name == RANK or {*WORDS["rising"]} & {*words_in(str(last.get("selector")))}
            path, of = f"{action.source.lower()}_order", "string"
            value = f"{name}:{'asc' if rises else 'desc'}"
            listing.order, effect = f"$.{path}", Effect(op="set", path=(path,), value=value)
            self._guess(action, f"orders {many} by {value}")
        elif kind == "checkbox":
            path, of = f"only_{name}", "boolean"
            effect = Effect(op="toggle", path=(path,))
            listing.where[name] = {"cond": "flag", "value": f"$.{path}"}
            self._guess(action, f"shows only {many} with {name}")
        else:
            side, cond = ("most", "lte") if last.get("to_value") == "left" else ("least", "gte")
            path, of = f"{side}_{name}", "number"
            listing.where[name] = {"cond": cond, "value": f"$.{path}"}
            values = sorted({one[name] for one in self.records[many]})[1:] or [0]
            bind = Bind("number", values=tuple(values[:: -(-len(values) // STEPS)]))
            action = replace(action, bind=bind, parameters={**action.parameters, "number": "{NUMBER}"})
            effect = Effect(op="set", path=(path,), value_ref="{number}")
            self._guess(action, f"shows {many} with {name} at {side} so much")
        listing.schema[path] = f"{of}|null"
        return replace(action, effects=(*action.effects, effect))

    def _field(self, action: Action, many: str, kind: type, used: set[str]) -> str | None:
        """Return the field that a filter or an order is about: one that its selector names, else another."""
        records, asked = self.records[many], words_in(str(action.gui_procedure[-1].get("selector", "")))
        if not records or {*WORDS["alphabet"]} & {*asked}:
            return RANK if records else None
        is_fit = (lambda value: isinstance(value, bool)) if kind is bool else is_number
        fits = [name for name in records[0] if name != RANK and all(is_fit(one.get(name)) for one in records)]
        for name in (one for one in fits if f"un{one}" in asked and kind is bool):  # "unread" of "read"
            self.records[many] = tuple({**one, f"un{name}": not one[name]} for one in records)
            return f"un{name}"
        named = [name for name in fits if {w[:4] for w in words_in(name)} & {w[:4] for w in asked}]
        free = [name for name in fits if name not in used]
        return next(iter([*named, *free, *fits]), None if kind is bool else RANK)

    def _bound(self, action: Action, listing: Listing) -> Action:
        """Return an action on a listed item with its values: all for a search, else what filters leave."""
        if action.bind is not None:
            return action
        param, many = action.open_parameters[0], listing.collection
        self._guess(action, f"{param} is one of {many}")
        if self.kinds[action.id] == "search":
            return replace(action, bind=Bind(param, many))
        return replace(action, bind=Bind(param, many, listing.where, listing.order))

    def _filled(self, action: Action) -> Action:
        """Return a field with words to be typed, or a list of choices with what can be chosen."""
        named, kind = next(iter(action.open_parameters), ""), self.kinds[action.id]
        if action.bind is not None or kind != "field" and not (kind == "menu" and named):
            return action
        if kind == "menu":
            plurals = _plurals(re.sub(r"_id$", "", named))
            many = next((one for one in plurals if one in self.records), "")
            values = () if many else tuple(options_of(action).values())
            self._guess(action, f"{named} is one of {many or ', '.join(values)}")
            return replace(action, bind=Bind(named, many, values=values))
        name, selector = named or "input_text", str(action.gui_procedure[-1].get("selector", ""))
        asked = {*words_in(action.id), *words_in(selector)}
        texts = next(one["texts"] for one in WORDS["typed"] if {*one["words"]} & asked or not one["words"])
        effects = []
        for effect in action.effects:
            is_literal = effect.op == "set" and isinstance(effect.value, str) and effect.expr is None
            if effect.expr == f"{{{name}}}":
                self._guess(action, f"the expression {effect.expr} is the parameter")
                effect = replace(effect, expr=None, ref=f"{{{name}}}")
            elif is_literal and effect.ref is None and not named:
                self._guess(action, f"keeps the text that is typed, in place of {effect.value!r}")
                effect = replace(effect, value=None, ref=f"{{{name}}}")
            effects.append(effect)
        self._guess(action, f"{name} is a text like {texts[0]!r}")
        parameters = {name: "{TEXT}", **action.parameters}
        bind = Bind(name, values=tuple(texts))
        return replace(action, parameters=parameters, effects=tuple(effects), bind=bind)

    def _collection(self, page: Page, lists: Sequence[Action], filters: Sequence[Action]) -> str:
        """Return the one collection that a page lists: named by its own array of objects, by the parameters
        of its rows, or by what they are kept in. Invents records if there are none."""
        arrays = [name for name, kind in page.schema.items() if str(kind).startswith("array<object>")]
        fields = []
        for one in sorted(lists, key=lambda one: self.kinds[one.id] != "row"):
            fields += [one.open_parameters[0], *(effect.path[-1] for effect in one.effects if effect.ref)]
        affixes = r"^(selected|matched|current)_|(_viewport_anchor)?_id$"  # selected_video_id -> video
        names = [re.sub(affixes, "", name) for name in fields if name not in ("item_id", "item")]
        plurals = [plural for name in names for plural in _plurals(name)]
        known = [many for many in (*plurals, *arrays) if many in self.records]
        agreed = [many for many in arrays if many in plurals]
        collection = [*known, *agreed, *plurals[:1], *arrays, page.id.lower()][0]
        if collection not in self.records:
            self.records[collection] = self._invented(collection, filters)
            self.guesses.append(f"{collection}: there are no data, so {INVENTED} records are invented")
        return collection

    def _invented(self, collection: str, filters: Sequence[Action]) -> tuple[dict[str, Any], ...]:
        """Return records with titles, and with a field for each filter."""
        one, rng = collection.removesuffix("s"), Random(collection)
        ids = [f"{one}_{n}" for n in range(1, INVENTED + 1)]
        records: list[dict[str, Any]] = [{"id": id, "title": _said(id.rsplit("_", 1))} for id in ids]
        for action in filters:
            kind, selector = self.kinds[action.id], str(action.gui_procedure[-1].get("selector", ""))
            asked = [word for word in words_in(selector) if word not in {*NOISE, *words_in(action.source)}]
            halves = rng.sample([True, False] * (INVENTED // 2), INVENTED)
            values = {"checkbox": halves, "slider": rng.sample(range(5, 100), INVENTED)}.get(kind, ())
            for record, value in zip(records, values, strict=False):
                record["_".join(asked) or "marked"] = value
        return _records(collection, records)

    def _label(self, action: Action, collection: str) -> str:
        """Return an action's words for people, from the selector that names it best."""
        kind = self.kinds[action.id]
        selectors = [str(step["selector"]) for step in action.gui_procedure if "selector" in step]
        last = selectors[-1] if selectors else action.id
        said = words_in(last.split()[-1])
        if kind == "menu" and action.open_parameters:
            return _said([word for word in words_in(action.open_parameters[0]) if word != "id"])
        if kind == "search":
            return f"Search {collection.replace('_', ' ')}"
        if last in (options := options_of(action)):
            return _said(words_in(options[last]))
        for word in ("back", "cancel", "home") if action.is_navigation else ():
            if word in said:
                return word.capitalize()
        if action.id in self.asked:  # "Accept cookie"
            said.sort(key=lambda word: word not in ("accept", "allow"))
        page = {*words_in(action.source), *words_in(collection)}
        left = [word for word in said if word not in NOISE]
        left = [word for word in left if word not in page] or left
        return _said(left or [w for w in words_in(action.id) if w not in NOISE] or words_in(action.target))


def _said(words: Sequence[str]) -> str:
    return " ".join(words).capitalize()


def _plurals(name: str) -> list[str]:
    return [name] * name.endswith("s") + [f"{name}s", f"{name[:-1]}ies", f"{name}es"]


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that are shown beside a record's title, and how they are said."""
    shown = [name for name in record if name not in WORDS["hidden"] and not name.endswith("_id")]
    texts = {name for name, value in record.items() if isinstance(value, str) and len(value) < 30}
    return {name: "{}" for name in shown if name in texts or isinstance(record[name], (bool, int, float))}


def _records(collection: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Return the records with titles, texts, and pictures in place of those that they may name."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("id") for one in value):
        raise ValueError(f"data: {collection!r} must be a list of records, each with an id")
    titles = [next((str(one[name]) for name in WORDS["titles"] if one.get(name)), one["id"]) for one in value]
    ranks, out = {title: n for n, title in enumerate(sorted(titles))}, []
    for n, (record, title) in enumerate(zip(value, titles, strict=True)):
        colour, fill = list(WORDS["fills"].items())[n % len(WORDS["fills"])]
        looks = {"title": title, "shape": SHAPES[n % len(SHAPES)], "fill": fill, "colour": colour}
        out.append({**record, **looks, RANK: ranks[title]})
    return tuple(out)
