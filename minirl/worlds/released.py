"""Released site files as sites with tasks: what they leave open is guessed from names, guess by guess told.

    fsm.json, perhaps with data --world_of--> World --make_walks--> tasks

Stands behind the verbs `render` and `author`. A released machine says that a filter was applied, not what it
filters. Each list gets a collection, each filter a field of its records, and the machine fields of its own
that hold what was filtered, ordered or searched; texts get words to type. A question in the way, such as a
cookie banner, is answered before anything else on its page, as in the released search.
Paper: AutoWebWorld, section 5.5 (25 trajectories of two sites).

1. The released code infers the same from names, anew in every stage and without a report.
2. A template words the tasks, action by action; of the values that are chosen a goal has those alone that the
   terminal page still knows.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from minirl.console import say
from minirl.types import Task
from minirl.worlds.fsm_file import Action, Bind, Condition, Effect, Fsm, Page, dotted, is_number
from minirl.worlds.interpreter import World, apply, enabled, initial_state, parameter_values
from minirl.worlds.looks import SHAPES, dress, read_table
from minirl.worlds.search import Step, interceptors, solve
from minirl.worlds.solutions import in_json
from minirl.worlds.widgets import condition, gui_steps, options_of, widget_of, words_in

WORDS = read_table("released")
PHRASES = read_table("walks")  # by widget: what an action is called in an instruction
NOISE = set(WORDS["noise"].split())
RECORDS = 14  # of a collection that no data are given for
STEPS = 8  # of a slider
RANK = "title_rank"  # a record's place in the alphabet
SKIN = "table"
COUNT, TRIES = 13, 4  # tasks of a site, half of table 6's, and walks that are drawn for each
Record = dict[str, Any]


def world_of(name: str, fsm: Fsm, data: Mapping[str, Any]) -> tuple[World, list[str]]:
    """Return the site, and a line for each guess that was made for it."""
    reader = Reader(fsm, {key: complete_records(key, value) for key, value in data.items()})
    pages = [reader.page(page) for page in fsm.pages.values()]
    words = words_in(str(fsm.meta.get("app", "")).lower().removesuffix("app"))
    brand = words[-1] if words else "site"
    facts = {many: _facts(records) for many, records in reader.records.items()}
    style = {"labels": reader.labels, "facts": facts, "brand": brand.capitalize()}
    # The app's name decides on the looks, so that they are the same in whichever folder the site lies.
    world = World(brand, replace(fsm, pages=pages), reader.records, style)
    guesses = []
    for many in reader.records:
        if many not in data:
            guesses.append(f"{many}: there are no data, so {RECORDS} records are invented")
    for before, after in zip(fsm.actions, world.fsm.actions, strict=True):
        guesses += [f"{after.source}: {after.id}: {guess}" for guess in _guesses(before, after)]
    return replace(dress(world, "communication", SKIN), name=name), guesses


def _guesses(before: Action, after: Action) -> Iterator[str]:
    """Yield what an action does that its file does not say."""
    if after.bind and not before.bind:
        values = after.bind.collection or ", ".join(map(str, after.bind.values))
        yield f"{after.bind.param} is one of {values}"
    for effect in after.effects:
        if effect not in before.effects:
            yield f"{effect.op} {dotted(effect.path)} {effect.value or effect.ref or ''}"


@dataclass
class Listing:
    """A page's list: its records, and what decides which of them it shows."""

    collection: str
    schema: dict[str, Any]  # the page's own
    where: dict[str, Any] = field(default_factory=dict)
    order: str = ""


class Reader:
    """What has been made of a machine so far: its records and labels."""

    def __init__(self, fsm: Fsm, records: dict[str, tuple[Record, ...]]):
        self.fsm = fsm
        self.records = records
        self.questions = interceptors(fsm)
        self.kinds = {action.id: widget_of(action, fsm).kind for action in fsm.actions}
        self.labels = {id: _label_of(words_in(id)) or id for id in fsm.pages}

    def page(self, page: Page) -> Page:
        """Return a page whose lists have records, whose filters filter, and whose fields have words."""
        actions = dict(page.actions)
        lists = []
        filters = []
        answered = []
        listing = Listing("", dict(page.schema))
        for action in page.actions.values():
            kind = self.kinds[action.id]
            if kind in ("row", "scroll", "search") and action.open_parameters:
                lists.append(action)
                stored = [effect.path for effect in action.effects if effect.ref]
                if kind == "search" and stored:
                    listing.where["id"] = {"cond": "eq", "value": dotted(stored[0])}
            elif kind in ("checkbox", "slider", "menu") and not action.open_parameters:
                if not action.is_navigation:
                    filters.append(action)
            elif kind in ("menu", "field") and action.bind is None:
                actions[action.id] = self.filled(action)
            if action.id in self.questions:
                answered.append(Condition(action.effects[0].path, "eq", True))
        if lists:
            listing.collection = self.collection_of(page, lists, filters)
            for action in filters:
                actions[action.id] = self.filter(action, listing)
        for action in lists:
            if action.bind is None:
                bind = Bind(action.open_parameters[0], listing.collection)
                if self.kinds[action.id] != "search":  # which finds whatever the filters hide
                    bind = replace(bind, where=listing.where, order=listing.order)
                actions[action.id] = replace(action, bind=bind)
        for id, action in actions.items():
            self.labels[id] = self.label(action, listing.collection)
            if id not in self.questions:
                actions[id] = replace(action, preconditions=(*action.preconditions, *answered))
        return replace(page, schema=listing.schema, actions=list(actions.values()))

    def filter(self, action: Action, listing: Listing) -> Action:
        """Return a box, slider or order that notes what it is set to, and let the list heed it."""
        kind = self.kinds[action.id]
        records = self.records[listing.collection]
        name = self.field_of(action, listing)
        if kind == "menu":
            self.labels[str(action.gui_procedure[0].get("selector"))] = "Sort"
        if name is None:
            return action
        if kind == "menu":
            rises = name == RANK or _has(action, WORDS["rising"])
            path, type = f"{action.source.lower()}_order", "string"
            effect = Effect("set", (path,), value=f"{name}:{'asc' if rises else 'desc'}")
            listing.order = f"$.{path}"
        elif kind == "checkbox":
            path, type = f"only_{name}", "boolean"
            effect = Effect("toggle", (path,))
            listing.where[name] = {"cond": "flag", "value": f"$.{path}"}
        else:
            is_upper = action.gui_procedure[-1].get("to_value") == "left"
            side, cond = ("most", "lte") if is_upper else ("least", "gte")
            path, type = f"{side}_{name}", "number"
            effect = Effect("set", (path,), value_ref="{number}")
            listing.where[name] = {"cond": cond, "value": f"$.{path}"}
            values = sorted({record[name] for record in records})[1:] or [0]
            every = -(-len(values) // STEPS)
            bind = Bind("number", values=tuple(values[::every]))
            action = replace(action, bind=bind, parameters={**action.parameters, "number": "{NUMBER}"})
        listing.schema[path] = f"{type}|null"
        return replace(action, effects=(*action.effects, effect))

    def field_of(self, action: Action, listing: Listing) -> str | None:
        """Return the field that a filter or an order is about: one that its selector names, else another. A
        box is about a yes or no, all others about numbers."""
        records = self.records[listing.collection]
        if not records:
            return None
        if _has(action, WORDS["alphabet"]):
            return RANK
        is_box = self.kinds[action.id] == "checkbox"
        fits = []
        for name in records[0]:
            values = [record.get(name) for record in records]
            if name != RANK and all(isinstance(one, bool) if is_box else is_number(one) for one in values):
                fits.append(name)
        for name in fits:
            if is_box and _has(action, [f"un{name}"]):  # "unread" of "read"
                opposite = [{**one, f"un{name}": not one[name]} for one in records]
                self.records[listing.collection] = tuple(opposite)
                return f"un{name}"
        beginnings = {word[:4] for word in _last_words(action)}
        named = [name for name in fits if beginnings & {word[:4] for word in words_in(name)}]
        unused = [name for name in fits if name not in listing.where]
        last = None if is_box else RANK
        return [*named, *unused, *fits, last][0]

    def filled(self, action: Action) -> Action:
        """Return a menu with what can be chosen, or a field that keeps what is typed, with words to be typed.
        Without a name of its own the parameter of a field is "input_text"."""
        name = [*action.open_parameters, "input_text"][0]
        if self.kinds[action.id] == "menu":
            known = [many for many in _plurals(name.removesuffix("_id")) if many in self.records]
            bind = Bind(name, known[0]) if known else Bind(name, values=tuple(options_of(action).values()))
            return replace(action, bind=bind)
        words = {*words_in(action.id), *_last_words(action)}
        texts = [one["texts"] for one in WORDS["typed"] if words & set(one["words"]) or not one["words"]]
        effects = []
        for effect in action.effects:
            # Released files write the parameter as an expression, or "typed" in its place.
            is_literal = effect.op == "set" and isinstance(effect.value, str) and effect.expr is None
            is_literal = is_literal and effect.ref is None and not action.open_parameters
            if is_literal or effect.expr == f"{{{name}}}":
                effect = Effect("set", effect.path, value_ref=f"{{{name}}}")
            effects.append(effect)
        parameters = {name: "{TEXT}", **action.parameters}
        bind = Bind(name, values=tuple(texts[0]))
        return replace(action, parameters=parameters, effects=tuple(effects), bind=bind)

    def collection_of(self, page: Page, lists: Sequence[Action], filters: Sequence[Action]) -> str:
        """Return the one collection that a page lists: named by its own array of objects, by the parameters
        of its rows, or by what they are kept in. Invents records if there are none."""
        arrays = [name for name, type in page.schema.items() if str(type).startswith("array<object>")]
        plurals = []
        for action in sorted(lists, key=lambda action: self.kinds[action.id] != "row"):
            stored = [effect.path[-1] for effect in action.effects if effect.ref]
            for name in (action.open_parameters[0], *stored):
                # selected_video_id -> video
                one = re.sub(r"^(selected|matched|current)_|(_viewport_anchor)?_id$", "", name)
                plurals += _plurals(one) if one != "item" else []
        known = [many for many in (*plurals, *arrays) if many in self.records]
        agreed = [many for many in arrays if many in plurals]
        collection = [*known, *agreed, *plurals[:1], *arrays, page.id.lower()][0]
        if collection not in self.records:
            self.records[collection] = self.invented(collection, filters)
        return collection

    def invented(self, collection: str, filters: Sequence[Action]) -> tuple[Record, ...]:
        """Return records with titles, and with a field for each filter."""
        rng = Random(collection)
        one = collection.removesuffix("s")
        columns: dict[str, list[Any]] = {}
        for action in filters:
            known = {*NOISE, *words_in(action.source)}
            name = "_".join(word for word in _last_words(action) if word not in known)
            halves = rng.sample([True, False] * (RECORDS // 2), RECORDS)
            numbers = rng.sample(range(5, 100), RECORDS)
            kind = self.kinds[action.id]
            if kind != "menu":
                columns[name or "marked"] = halves if kind == "checkbox" else numbers
        records = []
        for n in range(RECORDS):
            values = {name: column[n] for name, column in columns.items()}
            records.append({"id": f"{one}_{n + 1}", "title": f"{one} {n + 1}".capitalize(), **values})
        return complete_records(collection, records)

    def label(self, action: Action, collection: str) -> str:
        """Return an action's words for people, from the selector that names it best."""
        kind = self.kinds[action.id]
        last = _last_selector(action)
        words = words_in(last.split()[-1])
        options = options_of(action)
        if kind == "menu" and action.open_parameters:
            return " ".join(words_in(action.open_parameters[0].removesuffix("_id"))).capitalize()
        if kind == "search":
            return f"Search {collection.replace('_', ' ')}"
        if last in options:
            return " ".join(words_in(options[last])).capitalize()
        for word in ("back", "cancel", "home"):
            if action.is_navigation and word in words:
                return word.capitalize()
        if action.id in self.questions:  # "Accept cookie"
            words.sort(key=lambda word: word not in ("accept", "allow"))
        page = {*words_in(action.source), *words_in(collection)}
        telling = [word for word in words if word not in page]
        for candidate in (telling, words, words_in(action.id)):
            if _label_of(candidate):
                return _label_of(candidate)
        return " ".join(words_in(action.target)).capitalize()


def _label_of(words: Sequence[str]) -> str:
    """Return the words that say something to a visitor, as a label."""
    return " ".join(word for word in words if word not in NOISE).capitalize()


def _last_selector(action: Action) -> str:
    """Return the selector of what is touched last."""
    return [str(step["selector"]) for step in action.gui_procedure if "selector" in step][-1]


def _last_words(action: Action) -> list[str]:
    return words_in(_last_selector(action))


def _has(action: Action, words: Sequence[str]) -> bool:
    return not set(words).isdisjoint(_last_words(action))


def _plurals(name: str) -> list[str]:
    plurals = [f"{name}s", f"{name[:-1]}ies", f"{name}es"]
    return [name, *plurals] if name.endswith("s") else plurals


def _facts(records: Sequence[Record]) -> dict[str, str]:
    """Return the fields that are shown beside a record's title, and how they are said."""
    facts = {}
    for name, value in records[0].items() if records else ():
        is_short = isinstance(value, (int, float, str)) and len(str(value)) < 30
        if is_short and name not in WORDS["hidden"] and not name.endswith("_id"):
            facts[name] = "{}"
    return facts


def complete_records(collection: str, value: Any) -> tuple[Record, ...]:
    """Return the records with titles, texts, and pictures in place of those that they may name. ValueError if
    they are none."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and one.get("id") for one in value):
        raise ValueError(f"data: {collection!r} must be a list of records, each with an id")
    titles = []
    for record in value:
        given = [str(record[name]) for name in WORDS["titles"] if record.get(name)]
        titles.append([*given, record["id"]][0])
    ranks = {title: n for n, title in enumerate(sorted(titles))}
    fills = list(WORDS["fills"].items())
    records = []
    for n, record in enumerate(value):
        colour, fill = fills[n % len(fills)]
        looks = {"title": titles[n], "shape": SHAPES[n % len(SHAPES)], "fill": fill, "colour": colour}
        records.append({**record, **looks, RANK: ranks[titles[n]]})
    return tuple(records)


def make_walks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks: shortest ways to the terminal pages, in turn, with values drawn anew. The
    same file gives the same tasks. A page that no way leads to is told, and the others keep their tasks."""
    ways = []
    for page in world.fsm.terminal_pages:
        way = solve(world, {"page": page})
        if way:
            ways.append(way)
        else:
            say(f"{world.name}: no way to {page} was found, so no task leads there")
    rng = Random(f"walks of {world.style['brand']}")
    tasks: dict[str, Task] = {}
    for way in ways * (TRIES * count):
        if len(tasks) == count:
            break
        task = _walk(world, way, rng, f"{world.name}-{len(tasks)}")
        if task:
            tasks.setdefault(task.instruction, task)
    return list(tasks.values())


def _walk(world: World, way: Sequence[Step], rng: Random, id: str) -> Task | None:
    """Return a way with other values as a task, whose goal has those that are still known at its end; None if
    it leads no further with them."""
    titles = {one["id"]: one.get("title", one["id"]) for some in world.data.values() for one in some}
    state = initial_state(world.fsm)
    phrases = []
    chosen = []
    steps = []
    size = 0
    for step in way:
        action = world.fsm.pages[state.page].actions[step.action_id]
        params = rng.choice(parameter_values(world, state, action.id) or [{}])
        if not enabled(world.fsm, state, action.id, params):
            return None
        steps.append(Step(action.id, params))
        work = gui_steps(world, state, steps[-1])
        size += len(work)
        value = "".join(re.findall(r"\d{4}-\d\d-\d\d", str(work[-1])))  # a day that the machine names
        for value in params.values():
            chosen.append(value)
        phrase = PHRASES.get(widget_of(action, world.fsm).kind, PHRASES["button"])
        label = world.style["labels"].get(action.id, action.id)
        phrases.append(phrase.format(label=label, value=titles.get(value, value)))
        state = apply(world.fsm, state, action.id, params)
    where = [condition(name, "eq", value) for name, value in state.signature.items() if value in chosen]
    text = ", then ".join(phrase for phrase in phrases if phrase)
    meta = {"world": world.name, "site": world.name, "benchmark": "autowebworld-sites", "steps": size}
    meta["solution"] = in_json(steps)
    goal = {"page": state.page, "where": where}
    return Task(id, f"{text[:1].upper()}{text[1:]}.", f"http://{world.name}.test/", goal, meta)
