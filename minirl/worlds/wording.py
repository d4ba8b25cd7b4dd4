"""Instructions in a served model's words, checked against what the template's words name.

    tasks --a question each--> wordings --keeps_meaning--> tasks, some of them in new words

Stands behind the verb `reword`. Paper: AutoWebWorld, section 4.4.

1. There the model writes a query from the path alone, and another drops the ambiguous ones. Here it words
   anew what a template says, and its words are taken only if all that is drawn into the template stands in
   them (titles, values, numbers, ranks, fields ...), and nothing of the answer.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from minirl.config import EndpointConfig
from minirl.console import say
from minirl.samplers.endpoint import EndpointError, ask_all, open_endpoint
from minirl.types import Task
from minirl.worlds.looks import read_table
from minirl.worlds.tasks import WORDS
from minirl.worlds.widgets import words_in

WORDING_TOKENS = 1024
NAME = re.compile(r'"[^"]+"|[\w-]+')  # what is quoted, or a word
SPEECH = [WORDS[table] for table in ("modes", "targets", "flows", "asks", "questions")]
FIXED = set(words_in(f"{SPEECH} {read_table('released')['phrases']}")) - set(WORDS["telling"])


async def reword_tasks(tasks: Sequence[Task], served: EndpointConfig) -> list[Task]:
    """Return the tasks in the words of the model that is `served`, or as they are where these do not hold, or
    there are none; its cost is told."""
    async with open_endpoint(served) as endpoint:

        async def reworded(task: Task) -> Task:
            question = WORDS["reword"].format(task=task.instruction)
            try:
                reply = await endpoint.ask([("user", (question,))], WORDING_TOKENS, temperature=1.0)
            except EndpointError as error:
                say(f"{task.id} keeps its words: {error}")
                return task
            wording = reply.text.strip()
            if reply.finish == "length" or not keeps_meaning(wording, task):
                return task
            return replace(task, instruction=wording)

        out = await ask_all(reworded, tasks, phase="wording tasks")
    changed = sum(new is not old for new, old in zip(out, tasks, strict=True))
    say(f"{changed} of {len(tasks)} instructions are reworded, {len(tasks) - changed} stay as they were")
    return out


def keeps_meaning(wording: str, task: Task) -> bool:
    """Return whether a wording has all names of a task's instruction, and tells no answer that this does not,
    in one line of at most twice its length."""
    old = task.instruction
    if "\n" in wording or len(wording) > 2 * len(old):
        return False
    answers = task.goal.get("answer", ())
    if any(holds(wording, answer) > holds(old, answer) for answer in answers):
        return False
    return all(holds(wording, name) for name in names_of(task))


def names_of(task: Task) -> set[str]:
    """Return what is quoted in an instruction, and all words that are not a template's."""
    return {name.strip('"').casefold() for name in NAME.findall(task.instruction)} - FIXED


def holds(text: str, name: str) -> bool:
    """Return whether a name stands in a text, as a word of its own and in any case.

    >>> holds("Open room 12.", "2"), holds("Open the SECOND room.", "second")
    (False, True)
    """
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None
