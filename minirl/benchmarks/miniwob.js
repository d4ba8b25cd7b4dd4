// What the benchmark asks of a page of MiniWoB++; called as script([question, ...arguments]).
async ([question, ...given]) => {
  const PAUSE = 10;  // milliseconds from look to look
  const PATIENCE = 500;  // looks at a page that loads: 5 s
  const LONG = 2 ** 30;  // milliseconds, 12 days: the longest that a timer takes is twice as long

  const until = async ready => {
    for (let n = 0; n < PATIENCE && !ready(); n++) await new Promise(done => setTimeout(done, PAUSE));
    if (!ready()) throw new Error('the page does not get ready');
  };

  // Begins the episode of a seed, whichever came before, and returns its instruction. Its clock stands still,
  // and what only tells people of the task and its reward is taken off the page.
  const begin = async seed => {
    await until(() => typeof core !== 'undefined' && core.cover_div !== null);
    const query = document.getElementById('query');
    core.emptyQuery = core.emptyQuery ?? query.innerHTML;
    query.innerHTML = core.emptyQuery;
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = LONG;
    core.startEpisodeReal();
    await until(() => WOB_TASK_READY !== false);
    core.clearTimer();
    core.startEpisode = () => {};  // the page's own, after the end: it would cover everything
    const given = core.getUtterance(), instruction = given.utterance ?? given;  // some pages add its fields
    query.textContent = '';
    for (const id of ['reward-display', 'click-canvas', 'sync-task-cover'])
      document.getElementById(id)?.style.setProperty('display', 'none');
    document.activeElement?.blur();
    // An icon, which may be a style's, has no size before it is there, and then moves the others
    const icons = [...document.querySelectorAll('#area *')]
      .map(e => e.currentSrc || getComputedStyle(e).content.match(/^url\("(.+)"\)$/)?.[1]).filter(src => src);
    await Promise.allSettled([...new Set(icons)].map(src => Object.assign(new Image(), { src }).decode()));
    return instruction;
  };

  // Whoever leaves or reloads the page has lost: it would begin another episode than the task's.
  const ending = () => {
    const left = typeof core === 'undefined' || core.emptyQuery === undefined;
    if (left) return { done: true, raw: 0, reason: 'the page was left' };
    return { done: WOB_DONE_GLOBAL === true, raw: Number(WOB_RAW_REWARD_GLOBAL), reason: String(WOB_REWARD_REASON ?? '') };
  };

  return { begin, ending }[question](...given);
}
