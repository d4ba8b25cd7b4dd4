"""Released site files as sites with tasks: what they leave open is filled in.

    fsm.json, perhaps with data --world_of--> World --make_walks--> tasks

Stands behind the verbs `render` and `author`. A released machine says that a row was opened and a filter was
applied, not of what. What `world_of` fills in stands in the site's own fsm.json.
Paper: AutoWebWorld, section 5.5 (25 trajectories of two sites).

1. The released code infers the same from names, anew in every stage. Here lists belong to the collection
   whose name stands in their parameters or fields. Boxes, sliders and orders change what the file says, that
   they were used: only a `bind` of its own says which records a list holds then.
2. A question in the way, such as a cookie banner, is answered before anything else on its page.
3. A template words the tasks, action by action; of the values that are chosen a goal has those alone that the
   terminal page still knows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from minirl.console import say
from minirl.types import Json, Task
from minirl.worlds.fsm_file import Action, Bind, Condition, Effect, Fsm, Page, dotted, validated
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.looks import SHAPES, USUAL, dress, read_table
from minirl.worlds.search import Step, interceptors, solve, with_values
from minirl.worlds.solutions import in_json
from minirl.worlds.widgets import condition, options_of, widget_of, words_in

WORDS = read_table("released")
PHRASES = WORDS["phrases"]
NOISE = set(WORDS["noise"].split())
RECORDS = 14  # of a collection that no data are given for
COUNT = 13  # tasks of a site, half of table 6's
TRIES = 4  # walks that are drawn for each


def world_of(name: str, fsm: Fsm, data: Any) -> World:
    """Return the site, with records as in {"books": [{"id": "b1", "title": "Emma"}]}; a collection that is
    missing is invented."""
    given = validated("data", dict[str, tuple[Json, ...]], data)
    reader = Reader(fsm, {many: complete_records(records) for many, records in given.items()})
    pages = [reader.page(page) for page in fsm.pages.values()]
    # The app's name decides on the looks, so that they are the same in whichever folder the site lies.
    app = str(fsm.meta.get("app", "")).lower()
    words = ["site", *words_in(app.removesuffix("app"))]
    facts = {many: _facts(records[0]) for many, records in given.items() if records}
    style = {"labels": reader.labels, "facts": facts, "brand": words[-1].capitalize()}
    world = World(words[-1], replace(fsm, pages=pages), reader.records, style)
    return replace(dress(world, "communication", "table"), name=name)


class Reader:
    """What has been made of a machine so far: its records and labels."""

    def __init__(self, fsm: Fsm, records: dict[str, tuple[Json, ...]]):
        self.records = records
        self.questions = interceptors(fsm)
        self.kinds = {action.id: widget_of(action, fsm).kind for action in fsm.actions}
        self.labels = {}  # of actions

    def page(self, page: Page) -> Page:
        """Return a page whose lists have records, and whose fields have words to be typed."""
        lists = []
        answered = []
        where = {}
        for action in page.actions.values():
            kind = self.kinds[action.id]
            self.labels[action.id] = self.label(action)
            if kind in ("row", "scroll", "search") and action.open_parameters:
                lists.append(action)
            if kind == "search":  # after which the list holds what was searched for
                for effect in action.effects:
                    if effect.ref:
                        where["id"] = {"cond": "eq", "value": dotted(effect.path)}
            if action.id in self.questions:
                answered += [Condition(path, "eq", True) for path in sorted(self.questions[action.id])]
        collection = self.collection_of(page, lists)
        actions = []
        for action in page.actions.values():
            if not action.bind and action in lists:
                visible = {} if self.kinds[action.id] == "search" else where
                action = replace(action, bind=Bind(action.open_parameters[0], collection, visible))
            elif not action.bind:
                action = self.filled(action)
            if action.id not in self.questions:
                action = replace(action, preconditions=(*action.preconditions, *answered))
            actions.append(action)
        return replace(page, actions=actions)

    def collection_of(self, page: Page, lists: Sequence[Action]) -> str:
        """Return the collection that a page lists, "" if it lists nothing. Invents records if there are none:
        books where "book_id" is chosen, or else what the page is called after."""
        if not lists:
            return ""
        chosen = [action.open_parameters[0] for action in lists]
        name = page.id.lower().removesuffix("s")
        known = self.known([*chosen, *page.schema, name])
        if known:
            return known
        for parameter in chosen:
            if parameter != "item_id":
                name = parameter.removesuffix("_id")
        records = [{"id": f"{name}_{n}", "title": f"{name} {n}".capitalize()} for n in range(1, RECORDS + 1)]
        self.records[f"{name}s"] = complete_records(records)
        return f"{name}s"

    def known(self, names: Iterable[str]) -> str:
        """Return the collection whose name stands in one of the names, as "books" does in "last_book_id"."""
        for name in names:
            for many in self.records:
                if re.sub("(ie)?s$", "", many) in name:
                    return many
        return ""

    def filled(self, action: Action) -> Action:
        """Return an action that is about no list with what it can be taken with."""
        names = action.open_parameters
        kind = self.kinds[action.id]
        if kind == "field":
            return typed(action)
        if kind == "menu" and names:
            known = self.known(names)
            values = () if known else tuple(options_of(action).values())
            return replace(action, bind=Bind(names[0], known, values=values))
        if kind in ("slider", "date"):
            values = tuple(range(1, 11))
            if kind == "date":  # of which the file names the one day
                day = {"year": 2026, "month": 1, "day": 1}
                day |= {part: value for part, value in action.parameters.items() if part not in names}
                values = ("{year}-{month:02}-{day:02}".format(**day),)
            name = [*names, kind][0]
            parameters = {**action.parameters, name: "{ANY}"}
            return replace(action, parameters=parameters, bind=Bind(name, values=values))
        return action

    def label(self, action: Action) -> str:
        """Return an action's words for people: its selector's without its page's, or its id's."""
        words = last_words(action)
        if self.kinds[action.id] in ("menu", "choice") and action.open_parameters:
            words = words_in(action.open_parameters[0].removesuffix("_id"))
        page_words = words_in(action.source)
        telling = [word for word in words if word not in page_words]
        return label_of(telling) or label_of(words_in(action.id))


def typed(action: Action) -> Action:
    """Return a field that keeps what is typed, with texts to be typed. Released files write the parameter,
    "input_text" where it has no other name, as an expression, or "typed" in its place."""
    name = [*action.open_parameters, "input_text"][0]
    symbol = f"{{{name}}}"
    effects = []
    for effect in action.effects:
        if effect.op == "set" and (effect.value == "typed" or effect.expr == symbol):
            effect = Effect("set", effect.path, value_ref=symbol)
        effects.append(effect)
    words = {*words_in(action.id), *last_words(action)}
    for kind in WORDS["typed"]:
        if words & set(kind["words"]):
            break
    parameters = {name: symbol, **action.parameters}
    return replace(action, parameters=parameters, effects=effects, bind=Bind(name, values=kind["texts"]))


def label_of(words: Sequence[str]) -> str:
    """Return the words that say something to a visitor, as a label."""
    return " ".join(word for word in words if word not in NOISE).capitalize()


def last_words(action: Action) -> list[str]:
    """Return the words of the id or class that is touched last."""
    selectors = [str(step["selector"]) for step in action.gui_procedure if "selector" in step]
    return words_in(selectors[-1].split()[-1])


def _facts(record: Json) -> dict[str, str]:
    """Return the fields that are shown beside a record's title, and how they are said."""
    facts = {}
    for name, value in record.items():
        is_short = isinstance(value, (int, float, str)) and len(str(value)) < 30
        is_hidden = name in (*WORDS["titles"], *WORDS["hidden"]) or name.endswith("_id")
        if is_short and not is_hidden:
            facts[name] = "{}"
    return facts


def complete_records(records: Sequence[Json]) -> tuple[Json, ...]:
    """Return the records with titles, and pictures in place of those that they may name."""
    fills = list(USUAL["fills"].values())
    complete = []
    for n, record in enumerate(records):
        title = ""
        for name in (*WORDS["titles"], "id"):
            title = title or str(record.get(name, ""))
        picture = {"shape": SHAPES[n % len(SHAPES)], "fill": fills[n % len(fills)]}
        complete.append({**record, "title": title, **picture})
    return tuple(complete)


def make_walks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks: shortest ways to the terminal pages, in turn, with values drawn anew. The
    same file gives the same tasks. A page that no way leads to is told, and the others keep their tasks."""
    ways = []
    for page in world.fsm.terminal_pages:
        way = solve(world, page)
        if way:
            ways.append(way)
        else:
            say(f"{world.name}: no way to {page} was found, so no task leads there")
    rng = Random(f"walks of {world.style['brand']}")
    tasks = {}
    for way in ways * (TRIES * count):
        if len(tasks) == count:
            break
        steps = with_values(world, way, rng) or way
        task = task_of_walk(world, steps, f"{world.name}-{len(tasks)}")
        tasks.setdefault(task.instruction, task)
    return list(tasks.values())


def task_of_walk(world: World, steps: Sequence[Step], id: str) -> Task:
    """Return the task to take these steps. Its goal has the values that are still known at its end."""
    titles = {record["id"]: record["title"] for records in world.data.values() for record in records}
    state = initial_state(world.fsm)
    phrases = []
    values = []
    for step in steps:
        action = world.fsm.pages[state.page].actions[step.action_id]
        values += step.params.values()
        value = titles.get(values[-1], values[-1]) if step.params else ""
        phrase = PHRASES.get(widget_of(action, world.fsm).kind, PHRASES["button"])
        phrases.append(phrase.format(label=world.style["labels"][action.id], value=value))
        state = apply(world.fsm, state, action.id, step.params)
    where = [condition(name, "eq", value) for name, value in state.signature.items() if value in values]
    text = ", then ".join(filter(None, phrases))
    meta = {
        "world": world.name,
        "site": world.name,
        "benchmark": "autowebworld-sites",
        "solution": in_json(steps),
    }
    goal = {"page": state.page, "where": where}
    return Task(id, f"{text[:1].upper()}{text[1:]}.", f"http://{world.name}.test/", goal, meta)
