// What WebAgent-R1's agent asks of a page; called as script([question, ...arguments]).
([question, ...given]) => {
  const NUMBERED = Symbol.for('minirl.numbered');  // the window's property that holds the numbered elements
  const boxOf = e => e.getClientRects()[0] || null;

  // the part of its first box that is in the window, and the middle of that
  const pointOf = e => {
    const r = boxOf(e);
    if (!r) return null;
    const left = Math.max(r.left, 0), right = Math.min(r.right, innerWidth);
    const top = Math.max(r.top, 0), bottom = Math.min(r.bottom, innerHeight);
    if (right - left < 1 || bottom - top < 1) return null;
    return [(left + right) / 2, (top + bottom) / 2];
  };
  const hits = (e, [x, y]) => e.contains(document.elementFromPoint(x, y));

  // The page as HTML, annotated; leaves the numbered elements in the window.
  const annotate = () => {
    const ROLES = new Set(['button', 'tab', 'link', 'checkbox', 'menuitem', 'menuitemcheckbox', 'menuitemradio',
      'radio']);
    const TAGS = new Set(['INPUT', 'TEXTAREA', 'SELECT', 'BUTTON', 'A', 'IFRAME', 'VIDEO', 'OBJECT', 'EMBED',
      'DETAILS']);
    // the element's own attribute: what stands within something that can be edited does not count
    const EDITABLE = new Set(['', 'contenteditable', 'true']);
    const lower = (e, name) => (e.getAttribute(name) ?? 'none').toLowerCase();
    const clickable = e => TAGS.has(e.tagName) || ROLES.has(lower(e, 'role')) || e.onclick != null ||
      e.hasAttribute('jsaction') || EDITABLE.has(lower(e, 'contenteditable')) ||
      (e.tagName === 'LABEL' && e.control && !e.control.disabled) || (e.tagName === 'IMG' && e.useMap) ||
      lower(e, 'class').includes('button') || (e.hasAttribute('tabindex') && e.tabIndex >= 0) ||
      getComputedStyle(e).cursor === 'pointer';
    const reached = e => { const point = pointOf(e); return point !== null && hits(e, point); };

    const root = document.documentElement;
    const live = [root, ...root.querySelectorAll('*')];
    // What is folded away, as in <details>, is laid out when its boxes are asked for, one level at a time
    for (let before = -1, boxes = 0; before !== boxes;)
      [before, boxes] = [boxes, live.filter(boxOf).length];
    const candidates = live.filter(e => clickable(e) && reached(e));
    const holders = new Set();
    for (const e of candidates)
      for (let up = e.parentElement; up && !holders.has(up); up = up.parentElement) holders.add(up);
    const leaves = candidates.filter(e => !holders.has(e));
    const number = new Map(leaves.map((e, i) => [e, i]));
    window[NUMBERED] = leaves;

    // a document without a window: nothing in the copy runs or loads
    const copy = document.implementation.createHTMLDocument('').importNode(root, true);
    const copied = [copy, ...copy.querySelectorAll('*')];
    const at = new Map(live.map((e, i) => [e, i]));
    for (const e of copied)  // what a page itself may have of these is not ours
      for (const name of ['bbox', 'text', 'value', 'status', 'label-id']) e.removeAttribute('data-' + name);
    live.forEach((e, i) => {
      const to = copied[i];
      const box = boxOf(e);
      if (box) {
        const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.round);
        to.setAttribute('data-bbox', [left, top, right - left, bottom - top].join(','));
      }
      let text = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE)
        .map(n => n.textContent.trim()).filter(t => t).join(',');
      if (e.tagName === 'SELECT') {
        to.setAttribute('data-value', e.value);
        const chosen = e.selectedOptions[0];
        text = chosen ? chosen.text : '';
        for (const option of e.selectedOptions) copied[at.get(option)].setAttribute('data-status', 'selected');
      }
      if (text) to.setAttribute('data-text', text);
      if (e.tagName === 'INPUT' && e.type === 'checkbox')
        to.setAttribute('data-status', e.checked ? 'checked' : 'not-checked');
      if (e.tagName === 'INPUT' || e.tagName === 'TEXTAREA') to.setAttribute('data-value', e.value);
      if (number.has(e)) to.setAttribute('data-label-id', number.get(e));
    });
    for (const e of copy.querySelectorAll('script, style, template')) e.remove();
    return copy.outerHTML;
  };

  // Where a numbered element is now: {point: [x, y]}, or {error} if it can't be reached.
  const locate = n => {
    const e = (window[NUMBERED] || [])[n];
    if (!e) return { error: 'there is no element ' + n + ' on this page' };
    if (!e.isConnected) return { error: 'element ' + n + ' is gone' };
    if (!pointOf(e) || !hits(e, pointOf(e)))  // at once, for the point is read right after
      e.scrollIntoView({ block: 'center', inline: 'nearest', behavior: 'instant' });
    const point = pointOf(e);
    if (!point) return { error: 'element ' + n + ' can no longer be seen' };
    if (!hits(e, point)) return { error: 'element ' + n + ' is covered by something else' };
    return { point };
  };

  // The number of the element that a selector names, or of the first one within it; -1 if there is none.
  const numberAt = selector => {
    const wanted = document.querySelector(selector);
    return (window[NUMBERED] || []).findIndex(e => wanted && wanted.contains(e));
  };

  // Gives the focus to the browser's own dropdown list at a point; answers why not, if it can't.
  const focusList = (x, y) => {
    const e = document.elementFromPoint(x, y);
    const list = e && e.closest('select');
    if (!list) return "this is no dropdown list of the browser's; click it and then its option";
    list.focus();
    return document.activeElement === list ? '' : 'this list is disabled';
  };

  return { annotate, locate, numberAt, focusList }[question](...given);
}
