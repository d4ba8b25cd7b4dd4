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
const nameOf = e => {
  const label = e.labels && e.labels[0];
  const text = /^(INPUT|SELECT|TEXTAREA)$/.test(e.tagName) ? '' : e.innerText;
  const own = /^(button|submit|reset)$/.test(e.type || '') && e.tagName === 'INPUT' ? e.value : '';
  const name = short(e.getAttribute('aria-label') || own || text || (label && label.innerText) ||
    e.placeholder || e.title || e.alt || e.name, 31);
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