"""Doors: what stands in a visitor's way on a site until it is noticed and answered.

    a site's fsm.json --add_doors--> the same with gates, answers and detours --> load_fsm

A door is an ordinary part of the machine, so search, interpreter, lint, replay and both agents need to know
nothing of it. What opens it is counted in the session's `done.doors`, never by a clock or by chance. Words
stand in doors.toml, and widgets.js draws them. Not in a paper: AutoWebWorld's sites have a cookie banner.
"""

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from minirl.worlds.tables import read_table
from minirl.worlds.widgets import Json, action, condition, control, effect

DOORS: Json = read_table("doors")
SELLS_OUT = ("option", "date")  # what a form asks for, and may be gone a moment later


def add_doors(document: Json, labels: dict[str, str], count: int, rng: Random) -> None:
    """Put up to `count` doors of different kinds into a generated site, and note in meta.doors which."""
    carpenter = Carpenter(document, labels, rng)
    for kind in rng.sample(list(DOORS), len(DOORS)):
        if len(document["meta"]["doors"]) < count:
            getattr(carpenter, DOORS[kind]["how"])(kind)
    document["pages"] = list(carpenter.pages.values())


class Carpenter:
    """Puts doors into the pages of one site; a kind for which there is no place is left out."""

    def __init__(self, document: Json, labels: dict[str, str], rng: Random):
        self.meta, self.labels, self.rng = document["meta"], labels, rng
        self.pages: dict[str, Json] = {page["id"]: page for page in document["pages"]}
        self.done: Json = document["pages"][0]["signature_schema"]["done"]  # which all pages share
        self.meta["doors"], self.done["doors"] = [], {}
        self.gates = defaultdict[str, list[Json]](list)  # of doors, by pages
        lists, items = zip(*((one["page"], one["one"].upper()) for one in self.meta["lists"]), strict=True)
        self.places = {"lists": lists, "items": items}

    def shut(self, kind: str) -> None:
        """Shut a page until its answer has been given so often."""
        page, times = self.rng.choice(self.places[DOORS[kind]["where"]]), DOORS[kind]["times"]
        field = self._gate(kind, "integer", page, "gte", times)
        to = self.meta["initial_page_id"] if "restarts" in DOORS[kind] else ""
        self._add(kind, page, "door", [condition(field, "lt", times)], [effect("inc", field)], to)

    def pop_up(self, kind: str) -> None:
        """Open a box over a page as soon as something was set there other than by typing, key by key."""
        places = [id for id in self.pages if id.endswith("_FORM") or id in self.places["items"]]
        found = [(id, one) for id in places for one in self.pages[id]["actions"] if not one["is_navigation"]]
        setters = [(id, one) for id, one in found if one.get("name") != "type"]
        page = self.rng.choice(list(dict(setters)))
        field = self._gate(kind, "array<string>", page, "neq", ["due"])
        for one in (one for id, one in setters if id == page):
            one["effects"].append(effect("append_unique", field, value="due"))
        closed = effect("append_unique", field, value="closed")
        self._add(kind, page, "door", [condition(field, "eq", ["due"])], [closed])

    def sell_out(self, kind: str) -> None:
        """Let one choice of a form be gone whenever its review is opened with it; the session notes it."""
        flows = ((flow, flow["id"].upper(), n) for n, flow in enumerate(self.meta["flows"]))
        reviewed = [one for one in flows if f"{one[1]}_REVIEW" in self.pages]
        if places := [(*one, name) for one in reviewed for name in one[0]["asks"] if name in SELLS_OUT]:
            flow, id, n, name = self.rng.choice(places)
            gone, chosen, page = self.rng.choice(flow["asks"][name]), f"{name}_{n}", f"{id}_REVIEW"
            noted = self._gate(kind, "string|null", page, "neq", gone, chosen)
            answer = [effect("set", noted, value=gone), effect("clear", chosen)]
            self._add(kind, page, "door", [condition(chosen, "eq", gone)], answer, f"{id}_FORM", name)
            left = [value for value in flow["asks"][name] if value != gone]
            flow |= {"asks": flow["asks"] | {name: left}, "sold_out": name, "gone": gone}

    def imitate(self, kind: str) -> None:
        """Put before a flow's last button one that looks like it, and leads to a page of its own."""
        page, meant = self.rng.choice(self._actions("_FINISH_"))
        id, home = kind.upper(), self.meta["initial_page_id"]
        self._add(kind, page, "button", to=id, what=self.labels[meant["id"]], before=meant)
        back = action(f"{id}_BACK", id, control("button", f"#{kind}-back"), home)
        self.pages[id] = {"id": id, "signature_schema": {"done": self.done}, "actions": [back]}
        self.labels |= {id: DOORS[kind]["title"], back["id"]: "Back"}

    def require(self, kind: str) -> None:
        """Let a form want a tick that no task speaks of."""
        leaving = self._actions("_FORM_REVIEW_", "_FORM_FINISH_")
        if plain := [(page, leave) for page, leave in leaving if not leave["parameters"]]:  # can complain
            page, leave = self.rng.choice(plain)
            self.pages[page]["signature_schema"][kind] = "boolean"
            self._add(kind, page, "checkbox", before=leave)
            leave["preconditions"].append(condition(kind, "eq", True))

    def _actions(self, *named: str) -> list[tuple[str, Json]]:
        every = [(page, one) for page, found in self.pages.items() for one in found["actions"]]
        return [(page, one) for page, one in every if any(part in one["id"] for part in named)]

    def _gate(self, kind: str, type: str, page: str, cond: str, value: object, field: str = "") -> str:
        """Let all actions of a page wait for a field, by default the session's note. Return that note."""
        noted, self.done["doors"][kind] = f"done.doors.{kind}", type
        self.gates[page].append(condition(field or noted, cond, value))
        for one in self.pages[page]["actions"]:
            one["preconditions"].append(self.gates[page][-1])
        return noted

    def _add(
        self, kind: str, page: str, widget: str, gates: Sequence[Json] = (), effects: Sequence[Json] = (),
        to: str = "", what: str = "", before: Json | None = None,
    ) -> None:  # fmt: skip
        """Add an action to a page, `before` another one and under the same doors, and note it."""
        says, used = self.rng.choice(DOORS[kind]["says"]), control(widget, f"#door-{kind}", kind)
        words = {name: text.format(what=what) for name, text in says.items()}
        label, actions = words.pop("button"), self.pages[page]["actions"]
        shared = self.gates[page] if before else []
        made = action(f"{page}_{kind.upper()}", page, used, to, [*gates, *shared], effects)
        made["parameters"] = made["parameters"] | words
        actions.insert(actions.index(before) if before else len(actions), made)
        self.labels[made["id"]] = label
        self.meta["doors"].append({"kind": kind, "page": page})
