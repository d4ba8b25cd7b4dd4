"""Sites that a served model writes: the loops, against a model that mends only what its prompt names."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
from endpoint_server import say, serve, status
from walking import walk
from worlds_command import main

from minirl.run_folder import read_records
from minirl.types import Task
from minirl.worlds.authoring import BUILD, INSTALL, OURS, REPLAYED, THEIRS, read_machine, run
from minirl.worlds.lint import check
from minirl.worlds.looks import text_of
from minirl.worlds.render import load_world
from minirl.worlds.replay import replay_sites
from minirl.worlds.search import Step

DAY = {"date": "2026-05-04"}
VUE = Path(__file__).parents[1] / "data/vue"
LINE = re.compile(r'^- (\w+) "(.*)": (\w+), ELEMENT ([\w-]+)(?:, ITEM ([\w-]+))?', re.MULTILINE)
FILE = re.compile(r"^=== (src/pages/\w+\.vue)\n(.*?)^=== end$", re.MULTILINE | re.DOTALL)
REFUSED = ["../escape.vue", "src/machine.js", "/tmp/escape.vue", "src/../../escape.vue", "vite.config.js"]


def text_in(request: dict) -> str:
    return request["messages"][0]["content"][0]["text"]


def faulty(machine: dict) -> dict[tuple[str, str], tuple]:
    """Break a machine in five ways; return, by code and place of the finding, the part and what it was."""
    home, books, book, reserved = machine["pages"]
    search, box, opens, back = books["actions"]
    copies, note, reserve, leave = book["actions"]
    right = {
        ("undeclared_write", "BOOKS: BOOKS_SEARCH"): (search["effects"][0], "path"),
        ("item_lost", "BOOKS: BOOKS_OPEN"): (book["signature_schema"], "selected_book_id"),
        ("invalid_condition", "BOOK: BOOK_RESERVE"): (reserve["preconditions"][2], "cond"),
        ("bad_selector", "BOOK: BOOK_BACK"): (leave["gui_procedure"][0], "selector"),
        ("no_procedure", "RESERVED: RESERVED_HOME"): (reserved["actions"][0], "gui_procedure"),
    }
    out = {name: (part, key, part[key]) for name, (part, key) in right.items()}
    search["effects"][0]["path"] = "$.mached_book_id"
    del book["signature_schema"]["selected_book_id"]
    reserve["preconditions"][2]["cond"] = "gt"
    leave["gui_procedure"][0]["selector"] = "button[name=back]"
    reserved["actions"][0]["gui_procedure"] = []
    return out


class Model:
    """Answers as a careful but literal author: it mends what a prompt names, and nothing else. `flaws` are
    pages that it first writes wrongly, and how."""

    def __init__(self, broken: bool = False, flaws: dict[str, str] | None = None, machine: str = ""):
        self.machine, self.flaws = json.loads(machine or text_of("author/example.json")), dict(flaws or {})
        self.repairs = faulty(self.machine) if broken else {}

    def __call__(self, request: dict) -> str:
        prompt = text_in(request)
        return self.project(prompt) if "in Vue 3" in prompt else self.design(prompt)

    def design(self, prompt: str) -> str:
        for name in list(self.repairs):
            if f": {name[1]}: " in prompt and f"[{name[0]}]" in prompt:
                part, key, right = self.repairs.pop(name)
                part[key] = right
        return f"Here it is:\n```json\n{json.dumps(self.machine)}\n```"

    def project(self, prompt: str) -> str:
        written, task = dict(FILE.findall(prompt)), prompt.split("# What is to be done now")[1]
        listed = re.split(r'^(\w+) ".*\n', prompt.split("# The pages")[1].split("# What you")[0], flags=re.M)
        actions = {id: LINE.findall(lines) for id, lines in zip(listed[1::2], listed[2::2], strict=True)}
        files = {}
        if "Write style.md" in task:
            files = {"style.md": "Plain.\n", "todo.md": "- all\n", **dict.fromkeys(REFUSED, "x\n")}
            files |= {f"src/{path.name}": path.read_text() for path in VUE.iterdir()}
        elif named := re.search(r"components of these pages: (.*)\.", task):
            files = {f"src/pages/{id}.vue": self.page(id, actions) for id in named[1].split(", ")}
        elif "Repair" in task:
            for path in written:
                id = Path(path).stem
                if path in task or any(f"{one}: " in task for one, *_ in actions[id]):
                    self.flaws.pop(id, None)
                    files[path] = self.page(id, actions)
        return "".join(f"=== {path}\n{text}=== end\n" for path, text in files.items()) or "All is well."

    def page(self, id: str, actions: dict[str, list[tuple[str, ...]]]) -> str:
        parts = [
            f'  <Action id="{one}" label="{label}" kind="{kind}" element="{element}" item="{item}" />'
            for one, label, kind, element, item in actions[id]
        ]
        text = "\n".join(parts)
        imports = 'import Action from "../Action.vue";'
        match self.flaws.get(id):
            case "syntax":
                text = text.replace("/>", ">", 1)
            case "import":
                imports += '\nimport Missing from "./Missing.vue";'
            case "outside":
                imports += '\nimport hosts from "/etc/hosts?raw";'
            case "selector":
                text = text.replace('element="', 'element="my-')
        return f"<script setup>\n{imports}\n</script>\n\n<template>\n<main>\n{text}\n</main>\n</template>\n"


@pytest.fixture(autouse=True)
def no_retries(monkeypatch):
    monkeypatch.setattr("minirl.samplers.endpoint.RETRIES", 0)


def author(out: Path, url: str, *flags: str) -> int:
    endpoint = ["--endpoint.url", url, "--endpoint.model", "m"]
    prices = ["--endpoint.price", "10", "100"]
    return main(["author", "Book shelf", "--out", str(out), *endpoint, *prices, *flags])


@pytest.fixture
def no_npm(monkeypatch):
    """What npm does, not done: packages are there, and every build fails."""
    monkeypatch.setattr("minirl.worlds.authoring.run", lambda command, folder: "no" * (command == BUILD))


def test_a_machine_with_faults_is_repaired_in_the_next_round(tmp_path, no_npm, capsys):
    """It is asked for in the size of the released hard profile."""
    model = Model(broken=True)
    with serve([say(model)]) as server:
        assert author(tmp_path / "site", server.url, "--rounds", "1") == 1
    told = [text_in(one) for one in server.requests]
    said = capsys.readouterr().out
    assert "Write 25 to 35 pages." in told[0] and "a visitor should need 6 to 8 actions." in told[0]
    assert server.requests[0]["max_tokens"] == 64_000
    assert "machine, round 0: 6 errors, 2 warnings" in said
    assert "machine, round 1: 0 errors, 0 warnings" in said
    assert "(round 1)" in told[1] and "mached_book_id" in told[1] and model.repairs == {}
    assert check(tmp_path / "site/fsm.json") == [] and load_world(tmp_path / "site").style["look"] == "pages"
    assert "still wrong with the pages: no" in said and "drawn by minirl" in said


def test_a_machine_that_stays_wrong_is_named_with_its_best_draft(tmp_path, no_npm, capsys):
    drafts = ["no machine at all", '{"meta": {}}', None, '{"pages": 3}']
    model = Model(broken=True)
    drafts[2] = model.design("")
    with serve([say(text) for text in drafts]) as server:
        assert author(tmp_path, server.url, "--rounds", "3") == 2
    assert "is without errors, which `check` tells: raise --rounds" in capsys.readouterr().err
    assert len(server.requests) == 4 == len(list(tmp_path.glob("draft-?.json")))
    assert not (tmp_path / "fsm.json").exists()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, ""),  # as it is
        ({}, ""),  # records are then invented
        ({"books": []}, "no way leads to RESERVED"),
        ({"books": "many"}, "books"),
        ([1], "data"),
        ("menu", "int"),
    ],
)
def test_records_and_menus_are_checked_too(tmp_path, data, words):
    machine = json.loads(text_of("author/example.json"))
    if data == "menu":
        machine["pages"][1]["actions"][3]["gui_procedure"][0]["ui_elements"] = {"options": 3}
    elif data is not None:
        machine["data"] = data
    (tmp_path / "draft.json").write_text(json.dumps(machine))
    _, findings, world = read_machine(tmp_path / "draft.json")
    assert (world is None) == bool(words) and len(findings) == bool(words)
    assert all(one.code == "unplayable" and words in one.message for one in findings)


def test_only_sources_below_the_project_are_written():
    good = "src/App.vue src/pages/HOME.vue src/a-b/c/d_e.js style.md todo.md src/styles.css"
    bad = "../x.vue src/../x.vue /src/x.vue src//x.vue src/.env src/x.ts src/x.html x.js vite.config.js"
    bad += " package.json .npmrc src/main.js src/machine.js src/a/../main.js node_modules/vue/a.js src\\x.js"
    assert all(THEIRS.fullmatch(path) for path in good.split())
    assert not any(THEIRS.fullmatch(path) for path in [*bad.split(), "src/x.vue\n"])


def test_what_lies_in_the_folder_is_not_run_and_a_link_in_it_not_followed(tmp_path, monkeypatch, capsys):
    folders = []
    monkeypatch.setattr(
        "minirl.worlds.authoring.run", lambda command, at: folders.append(at) or "no" * (command == BUILD)
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "site/vue/src").mkdir(parents=True)
    (tmp_path / "site/vue/src/pages").symlink_to(tmp_path / "elsewhere")
    with serve([say(Model())]) as server:
        assert author(tmp_path / "site", server.url, "--rounds", "0") == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
    said = capsys.readouterr().out
    assert all(f"refused to write {path}" in said for path in REFUSED)
    assert len(folders) == 2 and not any(folder.is_relative_to(tmp_path) for folder in folders)
    for path in OURS:
        ours, there = text_of(f"author/{Path(path).name}"), (tmp_path / "site/vue" / path.removesuffix(".j2"))
        assert there.read_text() == ours or path.endswith(".j2")


def test_npm_and_what_it_runs_get_no_key_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    log = run(("sh", "-c", "env; exit 1"), tmp_path)
    names = set(re.findall(r"^(\w+)=", log, re.MULTILINE))
    assert {"PATH", "HOME"} < names <= {"PATH", "HOME", "NO_COLOR", "PWD", "OLDPWD", "SHLVL", "_"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A project with its packages, and without sources."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not there")
    folder = tmp_path_factory.mktemp("vue")
    for name in ("package.json", "vite.config.js"):
        (folder / name).write_text(text_of(f"author/{name}"))
    (folder / "index.html").write_text(
        '<div id="app"></div><script type="module" src="/src/main.js"></script>'
    )
    assert run(INSTALL, folder) == ""
    (folder / "src").mkdir()
    return folder


STYLE = """<script setup>import { useCssModule } from "vue"; const s = useCssModule();</script>
<template><p :class="s.a">{{ s }}</p></template><style module>%s</style>"""
SHOWN = "import x from '%s'; document.title = x;"
WORKER = "import x from 'SECRET?raw'; postMessage(x);"
THIEVES = {
    "composes": {"App.vue": STYLE % '.a { composes: b from "SECRET"; }'},
    "value": {"App.vue": STYLE % '@value b from "SECRET"; .a { color: b; }'},
    "module": {
        "a.module.css": '.a { composes: b from "SECRET"; }',
        "main.js": 'import s from "./a.module.css"; alert(s);',
    },
    "worker": {"w.js": WORKER, "main.js": SHOWN % "./w.js?worker&inline"},
    "shared worker": {"w.js": WORKER, "main.js": SHOWN % "./w.js?sharedworker&inline"},
    "worker's address": {"w.js": WORKER, "main.js": SHOWN % "./w.js?worker&url"},
    "raw": {"main.js": SHOWN % "SECRET?raw"},
    "environment": {"main.js": "document.title = JSON.stringify(import.meta.env);"},
}


@pytest.mark.slow
@pytest.mark.parametrize("files", THIEVES.values(), ids=THIEVES)
def test_a_page_reads_neither_files_nor_the_environment(project, tmp_path, monkeypatch, files):
    """What a build reads stands in its log, which a served model is sent, or in the page."""
    monkeypatch.setenv("VITE_KEY", "the secret key")
    secret = tmp_path / "secret"
    secret.write_text("the secret key {")
    usual = 'import { createApp } from "vue"; import App from "./App.vue"; createApp(App).mount("#app");'
    for name, text in {"main.js": usual, **files}.items():
        (project / "src" / name).write_text(text.replace("SECRET", str(secret)))
    shutil.rmtree(project / "dist", ignore_errors=True)
    log = run(BUILD, project)
    built = "".join(path.read_text() for path in (project / "dist").rglob("*.*"))
    assert (log or built) and "secret key" not in log + built


def test_a_budget_that_is_used_ends_the_run_and_the_next_one_goes_on(tmp_path, no_npm, capsys):
    """100 and 20 tokens an answer, for $10 and $100 a million: $0.003 each."""
    model = Model(broken=True)
    with serve([say(model)]) as server:
        assert author(tmp_path, server.url, "--dollars", "0.007") == 2
        assert len(server.requests) == 3, "the third one exceeds it"
        problem = capsys.readouterr().err
        assert "the budget is used, $0.01: raise --dollars; the same command goes on" in problem
        assert author(tmp_path, server.url, "--rounds", "1") == 1
        asked = len(server.requests)
        said = capsys.readouterr().out
    texts = [json.dumps(one["messages"]) for one in server.requests]
    assert asked == 6 and len(set(texts)) == asked, "none is asked twice"
    assert "3 requests, 0 failed; 300 + 60 tokens, $0.01" in said
    assert "Book shelf: machine $0.0000, pages $0.0090" in said


@pytest.mark.parametrize(
    ("act", "words"),
    [(status(401), "Error code: 401"), (say("{", finish="length"), "an answer was cut off: raise --tokens")],
)
def test_no_answer_ends_the_run_with_one_line(tmp_path, no_npm, capsys, act, words):
    with serve([say(Model()), act]) as server:
        assert author(tmp_path, server.url) == 2
    problem = capsys.readouterr().err
    assert words in problem and "the same command goes on from here" in problem
    assert (tmp_path / "index.html").is_file(), "the machine is there, and drawn by us"


def test_without_npm_nothing_is_asked(tmp_path, monkeypatch, capsys):
    for name in ("env", "timeout"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with serve([say("x")]) as server:
        assert author(tmp_path / "site", server.url) == 2
    assert "Node.js, 20.19 or newer, and its npm" in capsys.readouterr().err and server.requests == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not there")
def test_a_project_is_repaired_from_its_log_and_builds_and_plays(tmp_path, capsys):
    """With a real npm: three builds fail, then a page is not what the machine says. What is built is a
    site like any other, and a run that is repeated asks nothing and ends the same."""
    flaws = {"BOOKS": "syntax", "BOOK": "outside", "RESERVED": "import", "HOME": "selector"}
    out, model = tmp_path / "book-shelf", Model(flaws=flaws)
    with serve([say(model)]) as server:
        assert author(out, server.url, "--rounds", "5") == 0
        asked, said = len(server.requests), capsys.readouterr().out
        assert [*re.findall("pages, round .: (.*)", said)][-2:] == ["1 faults", "0 faults"]
        assert "not built" in said and model.flaws == {}
        tasks = [text_in(one).split("# What is to be done now")[-1] for one in server.requests]
        assert any("not a file of this project" in task for task in tasks)
        assert not any("localhost" in task for task in tasks), "nothing of it is told"
        page = (out / "index.html").read_text()
        assert author(out, server.url, "--rounds", "5") == 0
        assert len(server.requests) == asked and (out / "index.html").read_text() == page
    world = load_world(out)
    assert world.style["look"] == "built" and world.html == page and "src=" not in page.split("<script")[0]
    assert not list(tmp_path.glob("**/escape.vue")) and not Path("/tmp/escape.vue").exists()
    capsys.readouterr()
    assert main(["replay", str(out), "--browser.browsers", "1"]) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not there")
def test_every_widget_is_played_as_the_prompt_describes_it(tmp_path, capsys):
    """Searched, scrolled, filtered, ordered, and a day chosen; with invented records."""
    machine = (VUE.parent / "lending_library.fsm.json").read_text()
    with serve([say(Model(machine=machine))]) as server:
        assert author(tmp_path / "library", server.url, "--rounds", "0") == 0, capsys.readouterr().out
    world, tasks = load_world(tmp_path / "library"), read_records(tmp_path / "library/tasks.jsonl", Task)
    assert len(tasks) == 13 and tasks[0].meta["world"] == "library"
    start = [Step("COOKIE"), Step("GO_BOOKS_HOVER")]
    book = {"book_id": "book_4"}
    for name, steps in {
        "box": [Step("BOOKS_FILTER_CHECKBOX")],
        "slider": [Step("BOOKS_FILTER_SLIDER", {"slider": 3})],
        "order": [Step("BOOKS_SORT")],
        "scroll": [Step("BOOKS_SCROLL_BOOK_INTO_VIEW", book)],
        "date": [Step("BOOKS_SEARCH", book), Step("BOOKS_OPEN_MATCHED", book), Step("BOOK_PICK_DATE", DAY)],
    }.items():
        tasks.append(walk(world, [*start, *steps], name))
    replays = asyncio.run(replay_sites([world], REPLAYED, tasks))
    assert {one.task.id: one.reason for one in replays if one.reason} == {} and len(replays) == 18
