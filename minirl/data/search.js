// Searches a page for the cheapest actions that succeed; called with the text agent's view of the page
// (simplified_html.js), the benchmark's script (begin and ending), and [seed, {depth, tries, steps}].
//
// A state is reached by its path from a new beginning, for a page can't be copied. Uniform cost: what the
// instruction mentions comes first, then buttons, then the rest. Events are made by script, so that a
// solution is only a guess until the agent has acted it out.
async (view, episode, [seed, limits]) => {
  const MENTIONED = 1, BUTTON = 1.5, OTHER = 3;  // an action's cost
  const UNSEEN = 2;  // more, for a path whose last action has left no trace
  const MAX_TOLD = 8, MAX_SHOWN = 15, MAX_LETTERS = 20;  // of words to type
  const TYPED = 'textarea, [contenteditable], input:not([type]), ' +
    ['text', 'password', 'number', 'email', 'search', 'date', 'tel', 'time', 'url']
      .map(type => `input[type=${type}]`).join(', ');
  const NUMBERED = Symbol.for('minirl.numbered');

  let instruction = '', tries = 0;
  if (window.jQuery) jQuery.fx.off = true;  // its animations take half a second each

  // After the handlers that are waiting, without the clock's rounding of setTimeout.
  const settled = () => new Promise(done => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done();
    channel.port2.postMessage(0);
  });

  // Words between blanks, without case and punctuation, so that one text can be looked for in another.
  const plain = text => ` ${text.toLowerCase().replace(/[^\p{L}\p{N}@#.$%:/-]+/gu, ' ')
    .replace(/[.:]+(?= |$)/g, '').trim()} `;
  const isMentioned = text => plain(text).trim() !== '' && plain(instruction).includes(plain(text));

  const labelOf = e => {
    const label = e.labels?.[0]?.textContent ?? e.closest('label')?.textContent;
    const own = e.matches('[type=submit], [type=button]') ? e.value : '';
    return (e.innerText || e.textContent || label || e.getAttribute('alt') || e.title || own || '').trim();
  };

  // What may be typed, with its cost: quoted words, those with capitals or digits, short texts of the page.
  const wordsToType = () => {
    const quoted = [...instruction.matchAll(/["“]([^"”]+)["”]/g)].map(match => match[1]);
    const words = instruction.split(/\s+/)
      .map(word => word.replace(/^[^\p{L}\p{N}@#$]+|[^\p{L}\p{N}%]+$/gu, ''));
    const telling = words.filter((word, n) => /[\d@#]/.test(word) || (n > 0 && /^\p{Lu}/u.test(word)));
    const told = [...new Set([...quoted, ...telling])].filter(word => word).slice(0, MAX_TOLD);
    const leaves = [...document.body.querySelectorAll('*')]
      .filter(e => !e.children.length && e.getClientRects().length);
    const texts = leaves.map(e => e.textContent.trim())
      .filter(text => text && text.length <= MAX_LETTERS && !told.includes(text));
    const shown = [...new Set(texts)].slice(0, MAX_SHOWN);
    return [...told.map(word => [quoted.includes(word) ? MENTIONED : BUTTON, word]),
      ...shown.map(word => [OTHER, word])];
  };

  // All that can be done now, the cheapest first: {cost, name, element, argument}.
  const actions = () => {
    const all = [];
    (window[NUMBERED] ?? []).forEach((e, element) => {
      if (e.matches('select')) {
        for (const { text } of e.options)
          all.push({ cost: isMentioned(text) ? MENTIONED : OTHER, name: 'Select Dropdown Option', element,
            argument: text });
        return;
      }
      const isTyped = e.matches(TYPED) && !e.readOnly;
      if (isTyped)
        for (const [cost, argument] of wordsToType()) all.push({ cost, name: 'Type', element, argument });
      const isButton = e.matches('button, [type=submit], [type=button]') ||
        /button/i.test(e.getAttribute('class') ?? '');
      const usual = isButton && !isTyped ? BUTTON : OTHER;
      all.push({ cost: !isTyped && isMentioned(labelOf(e)) ? MENTIONED : usual, name: 'Click', element });
    });
    return all.sort((a, b) => a.cost - b.cost);
  };

  const fire = (e, kind, [x, y]) => {
    const Kind = kind.startsWith('pointer') ? PointerEvent : MouseEvent;
    const given = { bubbles: true, cancelable: true, view: window, clientX: x, clientY: y, button: 0 };
    e.dispatchEvent(new Kind(kind, given));
  };

  const click = point => {
    const hit = document.elementFromPoint(...point) ?? document.body;
    for (const kind of ['mouseover', 'mousemove', 'pointerdown', 'mousedown']) fire(hit, kind, point);
    const focusable = hit.closest('input, textarea, select, button, a[href], [tabindex]');
    if (focusable) focusable.focus();
    else document.activeElement?.blur();
    for (const kind of ['pointerup', 'mouseup']) fire(hit, kind, point);
    if (hit.click) hit.click();
    else fire(hit, 'click', point);  // SVG has no method for it
  };

  const choose = (list, text) => {
    list.value = [...list.options].find(option => option.text === text).value;
    for (const kind of ['input', 'change']) list.dispatchEvent(new Event(kind, { bubbles: true }));
  };

  const type = (field, text) => {
    if ('value' in field) {
      const kind = field.matches('textarea') ? HTMLTextAreaElement : HTMLInputElement;
      Object.getOwnPropertyDescriptor(kind.prototype, 'value').set.call(field, text);
    } else field.textContent = text;
    const key = { bubbles: true, key: text.at(-1) };
    for (const kind of ['keydown', 'keypress']) field.dispatchEvent(new KeyboardEvent(kind, key));
    field.dispatchEvent(new InputEvent('input', { bubbles: true, data: text }));
    field.dispatchEvent(new KeyboardEvent('keyup', key));
    field.dispatchEvent(new Event('change', { bubbles: true }));
  };

  // Carries out an action; false if its element can't be reached.
  const perform = async ({ name, element, argument }) => {
    const { point } = view(['locate', element]);
    if (!point) return false;
    const target = window[NUMBERED][element];
    if (name === 'Select Dropdown Option') choose(target, argument);
    else click(point);
    if (name === 'Type') type(target, argument);
    await settled();
    return true;
  };

  // The state behind a path: {done, raw}, or {page, next} where it goes on; null if it can't be gone.
  const follow = async path => {
    tries++;
    instruction = await episode(['begin', seed]);
    await settled();
    for (const action of path) {
      view(['annotate']);
      if (!await perform(action)) return null;
      const ending = await episode(['ending']);
      if (ending.done) return ending;
    }
    return { done: false, page: view(['annotate']), next: actions() };
  };

  const first = await follow([]);
  const known = new Set([first.page]);
  const open = [{ cost: 0, path: [], next: first.next }];
  while (open.length) {
    open.sort((a, b) => a.cost - b.cost);  // stable: of equal ones the oldest
    const { cost, path, next } = open.shift();
    const last = path.at(-1);
    for (const action of next) {
      if (tries >= limits.tries) return { instruction, tries };
      // typing anew into the same field only replaces
      if (last?.name === 'Type' && action.name === 'Type' && last.element === action.element) continue;
      const longer = [...path, action];
      const state = await follow(longer);
      if (state?.done && state.raw === 1) return { instruction, tries, path: longer };
      if (!state || state.done || longer.length >= limits.depth) continue;
      const isKnown = known.has(state.page);
      if (isKnown && path.length) continue;  // one action without a trace may be needed, two are lost
      known.add(state.page);
      open.push({ cost: cost + action.cost + (isKnown ? UNSEEN : 0), path: longer, next: state.next });
    }
  }
  return { instruction, tries };
}
