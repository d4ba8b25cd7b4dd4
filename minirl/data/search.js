// Searches a page for the cheapest actions that succeed; called with simplified_html.js, a script that begins and
// ends episodes, [seed, {depth, tries}], and Chromium's getEventListeners or nothing. A state is reached by its
// path from a new beginning, for a page can't be copied. Events are made by script, so that a solution is only a
// guess until the agent has acted it out.
async (view, episode, [seed, limits], listenersOf) => {
  const MENTIONED = 1, BUTTON = 1.5, OTHER = 3, UNSEEN = 2;  // costs; UNSEEN: of an action without a trace
  const MAX_TOLD = 8, MAX_SHOWN = 15, MAX_LETTERS = 20;  // of words to type
  const PRESSED = ['checkbox', 'radio', 'submit', 'button', 'reset', 'image', 'file', 'range', 'color'];
  const TYPED = `textarea, [contenteditable], input:not(${PRESSED.map(kind => `[type=${kind}]`)})`;
  const NUMBERED = Symbol.for('minirl.numbered');
  let instruction = '', tries = 0, left = false;
  if (window.jQuery) jQuery.fx.off = true;  // its animations take half a second each
  // whoever leaves the page would end the search, and the episode
  navigation.addEventListener('navigate', event => {
    if (event.destination.sameDocument || !event.cancelable) return;
    event.preventDefault();
    left = true;
  });
  // After the handlers that are waiting, without the least wait of setTimeout.
  const settled = () => scheduler.postTask(() => {}, { priority: 'background' });
  // Words between blanks, without case and punctuation, so that one text can be looked for in another.
  const plain = text => ` ${text.toLowerCase().replace(/[^\p{L}\p{N}@#.$%:/-]+/gu, ' ')
    .replace(/[.:]+(?= |$)/g, '').trim()} `;
  const isMentioned = text => plain(text).trim() !== '' && plain(instruction).includes(plain(text));
  const labelOf = e => e.innerText || e.textContent || e.labels?.[0]?.textContent || e.getAttribute('alt') ||
    e.title || (e.matches('[type=submit], [type=button]') ? e.value : '');

  // What may be typed, with its cost: quoted words, those with capitals or digits, short texts of the page.
  const wordsToType = () => {
    const quoted = [...instruction.matchAll(/["“]([^"”]+)["”]/g)].map(match => match[1]);
    const telling = instruction.split(/\s+/)
      .map(word => word.replace(/^[^\p{L}\p{N}@#$]+|[^\p{L}\p{N}%]+$/gu, ''))
      .filter((word, n) => /[\d@#]/.test(word) || (n > 0 && /^\p{Lu}/u.test(word)));
    const told = [...new Set([...quoted, ...telling])].slice(0, MAX_TOLD);
    const texts = [...document.body.querySelectorAll('*')]
      .filter(e => !e.children.length && e.getClientRects().length).map(e => e.textContent.trim())
      .filter(text => text && text.length <= MAX_LETTERS && !told.includes(text));
    return [...told.map(word => [quoted.includes(word) ? MENTIONED : BUTTON, word]),
      ...[...new Set(texts)].slice(0, MAX_SHOWN).map(word => [OTHER, word])];
  };

  // All that can be done now, the cheapest first: {cost, name, element, argument}.
  const actions = () => {
    const all = [];
    window[NUMBERED].forEach((e, element) => {
      const choose = text => all.push({ cost: isMentioned(text) ? MENTIONED : OTHER,
        name: 'Select Dropdown Option', element, argument: text });
      if (e.matches('select')) return [...e.options].forEach(option => choose(option.text));
      const isTyped = e.matches(TYPED) && !e.readOnly;
      for (const [cost, argument] of isTyped ? wordsToType() : [])
        all.push({ cost, name: 'Type', element, argument });
      const isButton = e.matches('button, [type=submit], [type=button], [class*=button i]');
      const cost = isMentioned(labelOf(e)) ? MENTIONED : isButton ? BUTTON : OTHER;
      all.push({ cost: isTyped ? OTHER : cost, name: 'Click', element });
    });
    return all.sort((a, b) => a.cost - b.cost);
  };

  const fire = (e, Kind, names, given = {}) => {
    for (const name of names) e.dispatchEvent(new Kind(name, { bubbles: true, cancelable: true, ...given }));
  };
  const click = ([x, y]) => {
    const hit = document.elementFromPoint(x, y) ?? document.body, at = { view: window, clientX: x, clientY: y };
    fire(hit, PointerEvent, ['mouseover', 'mousemove', 'pointerdown', 'mousedown'], at);
    const focusable = hit.closest('input, textarea, select, button, a[href], [tabindex]');
    focusable ? focusable.focus() : document.activeElement?.blur();
    fire(hit, PointerEvent, ['pointerup', 'mouseup'], at);
    if (hit.click) hit.click();
    else fire(hit, PointerEvent, ['click'], at);  // SVG has no method for it
  };
  const enter = (field, text) => {
    const own = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value');  // not a framework's
    if (field.matches('select')) [...field.options].find(option => option.text === text).selected = true;
    else if (own) own.set.call(field, text);
    else field.textContent = text;
    fire(field, KeyboardEvent, ['keydown', 'keypress'], { key: text.at(-1) });
    fire(field, InputEvent, ['input'], { data: text });
    fire(field, KeyboardEvent, ['keyup'], { key: text.at(-1) });
    fire(field, Event, ['change']);
  };
  // The state behind a path: {done, raw}, or {page, next} where it goes on; null if it can't be gone.
  const follow = async path => {
    tries++;
    left = false;
    instruction = await episode(['begin', seed]);
    document.activeElement?.blur();  // as on a new page
    await settled();
    for (const { name, element, argument } of path) {
      view(['annotate', listenersOf]);
      const { point } = view(['locate', element]), target = window[NUMBERED][element];
      if (!point) return null;
      if (!target.matches('select')) click(point);
      if (name !== 'Click') enter(target, argument);
      await settled();
      if (left) return null;
      const ending = await episode(['ending']);
      if (ending.done) return ending;
    }
    return { done: false, page: view(['annotate', listenersOf]), next: actions() };
  };

  // A success without the actions that it does not need, and with clicks in place of words that it does not.
  const shortened = async path => {
    for (let n = path.length - 1; n >= 0; n--) {
      const others = [path.toSpliced(n, 1)];
      const { name, element } = path[n];
      if (name === 'Type') others.push(path.toSpliced(n, 1, { name: 'Click', element }));
      for (const other of others) if ((await follow(other))?.raw === 1) return shortened(other);
    }
    return path;
  };
  const first = await follow([]), known = new Set([first.page]), open = [{ ...first, cost: 0, path: [] }];
  while (open.length) {
    open.sort((a, b) => a.cost - b.cost);  // stable: of equal ones the oldest
    const { cost, path, next } = open.shift(), last = path.at(-1);
    for (const action of next) {
      if (tries >= limits.tries) return { tries };
      const isType = action.name === 'Type' && last?.name === 'Type';
      if (isType && last.element === action.element) continue;  // it would only replace the text
      const longer = [...path, action], state = await follow(longer);
      if (state?.done && state.raw === 1) return { tries, path: await shortened(longer) };
      if (!state || state.done || longer.length >= limits.depth) continue;
      const isKnown = known.has(state.page);
      if (isKnown && path.length) continue;  // only a first action without a trace may be needed
      known.add(state.page);
      open.push({ ...state, cost: cost + action.cost + (isKnown ? UNSEEN : 0), path: longer });
    }
  }
  return { tries };
}
