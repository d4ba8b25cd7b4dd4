"""Recorded steps: the released reward to the letter, rows read and refused, and their episodes."""

import io
import json
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from recorded import STEPS, qwen_preprocessor, save_qwen2_5_vl, write_steps
from workers import make_worker

from minirl.advantages import assign_advantages, make_group
from minirl.agents.autowebworld import ACTIONS
from minirl.benchmarks.protocols import apply, protocol_of
from minirl.benchmarks.recorded import RecordedBenchmark, RecordedPage, demonstrations, in_box, rewards
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import drop_leaked
from minirl.config import Config, RewardConfig
from minirl.episode import conversation
from minirl.model import Preprocessor
from minirl.recipes import RECIPES
from minirl.rollout import RolloutWorker
from minirl.rows import make_rows
from minirl.run_folder import Run, save_tasks
from minirl.types import Request, Sample, Sampling, Stop, Task, Trajectory

FIXTURE = Path(__file__).parents[1] / "data/autowebworld_rewards.jsonl"
PAIRS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]
SOLUTION = re.compile(r"<action>\[\{'action': '(\w+)'(?:, 'coordinate': (\[.*\]))?\}\]</action>")


def goal_of(solution: str) -> dict:
    action, box = SOLUTION.fullmatch(solution).groups()
    return {"action": action} | ({"bbox": json.loads(box)} if box else {})


# --- the reward ------------------------------------------------------------------------------------


def test_the_reward_is_the_released_one_on_every_pair():
    assert len(PAIRS) == 300
    for pair in PAIRS:
        found = rewards(pair["prediction"], goal_of(pair["solution"]), pair["scale"])
        assert found == {name: pair[name] for name in ("action", "coordinate", "format")}, pair
    for name in ("action", "coordinate", "format"):
        assert {pair[name] for pair in PAIRS} == {0.0, 1.0}, "a reward that never changes tests nothing"


@given(st.text(max_size=60), st.sampled_from(sorted(ACTIONS)))
def test_no_response_raises(text, action):
    goal = {"action": action, "bbox": [1, 2, 3, 4]}
    huge = f"<action>{{'action': '{action}', 'coordinate': [{'9' * 5000}, 1]}}</action>"
    for response in (text, huge, f"<action>{{'action': '{action}', {text}}}</action>"):
        assert set(rewards(response, goal, (1.5, 2)).values()) <= {0.0, 1.0}


# --- rows --------------------------------------------------------------------------------------------


def test_our_rows_and_the_released_ones_are_read_and_survive_being_saved(tmp_path, png):
    past = "Step 1: <think>a</think><action>{'action': 'wait'}</action>\nStep 2: <think>b\nc</think> <action>"
    past += "{'action': 'click', 'coordinate': [3, 4]}</action>"
    rows = [*STEPS, {"action": "press_enter", "history": past}]
    rows.append({"action": "press_enter", "history": "clicked on search"})
    tasks = load_tasks(write_steps(tmp_path, png, rows))
    assert [task.goal["action"] for task in tasks] == [row["action"] for row in rows]
    assert tasks[0].goal == STEPS[0] and tasks[0].start_url == (tmp_path / "0.png").as_uri()
    assert tasks[2].goal == {"action": "type_text", "text": "blue mug"} and tasks[2].meta["size"] == [96, 64]
    steps = [["a", {"action": "wait"}], ["b\nc", {"action": "click", "coordinate": [3, 4]}]]
    assert tasks[-2].meta["past"] == steps and tasks[-2].instruction == "Do thing 9."
    assert tasks[-1].instruction == "Do thing 10.\n\nHISTORY:\nclicked on search"
    assert not tasks[-1].meta["past"]
    assert len({task.id for task in tasks}) == len(tasks)
    save_tasks(tmp_path / "saved.jsonl", tasks)
    assert load_tasks(tmp_path / "saved.jsonl") == tasks


def test_screenspot_is_read_by_platform_and_kind(tmp_path, png):
    """V2 has width and height, Pro right and bottom; V2's sources are five platforms and many sites."""
    v2 = {"bbox": [10, 20, 30, 40], "data_type": "icon", "data_source": "macos"}
    pro = {"bbox": [10, 20, 30, 40], "ui_type": "text", "platform": "linux", "application": "blender"}
    rows = [v2, v2 | {"data_source": "android"}, v2 | {"data_source": "gitlab", "data_type": "text"}, pro]
    tasks = load_tasks(write_steps(tmp_path, png, rows))
    assert [task.goal["bbox"] for task in tasks] == [[10, 20, 40, 60]] * 3 + [[10, 20, 30, 40]]
    assert {task.goal["action"] for task in tasks} == {"click"}
    places = [(task.meta["benchmark"], task.meta["site"], task.meta["difficulty"]) for task in tasks]
    v2_places = [("desktop", "icon"), ("mobile", "icon"), ("web", "text")]
    pro_place = ("screenspot-pro", "linux", "text")
    assert places == [*(("screenspot-v2", *place) for place in v2_places), pro_place]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"action": "clik"}, "action: String should match pattern .*, not 'clik'"),
        ({"action": "click", "bbox": [1, 2, 3, 4.5]}, "bbox.3: Input should be a valid integer"),
        ({"action": "wait", "instruction": " "}, "instruction: String should match pattern"),
        ({"action": "wait", "history": ["a"]}, "history: Input"),
    ],
)
def test_a_broken_record_is_named_by_file_and_number(tmp_path, png, row, problem):
    path = write_steps(tmp_path, png, [{"action": "wait"}, row])
    with pytest.raises(ValueError, match=rf"steps.json, record 2: .*{problem}"):
        load_tasks(path)


def header_only(width: int, height: int) -> bytes:
    """A PNG that only says how large it is."""
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + file.getvalue()[24:29]
    return file.getvalue()[:12] + header + struct.pack(">I", zlib.crc32(header)) + file.getvalue()[33:]


SPOT = {"img_filename": "a.png", "data_type": "text", "data_source": "web"}
CLICK = {"img_filename": "a.png", "action": "click", "bbox": [8, 40, 96, 64]}
OWN = {"id": "x", "start_url": "file://{folder}/../secret.png", "goal": {"action": "wait"}}


@pytest.mark.parametrize(
    ("size", "row", "problem"),
    [
        ((100, 30000), CLICK, "aspect ratio must be smaller than 200"),
        ((60000, 60000), CLICK, "a picture too large"),
        ((10000, 10000), CLICK, "a picture too large"),  # 100 megapixels
        ((400, 300), CLICK | {"bbox": [500, 320, 560, 340]}, "bbox: .* is no box of pixels in"),
        ((400, 300), SPOT | {"bbox": [0.5, 0.6, 0.9, 0.8]}, "bbox: .* is no box of pixels in"),
        ((400, 300), SPOT | {"bbox": [1, 2, float("inf"), 4]}, "bbox.2: Input should be a finite number"),
        ((400, 300), SPOT | {"bbox": [1, 2, 3]}, "bbox: List should have at least 4 items"),
        ((400, 300), CLICK | {"img_filename": "../secret.png"}, "img_filename: .* must lie below"),
        ((400, 300), OWN, "is not the picture"),
    ],
)
def test_a_picture_or_a_box_that_no_model_can_be_shown(tmp_path, png, size, row, problem):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "a.png").write_bytes(header_only(*size))
    (tmp_path / "secret.png").write_bytes(png(96, 64))
    record = json.dumps({"instruction": "Press Next"} | row)
    (tmp_path / "steps" / "steps.jsonl").write_text(record.replace("{folder}", str(tmp_path / "steps")))
    with pytest.raises(ValueError, match=f"line 1: .*{problem}"):
        load_tasks(tmp_path / "steps" / "steps.jsonl")


def test_a_copy_of_a_held_out_step_is_known_wherever_it_lies(tmp_path, png):
    """By its picture and its words; the same words before another picture are another step."""
    copies = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        copies.append(load_tasks(write_steps(tmp_path / name, png, STEPS[:2])))
    assert drop_leaked(copies[0], copies[1], lambda task: RecordedBenchmark()) == []
    (tmp_path / "b" / "0.png").write_bytes(png(96, 64, seed=9))
    others = load_tasks(tmp_path / "b" / "steps.json")
    assert drop_leaked(copies[0], others, lambda task: RecordedBenchmark()) == copies[0][:1]


# --- episodes without a browser ----------------------------------------------------------------------


class Script:
    """A sampler that says one of some texts, by the request's seed, and keeps the requests."""

    failure = ""

    def __init__(self, preprocessor, *sayings: str):
        self.preprocessor, self.sayings = preprocessor, sayings
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Sample:
        self.requests.append(request)
        _, ids = self.preprocessor.render_response(self.sayings[request.seed % len(self.sayings)])
        most = request.max_tokens
        return Sample(ids[:most], (-1.0,) * len(ids[:most]), "stop" if len(ids) <= most else "length")

    async def idle(self) -> None: ...


@pytest.fixture(scope="module")
def seeing(tiny_folder, preprocessor, tmp_path_factory) -> Preprocessor:
    """Of a Qwen2.5-VL, which sees 96 x 64 as 84 x 56."""
    folder = save_qwen2_5_vl(tmp_path_factory.mktemp("qwen") / "model", tiny_folder, preprocessor)
    return qwen_preprocessor(folder)


def config_of(**changes) -> Config:
    config = RECIPES["autowebworld_3b"]()
    return replace(config, rollout=replace(config.rollout, group=4, groups=3), **changes)


def worker_of(preprocessor, script, folder: Path, config: Config | None = None) -> RolloutWorker:
    images = Run(folder / "run").images
    return make_worker(config or config_of(), preprocessor, script, None, images, RecordedBenchmark())


async def play(worker: RolloutWorker, task: Task) -> Trajectory:
    return await worker.episode(task, 0, worker.policy(Sampling(), 256, "x"), 15)


RIGHT = "<think>so</think><action>{'action': 'click', 'coordinate': [35, 18]}</action>"  # 40, 20 there


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (RIGHT, (1, 1, 1)),
        ("so " + RIGHT, (1, 1, 0)),
        (RIGHT.replace("35, 18", "55, 20"), (1, 0, 1)),
        (RIGHT.replace("click", "answer"), (0, 0, 1)),
        ("nothing", (0, 0, 0)),
        (RIGHT + " and" * 300, (1, 1, 0)),  # cut off behind an action that can be read
    ],
)
async def test_a_recorded_step_is_an_episode_of_one_turn(seeing, tmp_path, png, said, found):
    """Where there is no browser; 55, 20 would be in the box if it were not scaled."""
    task = load_tasks(write_steps(tmp_path, png))[0]
    done = await play(worker_of(seeing, Script(seeing, said), tmp_path), task)
    assert (len(done.turns), done.stop, done.error) == (1, Stop.DONE, "")
    assert done.final_state == {"rewards": dict(zip(("action", "coordinate", "format"), found, strict=True))}
    assert done.reward == pytest.approx(sum(found) / 3) and done.success == (sum(found) == 3)


async def test_a_step_is_scored_whichever_endings_count_and_a_tag_of_the_template_is_format(
    preprocessor, tmp_path, png
):
    """Of a model whose template has written `<think>`."""
    assert preprocessor.chat.opens_think
    task = load_tasks(write_steps(tmp_path, png, [{"action": "wait"}]))[0]
    script = Script(preprocessor, "so</think><action>{'action': 'wait'}</action>")
    config = config_of(reward=RewardConfig(after="done"))
    done = await play(worker_of(preprocessor, script, tmp_path, config), task)
    assert done.success and done.reward == 1 and len(done.turns) == 1


async def test_screenspots_files_are_evaluated_under_their_protocol(seeing, tmp_path, png):
    """Greedily, from a name with `*`; only the point of a click counts, not the format. Of another agent the
    pixels may be the pictures' own."""
    row = {"bbox": [20, 10, 40, 20], "data_type": "icon", "data_source": "ios"}
    write_steps(tmp_path, png, [row]).rename(tmp_path / "screenspot_mobile_v2.json")
    write_steps(tmp_path, png, [row, row]).rename(tmp_path / "screenspot_web_v2.json")
    protocol = protocol_of("screenspot-v2-official")
    tasks = protocol.select(load_tasks(tmp_path / "screenspot_*_v2.json"))
    ids = ["screenspot_mobile_v2-1", "screenspot_web_v2-1", "screenspot_web_v2-2"]
    assert [task.id for task in tasks] == ids
    script = Script(seeing, RIGHT)
    config = apply(protocol, config_of())
    worker = worker_of(seeing, script, tmp_path, config)
    finished = []
    places = [(task, 0) for task in tasks]
    await worker.evaluate(places, "eval", config.eval.max_steps, lambda n: None, finished.append)
    assert [(one.success, one.stop) for one in finished] == [(True, Stop.DONE)] * 3
    assert {(asked.sampling, asked.max_tokens) for asked in script.requests} == {(Sampling(0.0, 1.0, 1), 256)}

    async def success(said: str) -> bool:
        script.sayings = (said,)
        done = await play(worker, tasks[0])
        assert len(done.turns) == 1
        return done.success

    outside = RIGHT.replace("35", "55")  # in the box if it is not scaled
    assert await success("so " + RIGHT)
    assert not await success(RIGHT.replace("click", "hover"))
    assert not await success(outside)
    # in UI-TARS's form, and between pixels
    assert await success("Thought: so\nAction: click(start_box='(35,18)')")
    assert await success(RIGHT.replace("35, 18", "35.5, 18.5"))
    assert not await success("<action>{'action': 'click'}</action>")
    worker.harness.agent.resized = lambda width, height: (width, height)
    assert await success(outside)


async def test_the_advantages_are_those_of_the_released_sum(seeing, tmp_path, png):
    """(r - mean) / (std + 1e-4) of rewards from 0 to 3."""
    sayings = (RIGHT, "nothing", "so " + RIGHT, RIGHT.replace("click", "hover"))
    task = load_tasks(write_steps(tmp_path, png))[0]
    worker = worker_of(seeing, Script(seeing, *sayings), tmp_path)
    episodes = await worker.group(task, 0, 0, 1)
    sums = [sum(t.final_state["rewards"].values()) for t in episodes]
    assert len(set(sums)) > 1
    (group,) = assign_advantages([make_group(episodes)], config_of().loss)
    expected = [(s - mean(sums)) / (stdev(sums) + 1e-4) for s in sums]
    assert [t.advantage for t in group] == pytest.approx(expected, rel=1e-9)
    rows = make_rows([group], config_of().loss)
    assert [len(trajectory.rows) for trajectory in rows] == [1] * 4, "the same rows as any trajectory's"


async def test_a_recorded_steps_prompt_is_the_one_that_the_agent_would_have_there(seeing, tmp_path, png):
    """The live conversation, in the model's pixels, and the record, in the picture's."""
    first = RIGHT
    second = "<think>b</think><action>{'action': 'press_enter'}</action>"
    history = f"Step 1: {first}\nStep 2: {second}".replace("[35, 18]", "[40, 20]")
    rows = [{"action": "wait", "history": history, "instruction": "Go."}]
    (task,) = load_tasks(write_steps(tmp_path, png, rows))
    script = Script(seeing, "nothing")
    worker = worker_of(seeing, script, tmp_path)
    await play(worker, task)
    agent = worker.harness.agent
    live = conversation(agent, worker.config.agent, seeing, Task("live", "Go.", "http://a.test/"))
    for n, said in enumerate((first, second)):
        live.observe(await agent.observe(RecordedPage("http://a.test/", png(96, 64, seed=n + 5), (1, 1), "")))
        live.respond(seeing.render_response(said)[1], said)
    picture = (tmp_path / "0.png").read_bytes()
    expected = live.observe(await agent.observe(RecordedPage("http://a.test/", picture, (1, 1), "")))
    assert script.requests[0].prompt == expected
    text = seeing.tokenizer.decode(expected.ids)
    assert first in text and second in text and text.count("Go.") == 1 and text.count("<|vision_start|>") == 1


async def test_demonstrations_say_what_is_right_and_leave_out_what_is_not_told(seeing, tmp_path, png, capsys):
    rows = [*STEPS, {"action": "type_text"}, {"action": "scroll"}, {"action": "drag", "bbox": [0, 0, 8, 8]}]
    tasks = load_tasks(write_steps(tmp_path, png, rows))
    worker = worker_of(seeing, Script(seeing, ""), tmp_path)
    demos = demonstrations(tasks, worker.harness)
    assert len(demos) == len(STEPS) and "3 of 12 recorded steps can't be cloned" in capsys.readouterr().out
    assert {t.task.goal["action"] for t in demos} == set(ACTIONS), "each of the nine"
    scale = (96 / 84, 64 / 56)
    for demo in demos:
        (turn,) = demo.turns
        goal = demo.task.goal
        assert set(rewards(turn.text, goal, scale).values()) == {1.0}, turn.text
        assert goal.get("text", "") in turn.text and goal.get("value", "") in turn.text
        if "to" in goal:
            points = turn.parsed.calls[0].arguments
            assert in_box(points["from"], goal["bbox"], scale) and in_box(points["to"], goal["to"], scale)
        assert seeing.text(turn.response_ids) == turn.text and demo.prompt_ids(0)
