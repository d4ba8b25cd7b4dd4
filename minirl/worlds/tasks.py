"""What is to be done on a generated site, in words: instructions, goals, and the paths that do it.

    an item, described by family and mode, + what to do with it, + what else the level asks --> Task

`make_tasks` draws them, each with its solution (solutions.py), and only those of the level's length stay. An
item is named by its title, its picture, or its rank in what the list shows once it is set as told; titles and
pictures are unique, so exactly one item fits. All that the instruction names is a condition of the goal, on
what the session has noted in `done`; so is that no other flow was gone through.
Paper: AutoWebWorld, section 4.4 and appendix B: three families of queries (from solutions, by what is seen,
questions about the last screenshot) in five modes of access (search, scrolling, slider, order, checkbox).

1. There a language model words them and drops the ambiguous ones; here templates do, or a served model whose
   words are checked (wording.py), and the records prove them.
2. No item is both searched for by its title and described by its picture.
"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

from minirl.types import Fields, Json, Task
from minirl.worlds.interpreter import State, World, parameter_values
from minirl.worlds.looks import read_table
from minirl.worlds.shop import ITEM, order_in_words
from minirl.worlds.solutions import Part, compose, in_json, list_of
from minirl.worlds.widgets import condition

WORDS = read_table("tasks")
FAMILIES = ("solution", "visual", "question")
MODES = ("search", "scroll", "slider", "sort", "checkbox")
OUT_OF_SIGHT = 9  # rows of a list before one that is to be scrolled to
COUNT = 8  # tasks of a site
TRIES = 60  # tasks that are drawn to find so many


def make_tasks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks of the length of the site's level, of as many families and modes as there
    can be. The same site gives the same tasks."""
    rng = Random(f"tasks of {world.name}")
    low, high = world.fsm.meta["steps"]
    # Tiles have one kind of task; pages have all, but nobody searches for a title that is not told.
    cells = [("solution", "plain")]
    if world.style["look"] == "pages":
        cells = list(itertools.product(FAMILIES, MODES))
        cells.remove(("visual", "search"))
    rng.shuffle(cells)
    tasks = {}
    for family, mode in itertools.islice(itertools.cycle(cells), TRIES):
        if len(tasks) == count:
            break
        draft = Draft(world, rng)
        if not draft.begin(family, mode):
            continue
        while len(compose(world, draft.parts).operations) < low and draft.extend():
            pass
        task = draft.task(f"{world.name}-{len(tasks)}", family, mode)
        if low <= task.meta["steps"] <= high:
            tasks.setdefault(task.instruction, task)
    return list(tasks.values())


def other_ways(listing: Fields, target: Json, mode: str) -> list[str]:
    """Return the ways to use a list that do not go against an instruction: none where it tells a search or a
    rank, and no search where the title is not told, or the list is to be scrolled."""
    if mode == "search" or "rank" in target:
        return []
    closed = [mode]
    if mode == "scroll" or "title" not in target:
        closed.append("search")
    return [way for way in listing["ways"] if way not in closed]


class Draft:
    """One task while it is drawn: its sentences and its parts."""

    def __init__(self, world: World, rng: Random):
        self.world = world
        self.rng = rng
        self.meta = world.fsm.meta
        self.parts = []
        self.sentences = []
        self.question = []  # sentences that come last
        self.answer = []  # in all spellings that are right

    def begin(self, family: str, mode: str) -> bool:
        """Add the part that the task is named after. Return False if the site has nothing like it."""
        lists = [one for one in self.meta["lists"] if mode in ("scroll", "plain", *one["ways"])]
        if not lists:
            return False
        listing = self.rng.choice(lists)
        sentence, find = self.find(listing, family, mode)
        if family == "question":
            self.question = [sentence, self.ask(find)]
            self.parts.append(Part(find))
        else:
            flows = [flow for flow in self.meta["flows"] if flow["list"] == listing["id"]]
            self.sentences.append(sentence)
            self.do(self.rng.choice(flows), find)
        return True

    def extend(self) -> bool:
        """Add another part. Return False if nothing is left that can be done."""
        visited = {part.find.get("list") for part in self.parts}
        others = self.other_flows()
        undone = {flow["id"] for flow in others}
        flows = [f for f in others if undone.isdisjoint(f["after"]) and f["list"] not in visited]
        if not flows:
            return False
        flow = self.rng.choice(flows)
        find = {}
        if flow["list"]:
            sentence, find = self.find(list_of(self.world, flow["list"]), "solution", "plain")
            self.sentences.append(sentence)
        self.do(flow, find)
        return True

    def other_flows(self) -> list[Json]:
        """Return what can be done on the site and is not asked for."""
        done = {part.flow.get("id") for part in self.parts}
        return [flow for flow in self.meta["flows"] if flow["id"] not in done]

    def wording(self, wordings: Sequence[str], **values: Any) -> str:
        return self.rng.choice(wordings).format(**values)

    def find(self, listing: Fields, family: str, mode: str) -> tuple[str, Json]:
        """Return a sentence by which one record of a list is to be opened, and what it says: how the list is
        set, what tells the record from all others that are shown then, its id, and in which other ways the
        list may be used as well."""
        many = listing["id"]
        way = listing["ways"].get(mode, {})
        words = {"many": many, "one": listing["one"]}
        settings = {}
        # Once a list is filtered or ordered, a record is told by its rank, and by its title in a whole list.
        if mode in ("slider", "sort", "checkbox"):
            value = self.rng.choice(way["offered"])
            settings[way["name"]] = value
            field, _, direction = str(value).partition(":")
            words["least"] = field
            words["field"] = field if direction else way["name"].partition("_")[2]
            words["direction"] = WORDS["directions"].get(direction)
            ranks = WORDS["ranks"]
            rows = self.shown(listing, settings)[: len(ranks)]
            record = self.rng.choice(rows)
            rank = rows.index(record) + 1
            words |= {"rank": ranks[rank - 1], "number": rank}
            target = {"rank": rank}
        else:
            rows = self.world.data[many]
            if mode == "scroll":
                rows = rows[OUT_OF_SIGHT:]
            record = self.rng.choice(rows)
            target = {"title": record["title"]}
        if mode == "search":
            settings[way["name"]] = record["id"]
        if family == "visual":
            target = {"colour": record["colour"], "shape": record["shape"]}
        kind, *_ = target
        setting = self.wording(WORDS["modes"][mode], **words)
        opening = self.wording(WORDS["targets"][kind], **{**record, **words})
        find = {
            "list": many,
            "set": settings,
            "target": target,
            "item": record["id"],
            "others": other_ways(listing, target, mode),
        }
        return f"{setting} and {opening}", find

    def shown(self, listing: Fields, settings: Json) -> list[Fields]:
        """Return the records that a list shows, in their order, once it is set like this."""
        many = listing["id"]
        page = listing["page"]
        filled_in = {f"{many}_{name}": value for name, value in settings.items()}
        state = State(page, self.world.fsm.pages[page].defaults | filled_in)
        records = {record["id"]: record for record in self.world.data[many]}
        choices = parameter_values(self.world, state, f"{page}_OPEN")
        return [records[params[listing["one"]]] for params in choices]

    def do(self, flow: Json, find: Json) -> None:
        """Add a flow, on the item that is opened by `find`, with a value for all that it asks."""
        values = {name: self.rng.choice(offered) for name, offered in flow["asks"].items()}
        asks = ""
        for name, value in values.items():
            wordings = WORDS["asks"].get(name, WORDS["asks"]["text"])
            asks += ", " + self.wording(wordings, name=name, value=value)
        wordings = WORDS["flows"].get(flow["id"], WORDS["flows"]["item"])
        self.sentences.append(self.wording(wordings, verb=flow["verb"], asks=asks))
        self.parts.append(Part(find, flow, values))

    def ask(self, find: Json) -> str:
        """Return a question about a record, whose answer is noted."""
        many = find["list"]
        (record,) = [one for one in self.world.data[many] if one["id"] == find["item"]]
        units = self.world.style["facts"][many]
        names = [name for name in ("colour", "shape", *units) if not isinstance(record[name], bool)]
        fact = self.rng.choice(names)
        value = str(record[fact])
        self.answer = list(dict.fromkeys([value, units.get(fact, "{}").format(value)]))
        questions = WORDS["questions"]
        question = self.wording(questions.get(fact, questions["number"]), field=fact)
        return self.wording(questions["ask"], fact=question)

    def task(self, id: str, family: str, mode: str) -> Task:
        """Return the task, whose goal is that all that it names is noted, and nothing else is done."""
        goal: Json = {"where": []}

        def expect(place: str, notes: Fields) -> None:
            for name, value in notes.items():
                goal["where"].append(condition(f"done.{place}.{name}", "eq", value))

        for part in self.parts:
            item = {}
            if part.find:
                item = {"item": part.find["item"]}
                expect(part.find["list"], {**item, **part.find["set"]})
            if part.flow:
                expect(part.flow["id"], {**part.values, **item})
        for flow in self.other_flows():
            expect(flow["id"], {"item": None})
        if self.answer:
            goal["answer"] = self.answer
        walk = compose(self.world, self.parts)
        # A slider is beyond the text agent, which has no drag.
        meta = {
            "world": self.world.name,
            "site": self.meta["theme"],
            "level": self.meta["level"],
            "family": family,
            "mode": mode,
            "steps": len(walk.operations),
            "agents": ["visual"] if "drag" in walk.operations else ["visual", "text"],
            "finds": [part.find for part in self.parts if part.find],
            "solution": in_json(walk.steps),
        }
        return Task(id, self.text(), f"http://{self.world.name}.test/", goal, meta)

    def text(self) -> str:
        """Return the instruction; a site of tiles speaks as shops do, for the smallest models."""
        if self.world.style["look"] == "tiles":
            (part,) = self.parts
            return order_in_words({ITEM: part.find["item"], **part.values})
        sentences = [*self.sentences, *self.question]
        return " ".join(f"{one[0].upper()}{one[1:]}." for one in sentences)
