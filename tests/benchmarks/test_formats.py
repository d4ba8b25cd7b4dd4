"""Task files of public benchmarks: every format is recognised, and what is broken is named, never raised."""

import json
from collections import Counter
from pathlib import Path

import pytest

from minirl.benchmarks.task_files import load_tasks, parse_task
from minirl.run_folder import save_tasks
from minirl.types import Task

FARA = Path(__file__).parents[1] / "data" / "webvoyager" / "fara_595.jsonl"

WEBVOYAGER = {"web_name": "Apple", "id": "Apple--3", "ques": "Compare.", "web": "https://www.apple.com/"}
SHOP = {"category": "Kitchen", "difficulty": "easy", "attribute": "red", "filter": "under $9"}
SHOP["sort"] = "**"
DEEPSHOP = {"id": 17, "ques": "Find a mug.", "web": "https://www.amazon.com/", "web_name": "Amazon", **SHOP}
MIND2WEB = {"task_id": "ab12", "confirmed_task": "Book a table.", "reference_length": 7, "level": "hard"}
MIND2WEB["website"] = "https://www.tables.example.com/"
GYM = {"difficulty": "easy", "domain": "Food", "metadata": {"reference_length": 5}}
GYM["evaluator_reference"] = [{"id": 1, "description": "booked", "facts": ["a table"]}]
WEBGYM = GYM | {"benchmark_name": "Online_Mind2Web", "task_name": "Book a table.", "task_id": "ab13"}
WEBGYM |= {"website": "tables.example.com", "definite_answer": None, "task_id_decomposed_from": ""}
PAE = {"task_id": "pae/4", "start_url": "http://a.example/ |AND| http://b.example/x", "task": "Look."}
OPENWEBRL = {"prompt": [{"role": "user", "content": "x"}], "metadata": PAE}
EVALUATED = {"intent": "Buy.", "start_url": "https://www.a.example/", "task_id": 9, "difficulty": 2}
EVALUATED |= {"benchmark_name": "deepshop", "require_login": True}
RECORDS = {
    "webvoyager": WEBVOYAGER,
    "deepshop": DEEPSHOP,
    "mind2web": MIND2WEB,
    "webgym": WEBGYM,
    "openwebrl": OPENWEBRL,
    "evaluation": {"metadata": EVALUATED},
    "own": {"id": "a", "instruction": "buy", "start_url": "http://a.test/", "goal": {}, "meta": {}},
}


def published(name: str, instruction: str, url: str, benchmark: str, site: str, **meta: object) -> Task:
    return Task(name, instruction, url, {}, {"benchmark": benchmark, "site": site, **meta})


TABLE = ("Book a table.", "https://www.tables.example.com/")
M2W = ("online-mind2web", "tables.example.com")
TABS = {"tabs": ["http://b.example/x"]}
LOGIN = {"difficulty": 2, "require_login": True}
EXPECTED = {
    "webvoyager": published("Apple--3", "Compare.", "https://www.apple.com/", "webvoyager", "Apple"),
    "deepshop": published("17", "Find a mug.", "https://www.amazon.com/", "deepshop", "Amazon", **SHOP),
    "mind2web": published("ab12", *TABLE, *M2W, difficulty="hard", reference_length=7),
    "webgym": published("ab13", TABLE[0], "https://tables.example.com", *M2W, **GYM),
    "openwebrl": published("pae/4", "Look.", "http://a.example/", "webgym", "a.example", **TABS),
    "evaluation": published("9", "Buy.", "https://www.a.example/", "deepshop", "a.example", **LOGIN),
    "own": Task("a", "buy", "http://a.test/"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_becomes_a_task(name):
    assert parse_task(RECORDS[name]) == EXPECTED[name]


def test_webgyms_other_names_and_the_older_edition_of_online_mind2web():
    other = parse_task({**WEBGYM, "benchmark_name": "PAE WebVoyager", "difficulty": 4})
    assert (other.meta["benchmark"], other.meta["difficulty"]) == ("pae-webvoyager", 4)
    older = {"task_id": "1", "website": "https://a.example/", "task_description": "Do."}
    assert parse_task(older).instruction == "Do." and "difficulty" not in parse_task(older).meta


def test_the_595_tasks_of_fara():
    tasks = load_tasks(FARA)
    assert len(tasks) == 595 and {task.meta["benchmark"] for task in tasks} == {"webvoyager"}
    assert Counter(task.meta["site"] for task in tasks).most_common(1) == [("Wolfram Alpha", 46)]
    assert tasks[3].id == "Allrecipes--4" and tasks[3].start_url == "https://www.allrecipes.com/"


def test_a_json_array_is_a_task_file_however_it_is_laid_out(tmp_path):
    path = tmp_path / "tasks.txt"
    for indent in (None, 2):
        path.write_text("\ufeff\n " + json.dumps(list(RECORDS.values()), indent=indent))
        assert load_tasks(path) == list(EXPECTED.values())
    save_tasks(path, list(EXPECTED.values()))
    assert load_tasks(path) == list(EXPECTED.values()), "they survive our own format"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[\n{},\n", r"tasks: .* line 3 column 1 "),
        (json.dumps([WEBVOYAGER, {"ques": "?"}]), "tasks, record 2: id: Field required"),
        (json.dumps(WEBVOYAGER) + "\n{}\n", "tasks, line 2: unknown format: needed are the fields 'id', "),
        ("PAR1 and no more", "Parquet"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_broken_is_named_by_file_and_record(tmp_path, content, problem):
    path = tmp_path / "tasks"
    path.write_text(content)
    with pytest.raises(ValueError, match=problem):
        load_tasks(path)


def write_parquet(path: Path, rows: list[dict]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_parquet_files(tmp_path):
    path = tmp_path / "no-ending"
    write_parquet(path, [OPENWEBRL])
    assert load_tasks(path) == [EXPECTED["openwebrl"]]
    write_parquet(path, [MIND2WEB, {**MIND2WEB, "task_id": "b", "level": None}])
    one, two = load_tasks(path)
    assert one == EXPECTED["mind2web"] and "difficulty" not in two.meta
    write_parquet(path, [MIND2WEB, {**MIND2WEB, "task_id": None}])
    with pytest.raises(ValueError, match="no-ending, record 2: task_id: Field required"):
        load_tasks(path)
    # a column of objects has the fields of all rows; a goal of nothing but empty ones is no goal
    first = {"id": "a", "instruction": "x", "start_url": "http://a.test/", "goal": {"page": "DONE"}}
    first["meta"] = {"difficulty": "easy"}
    write_parquet(
        path, [first, first | {"id": "b", "goal": {"kind": None}, "meta": {"parts": [{"a": 1}, {"b": 2}]}}]
    )
    one, two = load_tasks(path)
    assert (one.goal, one.meta) == (first["goal"], first["meta"])
    assert (two.goal, two.meta) == ({}, {"parts": [{"a": 1}, {"b": 2}]})


MALFORMED = [
    (WEBVOYAGER, "ques", " ", "ques: String should match pattern .*, not ' '"),
    (WEBVOYAGER, "web_name", None, "web_name: Input should be a valid string, not None"),
    (WEBVOYAGER, "id", True, "id: Input should be a valid string, not True"),
    (WEBVOYAGER, "web", "apple.com", "web.0: String should match pattern .*'apple.com'"),
    (DEEPSHOP, "difficulty", [], "difficulty.*: Input should be a valid string"),
    (MIND2WEB, "website", "two words.com", "website.0: String should match pattern"),
    (WEBVOYAGER, "web", "https://a.test/, https://b.test/", "web.0: String should match pattern"),
    (WEBGYM, "benchmark_name", 3, "benchmark_name: Input should be a valid string"),
    ({}, "metadata", {}, "metadata.task_id: Field required"),
]


@pytest.mark.parametrize(("record", "field", "value", "problem"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_field_is_named(record, field, value, problem):
    with pytest.raises(ValueError, match=problem):
        parse_task({**record, field: value})
