"""What is to be done on a generated site, in words: instructions, goals, and proof that each means one thing.

    an item, told by family and mode, + what to do with it, + what else the level asks --> Task

`make_tasks` draws them; the machine's search says how long each takes, and only those of the level's length
stay. An item is told so that of all records that the list then shows exactly one fits (`fitting`), and all
that the instruction names is a condition of the goal, on what the session has noted in `done`.
Paper: AutoWebWorld, section 3.4: three families of queries (from solutions, by what is seen, questions about
the last screenshot) in five modes of access (search, scrolling, slider, order, checkbox). Deviations: there a
language model words them and drops the ambiguous ones; here templates do, and enumeration proves them.
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
from minirl.worlds.shop import CHOICES, ITEM
from minirl.worlds.solutions import Part, compose, in_json
from minirl.worlds.widgets import condition, gui_steps

WORDS = read_table("tasks")
FAMILIES, MODES = ("solution", "visual", "question"), ("search", "scroll", "slider", "sort", "checkbox")
OUT_OF_SIGHT = 9  # rows of a list before one that is to be scrolled to
COUNT, TRIES = 8, 60  # tasks of a site, and how many are drawn for them


def make_tasks(world: World, count: int = COUNT) -> list[Task]:
    """Return up to `count` tasks of the length of the site's level, of as many families and modes as there
    can be, which visit as much of the site as they can. The same site gives the same tasks."""
    rng, used, tasks = Random(f"tasks of {world.name}"), Counter[str](), dict[str, Task]()
    low, high = world.fsm.meta["steps"]
    cells = [*itertools.product(FAMILIES, MODES)]
    if world.style["look"] == "tiles":
        cells = [("solution", "plain")]
    rng.shuffle(cells)
    for family, mode in itertools.islice(itertools.cycle(cells), TRIES):
        draft = Draft(world, rng, used)
        if len(tasks) == count:
            break
        if not draft.main(family, mode):
            continue
        draft.extend(low)
        goal = {"where": draft.where} | ({"answer": draft.answer} if draft.answer else {})
        steps = compose(world, draft.parts)
        work = operations_of(world, steps)
        if low <= len(work) <= high and draft.text not in tasks:
            used.update(draft.flows)
            able = ["visual"] if "drag" in work else ["visual", "text"]
            meta = {"world": world.name, "site": world.fsm.meta["theme"], "level": world.fsm.meta["level"]}
            meta |= {"family": family, "mode": mode, "steps": len(work), "agents": able, "finds": draft.finds}
            meta["solution"] = in_json(steps)
            id = f"{world.name}-{len(tasks)}"
            tasks[draft.text] = Task(id, draft.text, f"http://{world.name}.test/", goal, meta)
    return list(tasks.values())


def operations_of(world: World, steps: Sequence[Step]) -> list[str]:
    """Return the names of the operations that a path takes."""
    state, out = initial_state(world.fsm), []
    for step in steps:
        out += [gui["op"] for gui in gui_steps(world, state, step)]
        state = apply(world.fsm, state, step.action_id, step.params)
    return out


def fitting(world: World, find: Mapping[str, Any]) -> list[str]:
    """Return the ids of all records that an instruction may mean: those that the list shows, set as told, and
    that have the told place, title or picture.

    >>> fitting(world, {"list": "rooms", "set": {"least_price": 200}, "target": {"rank": 2}})
    ['room-17']
    """
    page = next(one["page"] for one in world.fsm.meta["lists"] if one["id"] == find["list"])
    told = {f"{find['list']}_{name}": value for name, value in find["set"].items()}
    state = State(page, {**world.fsm.pages[page].defaults, **told})
    shown = [next(iter(params.values())) for params in parameter_values(world, state, f"{page}_OPEN")]
    target, records = find["target"], {record["id"]: record for record in world.data[find["list"]]}
    if "rank" in target:
        return shown[target["rank"] - 1 : target["rank"]]
    return [id for id in shown if all(records[id][name] == value for name, value in target.items())]


class Draft:
    """One task while it is drawn: its sentences, its conditions, and the flows that it goes through."""

    def __init__(self, world: World, rng: Random, used: Counter[str]):
        self.world, self.rng, self.used = world, rng, used
        self.lists = {one["id"]: one for one in world.fsm.meta["lists"]}
        self.flows_of = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
        self.before, self.sentences, self.after = list[str](), list[str](), list[str]()
        self.where, self.finds, self.flows = list[Json](), list[Json](), list[str]()
        self.answer, self.size = list[str](), 1
        self.parts = list[Part]()

    @property
    def text(self) -> str:
        if self.world.style["look"] == "tiles":  # which speak as shops do, for the smallest models
            told = {one["path"].rpartition(".")[2]: one["value"] for one in self.where}
            phrases = [CHOICES[ITEM if name == "item" else name]["phrase"] for name in told]
            return "".join(map(str.format, phrases, told.values())) + "."
        said = [*self.before, *self.sentences, *self.after]
        return " ".join(f"{one[0].upper()}{one[1:]}." for one in said)

    def say(self, wordings: Sequence[str], **values: Any) -> str:
        return self.rng.choice(wordings).format(**values)

    def main(self, family: str, mode: str) -> bool:
        """Add the part that the task is named after. Return False if the site has nothing like it."""
        lists = [one for one in self.lists.values() if mode in ("scroll", "plain") or mode in one["ways"]]
        if not lists:
            return False
        of = self._least_used(lists)
        if not (found := self._find(of, family, mode)):
            return False
        sentence, record = found
        if family == "question":
            self.after = [sentence, self._question(of, record)]
            self.parts.append(Part(self.finds[-1]))
            self.size += 3
        else:
            flows = [flow for flow in self.flows_of.values() if flow["list"] == of["id"]]
            self.do(self._least_used(flows), sentence, record["id"])
        return True

    def extend(self, low: int) -> None:
        """Add parts until the task is likely to take `low` operations."""
        while self.size < low + 2:
            taken = {self.flows_of[id]["list"] for id in self.flows} | {one["list"] for one in self.finds}
            left = [flow for flow in self.flows_of.values() if flow["id"] not in self.flows]
            left = [flow for flow in left if flow["list"] not in taken - {""}]
            left = [flow for flow in left if {*flow["after"]} - {"login"} <= {*self.flows}]
            if not left:
                return
            flow = self._least_used(left)
            if "login" in flow["after"] and "login" not in self.flows:
                self.do(self.flows_of["login"])
            if not flow["list"]:
                self.do(flow)
            elif found := self._find(self.lists[flow["list"]], "solution", "plain"):
                self.do(flow, found[0], found[1]["id"])

    def _least_used(self, some: Sequence[Json]) -> Json:
        least = min(self.used[one["id"]] for one in some)
        return self.rng.choice([one for one in some if self.used[one["id"]] == least])

    def _find(self, of: Json, family: str, mode: str) -> tuple[str, Json] | None:
        """Return a sentence by which one record of a list is to be opened, and the record; None if no such
        sentence means one record alone."""
        records: list[Json] = [dict(one) for one in self.world.data[of["id"]]]
        record = self.rng.choice(records[OUT_OF_SIGHT:] if mode == "scroll" else records)
        words: Json = {"many": of["id"], "one": of["one"]}
        find: Json = {"list": of["id"], "set": {}, "target": {"title": record["title"]}}
        name = of["ways"].get(mode, "")
        if mode == "search":
            find["set"][name] = record["id"]
        elif mode in ("slider", "sort", "checkbox"):
            bind = self.world.fsm.pages[of["page"]].actions[f"{of['page']}_{name.upper()}"].bind
            values = bind.values if bind else ()  # none of a box
            half = values[: max(1, len(values) // 2)]
            value = self.rng.choice(half if mode == "slider" else values) if values else True
            find["set"][name] = value
            field, _, way = str(value).partition(":")
            words |= {"least": value, "flag": name.removeprefix("only_")}
            words |= {"field": field if way else name.removeprefix("least_")}
            words |= {"direction": WORDS["directions"].get(way)}
            rank = self.rng.randint(1, len(WORDS["ranks"]))
            find["target"] = {"rank": rank}
            words |= {"rank": WORDS["ranks"][rank - 1], "number": rank}
            if not (ids := fitting(self.world, find)):
                return None
            record = next(one for one in records if one["id"] == ids[0])
        words |= {name: record.get(name) for name in ("title", "colour", "shape")}
        if family == "visual":
            find["target"] = {"colour": record["colour"], "shape": record["shape"]}
        if fitting(self.world, find) != [record["id"]]:
            return None
        self.finds.append({**find, "item": record["id"]})
        told = {"item": record["id"], **find["set"]}
        self.where += [condition(f"done.{of['id']}.{field}", "eq", value) for field, value in told.items()]
        self.size += 2 + (3 if mode == "search" else 1)
        target = next(one for one in ("rank", "title", "colour") if one in find["target"])
        setting = self.say(WORDS["modes"][mode], **words)
        return f"{setting} and {self.say(WORDS['targets'][target], **words)}", record

    def do(self, flow: Json, sentence: str = "", item: str = "") -> None:
        """Add a flow, behind the sentence that opens its item, with a value for all that it asks."""
        values = {name: self.rng.choice(offered) for name, offered in flow["asks"].items()}
        id, words = flow["id"], dict[str, Any]()
        if id == "settings":
            on = self.rng.sample(list(values), self.rng.randint(1, 2))
            values = {name: name in on for name in values}
            words["on"] = " and ".join(name.replace("_", " ") for name in on)
        else:
            told, given = WORDS["asks"], values.items()
            asked = [self.say(told.get(name, told["text"]), name=name, value=value) for name, value in given]
            words["asks"] = ", " + ", ".join(asked)
        self.where += [condition(f"done.{id}.{name}", "eq", value) for name, value in values.items()]
        if item:
            self.where.append(condition(f"done.{id}.item", "eq", item))
        said = self.say(WORDS["flows"].get(id, WORDS["flows"]["item"]), verb=flow["verb"], **words)
        place = self.before if id == "login" else self.sentences
        place += [sentence, said] if sentence else [said]
        self.parts.append(Part(self.finds[-1] if item else {}, flow, values))
        self.flows.append(id)
        self.size += 3 + sum(2 if isinstance(value, str) else 1 for value in values.values())

    def _question(self, of: Json, record: Json) -> str:
        """Return a question about a record; its answer is noted, in all spellings that are right."""
        facts = self.world.style["facts"][of["id"]]  # of which nobody need answer yes or no
        fact = self.rng.choice([n for n in ("colour", "shape", *facts) if not isinstance(record[n], bool)])
        value = str(record[fact])
        plain = facts.get(fact, "{}").removeprefix(f"{fact} ").format(value)
        self.answer = [value, plain] if plain != value else [value]
        words = WORDS["questions"].get(fact, WORDS["questions"]["number"])
        return self.say(WORDS["questions"]["ask"], fact=self.say(words, field=fact))
