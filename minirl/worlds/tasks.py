"""What is to be done on a generated site, in words: instructions, goals, and proof that each means one thing.

    an item, described by family and mode, + what to do with it, + what else the level asks --> Task

`make_tasks` draws them, each with its solution (solutions.py), and only those of the level's length stay. An
item is described so that of all records that the list then shows exactly one fits (`fitting`), and all that
the instruction names is a condition of the goal, on what the session has noted in `done`.
Paper: AutoWebWorld, section 3.4: three families of queries (from solutions, by what is seen, questions about
the last screenshot) in five modes of access (search, scrolling, slider, order, checkbox).

1. There a language model words them and drops the ambiguous ones; here templates do, and enumeration proves
   them.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from minirl.types import Task
from minirl.worlds.interpreter import State, World, apply, initial_state, parameter_values
from minirl.worlds.looks import Json, read_table
from minirl.worlds.search import Step
from minirl.worlds.shop import ITEM, order_in_words
from minirl.worlds.solutions import Part, compose, in_json
from minirl.worlds.widgets import condition, gui_steps

WORDS = read_table("tasks")
FAMILIES = ("solution", "visual", "question")
MODES = ("search", "scroll", "slider", "sort", "checkbox")
OUT_OF_SIGHT = 9  # rows of a list before one that is to be scrolled to
COUNT, TRIES = 8, 60  # tasks of a site, and how many are drawn for them


def make_tasks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks of the length of the site's level, of as many families and modes as there
    can be, which visit as much of the site as they can. The same site gives the same tasks."""
    rng = Random(f"tasks of {world.name}")
    used = Counter[str]()
    tasks: dict[str, Task] = {}
    low, high = world.fsm.meta["steps"]
    cells = [*itertools.product(FAMILIES, MODES)]
    if world.style["look"] == "tiles":
        cells = [("solution", "plain")]
    rng.shuffle(cells)
    for family, mode in itertools.islice(itertools.cycle(cells), TRIES):
        draft = Draft(world, rng, used)
        if len(tasks) == count:
            break
        if not draft.begin(family, mode):
            continue
        draft.extend(low)
        steps = compose(world, draft.parts)
        work = operations_of(world, steps)
        text = draft.text
        if text in tasks or not low <= len(work) <= high:
            continue
        used.update(draft.flow_ids)
        goal: Json = {"where": draft.where}
        if draft.answer:
            goal["answer"] = draft.answer
        meta = {
            "world": world.name,
            "site": world.fsm.meta["theme"],
            "level": world.fsm.meta["level"],
            "family": family,
            "mode": mode,
            "steps": len(work),
            "agents": ["visual"] if "drag" in work else ["visual", "text"],
            "finds": [part.find for part in draft.parts if part.find],
            "solution": in_json(steps),
        }
        id = f"{world.name}-{len(tasks)}"
        tasks[text] = Task(id, text, f"http://{world.name}.test/", goal, meta)
    return list(tasks.values())


def operations_of(world: World, steps: Sequence[Step]) -> list[str]:
    """Return the names of the operations that a path takes."""
    state = initial_state(world.fsm)
    operations = []
    for step in steps:
        operations += [gui["op"] for gui in gui_steps(world, state, step)]
        state = apply(world.fsm, state, step.action_id, step.params)
    return operations


def fitting(world: World, find: Mapping[str, Any]) -> list[str]:
    """Return the ids of all records that an instruction may mean: those that the list shows with its filters
    set, and that have the place, title or picture that is named.

    >>> fitting(world, {"list": "rooms", "set": {"least_price": 200}, "target": {"rank": 2}})
    ['room-17']
    """
    many = find["list"]
    page = next(one["page"] for one in world.fsm.meta["lists"] if one["id"] == many)
    fields = {f"{many}_{name}": value for name, value in find["set"].items()}
    state = State(page, {**world.fsm.pages[page].defaults, **fields})
    choices = parameter_values(world, state, f"{page}_OPEN")
    visible = [next(iter(params.values())) for params in choices]
    target = find["target"]
    if "rank" in target:
        return visible[target["rank"] - 1 : target["rank"]]
    records = {record["id"]: record for record in world.data[many]}
    return [id for id in visible if target.items() <= records[id].items()]


class Draft:
    """One task while it is drawn: its sentences, its conditions, and its parts."""

    def __init__(self, world: World, rng: Random, used: Counter[str]):
        self.world = world
        self.rng = rng
        self.used = used  # by list and flow: how many tasks go through it so far
        self.lists: dict[str, Json] = {one["id"]: one for one in world.fsm.meta["lists"]}
        self.flows: dict[str, Json] = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
        self.parts: list[Part] = []
        self.login: list[str] = []  # sentences that come first
        self.sentences: list[str] = []
        self.question: list[str] = []  # those that come last
        self.where: list[Json] = []
        self.answer: list[str] = []
        self.size = 1  # about how many operations it takes

    @property
    def flow_ids(self) -> list[str]:
        return [part.flow["id"] for part in self.parts if part.flow]

    @property
    def text(self) -> str:
        if self.world.style["look"] == "tiles":  # which speak as shops do, for the smallest models
            chosen = {}
            for one in self.where:
                name = one["path"].rpartition(".")[2]
                chosen[ITEM if name == "item" else name] = one["value"]
            return order_in_words(chosen)
        text = ""
        for sentence in (*self.login, *self.sentences, *self.question):
            text += f" {sentence[0].upper()}{sentence[1:]}."
        return text.strip()

    def wording(self, wordings: Sequence[str], **values: Any) -> str:
        return self.rng.choice(wordings).format(**values)

    def begin(self, family: str, mode: str) -> bool:
        """Add the part that the task is named after. Return False if the site has nothing like it."""
        lists = [one for one in self.lists.values() if mode in ("scroll", "plain", *one["ways"])]
        if not lists:
            return False
        listing = self.least_used(lists)
        draw = self.find(listing, family, mode)
        if draw is None:
            return False
        sentence, find = draw
        if family == "question":
            self.question = [sentence, self.ask(find)]
            self.parts.append(Part(find))
            self.size += 3
        else:
            flows = [flow for flow in self.flows.values() if flow["list"] == listing["id"]]
            self.do(self.least_used(flows), sentence, find)
        return True

    def extend(self, low: int) -> None:
        """Add parts until the task is likely to take `low` operations."""
        while self.size < low + 2:
            done = self.flow_ids
            visited = [part.find["list"] for part in self.parts if part.find]
            flows = []
            for flow in self.flows.values():
                is_possible = set(flow["after"]) - {"login"} <= set(done)
                if is_possible and flow["id"] not in done and flow["list"] not in visited:
                    flows.append(flow)
            if not flows:
                return
            flow = self.least_used(flows)
            if "login" in flow["after"] and "login" not in done:
                self.do(self.flows["login"])
            if not flow["list"]:
                self.do(flow)
                continue
            draw = self.find(self.lists[flow["list"]], "solution", "plain")
            if draw:
                self.do(flow, *draw)

    def least_used(self, some: Sequence[Json]) -> Json:
        least = min(self.used[one["id"]] for one in some)
        return self.rng.choice([one for one in some if self.used[one["id"]] == least])

    def record(self, many: str, id: str) -> Mapping[str, Any]:
        (record,) = [one for one in self.world.data[many] if one["id"] == id]
        return record

    def find(self, listing: Json, family: str, mode: str) -> tuple[str, Json] | None:
        """Return a sentence by which one record of a list is to be opened, and what it says as a `find`; None
        if no such sentence means one record alone."""
        many = listing["id"]
        records = self.world.data[many]
        record = self.rng.choice(records[OUT_OF_SIGHT:] if mode == "scroll" else records)
        find: Json = {"list": many, "set": {}, "target": {"title": record["title"]}}
        words: Json = {"many": many, "one": listing["one"]}
        name = listing["ways"].get(mode, "")
        if mode == "search":
            find["set"][name] = record["id"]
        elif name:
            words |= self.narrow(find, listing, mode, name)
            ids = fitting(self.world, find)
            if not ids:
                return None
            record = self.record(many, ids[0])
        for field in ("title", "colour", "shape"):
            words[field] = record.get(field)
        if family == "visual":
            find["target"] = {"colour": record["colour"], "shape": record["shape"]}
        if fitting(self.world, find) != [record["id"]]:
            return None
        find["item"] = record["id"]
        for field, value in {"item": record["id"], **find["set"]}.items():
            self.where.append(condition(f"done.{many}.{field}", "eq", value))
        self.size += 5 if mode == "search" else 3
        kind, *_ = find["target"]
        setting = self.wording(WORDS["modes"][mode], **words)
        opening = self.wording(WORDS["targets"][kind], **words)
        return f"{setting} and {opening}", find

    def narrow(self, find: Json, listing: Json, mode: str, name: str) -> Json:
        """Set a slider, an order or a box, and ask for a rank in what the list then shows. Return the words
        for it."""
        page = listing["page"]
        bind = self.world.fsm.pages[page].actions[f"{page}_{name.upper()}"].bind
        value: Any = True
        if bind:
            half = bind.values[: max(1, len(bind.values) // 2)]  # of a slider, so that some rows are left
            value = self.rng.choice(half if mode == "slider" else bind.values)
        rank = self.rng.randint(1, len(WORDS["ranks"]))
        find["set"][name] = value
        find["target"] = {"rank": rank}
        field, _, way = str(value).partition(":")
        return {
            "least": value,
            "flag": name.removeprefix("only_"),
            "field": field if way else name.removeprefix("least_"),
            "direction": WORDS["directions"].get(way),
            "rank": WORDS["ranks"][rank - 1],
            "number": rank,
        }

    def do(self, flow: Json, sentence: str = "", find: Json | None = None) -> None:
        """Add a flow, behind the sentence that opens its item, with a value for all that it asks."""
        id = flow["id"]
        values = {name: self.rng.choice(offered) for name, offered in flow["asks"].items()}
        words: Json = {"verb": flow["verb"]}
        if id == "settings":
            on = self.rng.sample(list(values), self.rng.randint(1, 2))
            values = {name: name in on for name in values}
            words["on"] = " and ".join(name.replace("_", " ") for name in on)
        else:
            words["asks"] = ""
            for name, value in values.items():
                wordings = WORDS["asks"].get(name, WORDS["asks"]["text"])
                words["asks"] += ", " + self.wording(wordings, name=name, value=value)
        notes = {**values, "item": find["item"]} if find else values
        for name, value in notes.items():
            self.where.append(condition(f"done.{id}.{name}", "eq", value))
        wordings = WORDS["flows"].get(id, WORDS["flows"]["item"])
        order = self.wording(wordings, **words)
        place = self.login if id == "login" else self.sentences
        place += [sentence, order] if sentence else [order]
        self.parts.append(Part(find or {}, flow, values))
        self.size += 3
        for value in values.values():
            self.size += 2 if isinstance(value, str) else 1

    def ask(self, find: Json) -> str:
        """Return a question about a record; its answer is noted, in all spellings that are right."""
        many = find["list"]
        record = self.record(many, find["item"])
        facts = self.world.style["facts"][many]
        names = [name for name in ("colour", "shape", *facts) if not isinstance(record[name], bool)]
        fact = self.rng.choice(names)
        value = str(record[fact])
        with_unit = facts.get(fact, "{}").removeprefix(f"{fact} ").format(value)
        self.answer = list(dict.fromkeys([value, with_unit]))
        wordings = WORDS["questions"].get(fact, WORDS["questions"]["number"])
        return self.wording(WORDS["questions"]["ask"], fact=self.wording(wordings, field=fact))
