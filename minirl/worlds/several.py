"""Tasks over two sites: the password for one is in the other's mail, or both are to be compared.

    make_pair --> two sites and tasks --> goal {"sites": {name: goal}} --share_over--> all tabs

Every site lives in a tab of its own, which is open at the start (meta.tabs) or is to be opened. The goal has
conditions on both; of several tabs with the same site the best one counts. `visits` in a task's meta say in
which order the shortest solution goes through them, and how many steps it takes there.
Not in a paper: AutoWebWorld's tasks stay on one site.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any
from urllib.parse import urlsplit

from minirl.types import Session, Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.generate import THEMES, VOCABULARY, make_site
from minirl.worlds.interpreter import State, World, share_met
from minirl.worlds.render import read_state
from minirl.worlds.search import solve
from minirl.worlds.tables import read_table
from minirl.worlds.tasks import Draft, operations_of
from minirl.worlds.widgets import Json, condition

WORDS = read_table("several")
LEAST = 3  # things that two sites to be compared must both have


async def states_of(session: Session) -> dict[str, list[State]]:
    """Return the states of all tabs by their sites' names."""
    out: dict[str, list[State]] = {}
    for page in session.context.pages:
        state = await session.do(read_state(page))
        if state is not None:
            name = str(urlsplit(page.url).hostname).removesuffix(".test")
            out.setdefault(name, []).append(state)
    return out


def share_over(states: Mapping[str, Sequence[State]], goal: Mapping[str, Any]) -> float:
    """Return how much of a goal over several sites holds: the mean of what holds on each."""
    wanted = load_goal(goal).sites
    met = [max((share_met(s, own) for s in states.get(name, ())), default=0) for name, own in wanted.items()]
    return sum(met) / len(met)


def make_pair(seed: int, count: int, skin: str = "") -> tuple[list[World], list[Task]]:
    """Return two sites, and up to `count` tasks over both: of even seeds with a password, of odd ones with a
    comparison. The same seed gives the same."""
    kind, rng = ("code", "compare")[seed % 2], Random(f"pair {seed}")
    left_out = ("mail", *VOCABULARY["bench"]["themes"])
    theme = rng.choice([name for name in THEMES if name not in left_out])
    sites, drafts = (_compare if kind == "compare" else _code)(theme, seed, skin, rng)
    sites = [replace(site, name=f"{kind}-{seed}-{n}") for n, site in enumerate(sites)]
    rng.shuffle(drafts)
    return sites, [_task(f"{kind}-{seed}-{n}", sites, draft, rng) for n, draft in enumerate(drafts[:count])]


def _code(theme: str, seed: int, skin: str, rng: Random) -> tuple[list[World], list[Json]]:
    """Return a site whose messages each tell one user's password for the other, and what is to be done."""
    mail, shop = make_site("mail", seed, "easy", skin), make_site(theme, seed, "hard", skin)
    asks = next(flow["asks"] for flow in shop.fsm.meta["flows"] if flow["id"] == "login")
    messages, drafts = [dict(one) for one in mail.data["messages"]], list[Json]()
    for user, message in zip(asks["user"], rng.sample(messages, len(asks["user"])), strict=True):
        told = {"user": user, "password": rng.choice(asks["password"])}
        message["text"] = WORDS["code"]["message"].format(**told, second=shop.style["brand"])
        login = [condition(f"done.login.{name}", "eq", value) for name, value in told.items()]
        wheres = [condition("done.messages.item", "eq", message["id"])], login
        drafts.append({"kind": "code", "wheres": wheres, "user": user})
    return [replace(mail, data={"messages": tuple(messages)}), shop], drafts


def _compare(theme: str, seed: int, skin: str, rng: Random) -> tuple[list[World], list[Json]]:
    """Return two sites of a theme that have things in common and ask for the same, and what is to be done."""
    entity = THEMES[theme].entities[0]
    many, number = entity.plural, entity.numbers[0].name
    other = seed
    while True:  # some dozens of others are enough
        other += 1000
        sites = [make_site(theme, one, "easy", skin) for one in (seed, other)]
        flows, drafts = [site.fsm.meta["flows"][0] for site in sites], list[Json]()
        rows = [{row["title"]: row for row in site.data[many]} for site in sites]
        for title in sorted(rows[0].keys() & rows[1].keys()):
            pair = [row[title] for row in rows]
            low = min((0, 1), key=lambda n: pair[n][number])
            done = Draft(sites[low], rng, Counter())
            done.do(flows[low], item=pair[low]["id"])
            wheres = [[condition(f"done.{many}.item", "eq", one["id"])] for one in pair]
            wheres[low] += done.where
            wheres[1 - low].append(condition(f"done.{flows[low]['id']}.item", "eq"))  # nothing there
            words = {"title": title, "number": number, "done": done.sentences[0]}
            if pair[0][number] != pair[1][number]:
                drafts.append({"kind": "compare", "wheres": wheres, **words})
        is_other = sites[0].style["brand"] != sites[1].style["brand"]
        if is_other and flows[0]["asks"].keys() == flows[1]["asks"].keys() and len(drafts) >= LEAST:
            return sites, drafts


def _task(id: str, sites: Sequence[World], draft: Json, rng: Random) -> Task:
    """Return a task on two sites: the second is looked at before anything is done on the first."""
    paths = [solve(*one) or [] for one in zip(sites, ({"where": w} for w in draft["wheres"]), strict=True)]
    opens = f"{sites[0].fsm.meta['lists'][0]['page']}_OPEN"
    first = [step.action_id for step in paths[0]].index(opens) + 1
    counts = [(0, first), (1, len(paths[1])), (0, len(paths[0]) - first)]
    visits = [(sites[n].name, count) for n, count in counts if count]
    work = [name for path in zip(sites, paths, strict=True) for name in operations_of(*path)]
    names, urls = [site.name for site in sites], [f"http://{site.name}.test/" for site in sites]
    words = {"first": sites[0].style["brand"], "second": sites[1].style["brand"], "url": urls[1], **draft}
    is_open = rng.random() < 0.5
    said = [rng.choice(WORDS[draft["kind"]]["asks"]), WORDS["tabs"]["open" if is_open else "closed"]]
    goal = {"sites": {name: {"where": where} for name, where in zip(names, draft["wheres"], strict=True)}}
    meta = {"site": "several", "family": draft["kind"], "mode": "tabs", "visits": visits}
    meta |= {"tabs": urls[1:] * is_open, "steps": len(work) + len(visits) - is_open}
    meta["agents"] = ["visual", "text"] if is_open and "drag" not in work else ["visual"]
    return Task(id, ". ".join(said).format(**words), urls[0], goal, meta)
