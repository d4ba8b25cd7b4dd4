"""Where the sites of tasks are: shops by numbers, and folders that `python -m minirl.worlds make` wrote.

    sites/train/hotels-easy-3/{fsm,data,style}.json, tasks.jsonl --> tasks --sites_of--> SiteServer

A folder's tasks name it in their meta, and it is read when it is first asked for: a run may have thousands.
Where the tasks are over several sites, these are in folders within that one.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from minirl.types import Task
from minirl.worlds.interpreter import World
from minirl.worlds.render import load_world
from minirl.worlds.shop import shops_of

CACHED = 64  # sites in memory

Site = World | Path  # either has a `name`


def sites_of(tasks: Iterable[Task]) -> list[Site]:
    """Return the sites that tasks live on, in the order of their numbers or names. ValueError if one that a
    task names is not there."""
    tasks = list(tasks)
    folders, found = {task.meta["folder"]: task.id for task in tasks if "folder" in task.meta}, list[Path]()
    for folder, id in sorted(folders.items()):
        files = list(Path(folder).glob("fsm.json")) or sorted(Path(folder).glob("*/fsm.json"))
        if not files:
            raise ValueError(
                f"task {id}: there is no site in {folder}; make it again, or correct meta.folder"
            )
        found += [file.parent for file in files]
    return [*shops_of(tasks), *found]


def world_at(site: Site) -> World:
    """Return the site, read from its folder if it is one. Raises ValueError."""
    return site if isinstance(site, World) else _read(site)


_read = lru_cache(CACHED)(load_world)


def find_task_files(folder: Path) -> list[Path]:
    """Return the tasks.jsonl of a site's folder, or of all sites in a folder. ValueError if there is none."""
    own = folder / "tasks.jsonl"
    found = [own] if own.is_file() else sorted(folder.glob("*/tasks.jsonl"))
    if not found:
        hint = "python -m minirl.worlds make --count 20 --out sites"
        raise ValueError(f"{folder} holds no sites with tasks; make some: {hint}")
    return found
