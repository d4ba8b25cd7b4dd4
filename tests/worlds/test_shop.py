"""Shops by their numbers: what they draw, words that mean one thing, and orders that can be made."""

import itertools
import json
import re
from dataclasses import replace
from random import Random

import pytest
import shopping

from minirl.types import Task
from minirl.worlds.generate import THEMES, make_site
from minirl.worlds.interpreter import State, World, apply, initial_state
from minirl.worlds.render import describe
from minirl.worlds.shop import CHOICES, SHOP, cut, make_shop, make_tasks, shops_named, shops_of, tasks_of
from minirl.worlds.solutions import solution_of

FIRST = [make_site(theme, seed, "first") for seed, theme in enumerate(THEMES)]
MANY = [make_shop(n) for n in (*range(120), *range(50001, 50041), *range(90001, 90041))]


def states(world: World, task: Task) -> list[State]:
    """Before and after every step of the task's shortest solution."""
    out = [initial_state(world.fsm)]
    for step in solution_of(task, world):
        out.append(apply(world.fsm, out[-1], step.action_id, step.params))
    return out


def ids(shop: World) -> dict[str, list[str]]:
    return {name: [record["id"] for record in records] for name, records in shop.data.items()}


def controls(shop: World, page: str) -> list[str]:
    """The names of a page's controls, as the page gives them to its elements."""
    out = []
    for one in shop.fsm.pages[page].actions.values():
        selector = one.gui_procedure[0]["selector"]
        out += ids(shop)[one.bind.collection] if one.bind else [selector.removeprefix("#")]
    return out


def test_no_two_controls_of_a_page_overlap_and_none_is_too_small_or_outside():
    """In shops, and on the first level of generated sites, whose pages have at most 12."""
    numbers, boxes = set(), set()
    for world in [*MANY, *FIRST]:
        asking = [page for page in world.fsm.pages if page not in world.fsm.terminal_pages]
        assert sorted(world.style["places"]) == sorted(asking)
        for page, places in world.style["places"].items():
            assert set(places) == {"header", *controls(world, page)}, world.name
            for name, (x, y, w, h) in places.items():
                assert x >= 0 and y >= 0 and x + w <= 480 and y + h <= 360
                # at least 4 x 2 cells of 30 pixels, less the space of 3 to 6 around
                assert name == "header" or (w >= 120 - 2 * 6 and h >= 60 - 2 * 6), (world.name, name)
            for (x, y, w, h), (x2, y2, w2, h2) in itertools.combinations(places.values(), 2):
                assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y, (world.name, page)
            if world in FIRST:
                numbers.add(len(places) - 1)
                boxes |= set(places.values())
    assert max(numbers) <= 12 and len(numbers) >= 6 and len(boxes) >= 100, "number and places vary"


@pytest.mark.parametrize("n", [1, 2, 7, 20, 24])
def test_a_box_is_cut_into_parts_that_cover_it(n):
    """The window has room for 24 of the least size: then all are of that size."""
    ways = set()
    for seed in range(20):
        boxes = cut((0, 0, 16, 12), n, Random(seed))
        cells = [(i, j) for x, y, w, h in boxes for i in range(x, x + w) for j in range(y, y + h)]
        assert len(boxes) == n and len(cells) == len(set(cells)) == 16 * 12
        assert all(w >= 4 and h >= 2 for _, _, w, h in boxes)
        assert n < 24 or {(w, h) for _, _, w, h in boxes} == {(4, 2)}
        ways.add(tuple(sorted(boxes)))
    assert (len(ways) == 1) == (n in (1, 24))


def test_a_shop_asks_three_to_five_things_in_the_words_of_its_pages():
    first, second, *_ = CHOICES
    asked, sizes = set(), set()
    for shop in MANY:
        fields = [field for field, choice in CHOICES.items() if choice["collection"] in shop.data]
        assert {first, second} <= set(fields) and len(fields) == len(shop.data)
        assert sorted("_".join(shop.fsm.pages).lower().split("_")) == sorted([*fields, "done"])
        asked.add(len(fields))
        sizes |= {len(page.split("_")) for page in shop.fsm.pages}
        for field in fields:
            chosen = ids(shop)[CHOICES[field]["collection"]]
            assert 3 <= len(chosen) <= 8 and set(chosen) <= set(CHOICES[field]["words"])
        for page in shop.fsm.pages:
            buttons = [action.id for action in shop.fsm.pages[page].actions.values() if not action.bind]
            words = [shop.style["labels"][id] for id in buttons]
            words += [word for word in controls(shop, page) if "-" not in word]
            assert len(words) == len({word.lower() for word in words}) == len(controls(shop, page))
    assert (asked, sizes) == ({3, 4, 5}, {1, 2})


def test_words_are_plain_and_belong_to_one_list():
    words = [word for choice in CHOICES.values() for word in choice["words"]]
    words += map(str.lower, SHOP["buttons"].values())
    assert len(words) == len(set(words)) == 105 and all(re.fullmatch("[a-z]+", word) for word in words)
    assert set(SHOP["swatches"]) == set(CHOICES["colour"]["words"])


def test_a_number_is_a_shop_and_another_number_another():
    assert all(describe(make_shop(n)) == describe(MANY[n]) for n in range(20))
    assert len({json.dumps(describe(shop) | {"name": ""}, default=str) for shop in MANY}) == len(MANY)
    drawn = [shop.style["letters"] for shop in MANY]
    assert set(drawn) == set(range(22, 29))
    assert len({shop.style["accent"] for shop in MANY}) > 50


def test_a_shop_in_serif_is_the_same_but_for_its_letters_and_its_name():
    for shop in MANY[:20]:
        serif = make_shop(int(shop.name[5:]), serif=True)
        assert serif.name == f"{shop.name}-serif" and (serif.fsm, serif.data) == (shop.fsm, shop.data)
        assert serif.style == shop.style | {"font": "serif"} and shop.style["font"] == "sans"
        ours, theirs = make_tasks(shop, 5), make_tasks(serif, 5)
        assert [(t.instruction, t.goal) for t in ours] == [(t.instruction, t.goal) for t in theirs]
        assert {t.start_url for t in theirs} == {f"http://{serif.name}.test/"}


def test_every_order_can_be_made_and_says_its_words():
    for shop in MANY:
        tasks = make_tasks(shop, 4)
        assert len({task.instruction for task in tasks}) == len({task.id for task in tasks}) == 4
        assert len({json.dumps(task.goal) for task in tasks}) == 4
        for task in tasks[:2]:
            *before, last = states(shop, task)
            chosen = [goal["value"] for goal in task.goal["where"]]
            assert not any(shopping.holds(state, task.goal) for state in before)
            assert shopping.holds(last, task.goal)
            assert sorted(last.signature.values()) == sorted(chosen)
            said = re.findall(r"[a-z]+", task.instruction)
            assert all(said.count(word) == 1 for word in chosen)
            assert task.start_url == f"http://{shop.name}.test/"
            assert (task.meta["world"], task.meta["site"]) == (shop.name, "shops")
            assert task.meta["difficulty"] == f"{len(chosen)} things", "evaluations print rates by it"
            assert task.id == "-".join([shop.name, *chosen])
            assert json.loads(json.dumps(task.goal)) == task.goal
    for one, other in itertools.permutations(make_tasks(MANY[0], 8), 2):
        assert not shopping.holds(states(MANY[0], one)[-1], other.goal), "a state fulfils its own task only"
    assert make_tasks(MANY[7], 1)[0].instruction == "Order koala lamps in red, size huge, quantity four."


def test_all_orders_can_be_asked_for_but_no_more_and_more_change_none():
    """The first shop offers 6 colours, 4 brands and 5 categories."""
    tasks = make_tasks(MANY[0], 6 * 4 * 5)
    assert len({task.id for task in tasks}) == 120 and make_tasks(make_shop(0), 7) == tasks[:7]
    assert [task.id for task in tasks] != sorted(task.id for task in tasks), "they are not shuffled"
    with pytest.raises(ValueError, match="shop-0 has 120 different orders, not 121: name more shops"):
        make_tasks(MANY[0], 121)


def test_going_back_forgets_the_page_that_was_left():
    shop = MANY[7]  # two pages that ask two things each, and one
    state = initial_state(shop.fsm)
    for id, params in [
        ("PRODUCT_CATEGORY_CHOOSE_CATEGORY", {"category": "mugs"}),
        ("PRODUCT_CATEGORY_CHOOSE_PRODUCT", {"product": "koala"}),
        ("PRODUCT_CATEGORY_next", {}),
        ("COLOUR_SIZE_CHOOSE_COLOUR", {"colour": "red"}),
        ("COLOUR_SIZE_CHOOSE_COLOUR", {"colour": "black"}),
    ]:
        state = apply(shop.fsm, state, id, params)
    chosen = {"product": "koala", "category": "mugs"}
    assert state == State("COLOUR_SIZE", chosen | {"colour": "black", "size": None})
    assert apply(shop.fsm, state, "COLOUR_SIZE_back", {}) == State("PRODUCT_CATEGORY", chosen)


def test_a_page_goes_on_by_its_button_or_by_itself_and_back_to_the_one_before():
    kinds = set()
    for shop in MANY:
        *asking, _ = pages = list(shop.fsm.pages)
        for i, page in enumerate(asking):
            actions = shop.fsm.pages[page].actions
            on = [one for one in actions.values() if one.target == pages[i + 1] and one.is_navigation]
            back = [one for one in actions.values() if one.id.endswith("_back")]
            assert [one.target for one in back] == pages[i - 1 : i]
            gates = {name for one in on for gate in one.preconditions for name in gate.path}
            by_itself = on[0].bind is not None
            assert len(on) == 1 and gates == (set() if by_itself else set(page.lower().split("_")))
            assert not by_itself or (len(actions) == 1 + (i > 0) and page != asking[-1] and "_" not in page)
            kinds.add(by_itself)
    assert kinds == {True, False}


def test_shops_are_named_by_their_numbers():
    assert [shop.name for shop in shops_named("shops:3-5")] == ["shop-3", "shop-4", "shop-5"]
    assert [shop.name for shop in shops_named("shops:90001-90001@serif")] == ["shop-90001-serif"]
    for text in ("shop", "shops:1", "shops:1-2@bold", "shops:-1-2", "tasks.jsonl", "shops:1-2.jsonl"):
        assert shops_named(text) == []
    with pytest.raises(ValueError, match="shops:5-3: write the smaller number first"):
        shops_named("shops:5-3")


def test_tasks_go_round_the_shops_and_lead_back_to_them():
    shops = [*shops_named("shops:1-2"), *shops_named("shops:1-1@serif")]
    tasks = tasks_of(shops, 7)
    assert [task.meta["world"] for task in tasks] == [shops[i % 3].name for i in range(7)]
    assert tasks[3] == make_tasks(shops[0], 2)[1]
    found = shops_of([*tasks, replace(tasks[0], start_url="http://shop-4.test.example/")])
    assert list(map(describe, found)) == [describe(shops[i]) for i in (0, 2, 1)]
