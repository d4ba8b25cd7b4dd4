// Helpers that every script begins with. Elements are named as in OpenWebRL's records: tag, type, role, state,
// and what it says.
const MARK = Symbol.for('minirl');
const HIT = 'a,button,input,select,textarea,label,summary,option,iframe,frame,[role],[contenteditable=""],' +
  '[contenteditable=true]';
const at = (x, y) => {
  let e = document.elementFromPoint(x, y);
  while (e && e.shadowRoot) {
    const inner = e.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === e) break;
    e = inner;
  }
  return e;
};
const isFrame = e => !!e && /^I?FRAME$/.test(e.tagName);
// Of a frame: where its own window begins, and how many pixels that has for one of the window around it
const frameOf = e => {
  if (!isFrame(e)) return null;
  const r = e.getBoundingClientRect(), style = getComputedStyle(e);
  const across = e.offsetWidth / r.width, down = e.offsetHeight / r.height;
  return [r.left + (e.clientLeft + parseFloat(style.paddingLeft)) / across,
    r.top + (e.clientTop + parseFloat(style.paddingTop)) / down, across, down];
};
const isPage = e => e === document.body || e === document.documentElement;
// what has the focus; a page that is itself a text, as editors put into frames, has it where its window does
const focused = () => {
  let e = document.activeElement;
  while (e && e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
  return isPage(e) && !(e && e.isContentEditable && document.hasFocus()) ? null : e;
};
const meant = e => e && (e.closest(HIT) || e);
const owner = e => (e && e.tagName === 'LABEL' && e.control) || e;  // whose state a click changes
const boxOf = e => { const r = e.getBoundingClientRect();
  return [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY]; };
const short = (text, n) => String(text || '').trim().replace(/\s+/g, ' ').slice(0, n);
const TYPED = /^(text|search|email|url|tel|password|number|date|time|month|week|datetime-local)$/;
const closed = e => e.tagName.includes('-') && !e.shadowRoot;  // it may hold a field that can't be seen
const editable = e => !!e && (closed(e) || !!e.editContext || e.isContentEditable || (!e.readOnly && !e.disabled &&
  (e.tagName === 'TEXTAREA' || (e.tagName === 'INPUT' && TYPED.test(e.type)))));
// The text of a list's option; `whole` with its group, or its value, which tell equal ones apart.
const labelOf = (o, whole) => {
  const group = o.closest('optgroup'), label = short(o.label, 1000);
  return !whole ? label : group ? short(group.label, 1000) + ': ' + label : label + ' (' + o.value + ')';
};
const choiceOf = o => labelOf(o, [...o.closest('select').options].some(p => p !== o && p.label === o.label));
// the options that a person could choose
const choicesOf = list => list.matches(':disabled') ? [] : [...list.options].filter(o => !o.matches(':disabled') &&
  getComputedStyle(o).display !== 'none' && getComputedStyle(o.parentElement).display !== 'none');
// blanks that do not break and marks of no width are an editor's own, as are empty lines between paragraphs
const richText = e => e.innerText.replace(/[\u200b\u2060\ufeff]/g, '').replace(/\u00a0/g, ' ').replace(/\n+/g, '\n');
const valueOf = e => e.tagName === 'SELECT' ? [...e.selectedOptions].map(choiceOf).join(', ')
  : 'value' in e ? String(e.value) : e.isContentEditable ? richText(e) : '';
const stateOf = e => {
  const said = [];
  if (e.type === 'checkbox' || e.type === 'radio') said.push(e.checked ? 'checked' : 'unchecked');
  else if (e.hasAttribute('aria-checked'))
    said.push(e.getAttribute('aria-checked') === 'true' ? 'checked' : 'unchecked');
  const open = e.tagName === 'SUMMARY' && e.parentElement ? String(e.parentElement.open)
    : e.getAttribute('aria-expanded');
  if (open !== null) said.push(open === 'true' ? 'expanded' : 'collapsed');
  if (e.tagName === 'OPTION') said.push(e.selected ? 'selected' : 'unselected');
  else if (e.getAttribute('aria-selected') === 'true') said.push('selected');
  if (e.disabled || e.getAttribute('aria-disabled') === 'true') said.push('disabled');
  return said.join(', ');
};
const iconOf = e => {
  const icon = e.querySelector('[aria-label],[alt],[title],title');
  return icon && (icon.getAttribute('aria-label') || icon.alt || icon.getAttribute('title') || icon.textContent);
};
const headOf = e => {  // the cell before that of a field, as in forms that are tables
  const cell = e.closest('td'), head = cell && cell.previousElementSibling;
  return head && head.innerText;
};
const nameOf = e => {
  const label = e.labels && e.labels[0];
  const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(e.tagName), text = isField ? '' : e.innerText;
  const own = /^(button|submit|reset)$/.test(e.type || '') && e.tagName === 'INPUT' ? e.value : '';
  const name = short(e.getAttribute('aria-label') || own || text || (label && label.innerText) ||
    e.placeholder || e.title || e.alt || iconOf(e) || (isField && headOf(e)) || e.name, 31);
  return name.length > 30 ? name.slice(0, 30) + '...' : name;
};
const describe = e => {
  e = meant(e);
  if (!e || isPage(e) && !e.isContentEditable) return 'the page';
  const given = key => e.getAttribute(key) ? ' ' + key + '=' + short(e.getAttribute(key), 30) : '';
  const name = nameOf(e), state = stateOf(e);
  return '<' + e.tagName.toLowerCase() + '>' + given('type') + given('role') + (state ? ' ' + state : '') +
    (name ? ' "' + name + '"' : '');
};
const KINDS = {subtree: true, childList: true, attributes: true, characterData: true};
// Observes a document, the open roots in it and its frames of the same origin
const observe = (watch, root) => {
  watch.observe(root, KINDS);
  for (const e of root.querySelectorAll('*')) {
    const inner = e.shadowRoot || (/^I?FRAME$/.test(e.tagName) && e.contentDocument);
    if (inner) observe(watch, inner);
  }
};
// What moves by itself, as a clock does: it has changed so often while nobody acted, and did so just now.
const TICKS = 3, JUST_MS = 2000;
// Begins a mark, which counts what stirs in the page from now on, but for what ticks. An old one is given up.
const begin = old => {
  const now = performance.now();
  if (old) old.end();
  const ticks = [...(old ? old.ticks : [])].filter(([, [, last]]) => now - last < JUST_MS);
  const mark = {changes: 0, since: now, loud: now, acted: 0, rested: Infinity, late: !!old && old.late,
    busy: !!old && old.busy, ticks: new Map(ticks),
    ticking: new Set(ticks.filter(([, [times]]) => times >= TICKS).map(([e]) => e))};
  mark.watch = new MutationObserver(records => {
    const now = performance.now();
    for (const r of records) {
      if (mark.ticking.has(r.target)) continue;
      mark.changes += 1;
      // a ticker that moves by its style alone never comes to rest
      if (r.type !== 'attributes' || r.attributeName !== 'style') mark.loud = now;
    }
    if (now < mark.rested + 500) return;
    for (const e of new Set(records.map(r => r.target)))
      mark.ticks.set(e, [(mark.ticks.get(e) || [0])[0] + 1, now]);
  });
  mark.end = () => mark.watch.disconnect();
  observe(mark.watch, document);
  Object.defineProperty(window, MARK, {value: mark, configurable: true, enumerable: false});
  // A caret that blinks would make two pictures of one state
  if (!document.adoptedStyleSheets.some(sheet => sheet[MARK])) {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync('* { caret-color: transparent !important }');
    sheet[MARK] = true;
    document.adoptedStyleSheets.push(sheet);
  }
  return mark;
};
