// What WebAgent-R1's agent asks of a page; called as script([question, ...arguments]).
([question, ...given]) => {
  const NUMBERED = Symbol.for('minirl.numbered');  // the window's property that holds the numbered elements
  // A frame's document, where it is of the page's own site; and the frame around an element
  const documentOf = e => /^I?FRAME$/.test(e.tagName) ? e.contentDocument : null;
  const around = e => e.ownerDocument.defaultView.frameElement;
  // Where a frame's own window begins in the window around it, and how large one of its pixels is there
  const placeOf = f => {
    const r = f.getBoundingClientRect(), style = getComputedStyle(f);
    const across = r.width / f.offsetWidth, down = r.height / f.offsetHeight;
    return [r.left + across * (f.clientLeft + parseFloat(style.paddingLeft)),
      r.top + down * (f.clientTop + parseFloat(style.paddingTop)), across, down];
  };
  // Boxes are [left, top, right, bottom] in the page's pixels, whatever frames an element stands in.
  const outward = (e, box) => {
    for (let f = around(e); f; f = around(f)) {
      const [left, top, across, down] = placeOf(f);
      box = box.map((n, i) => i % 2 ? top + down * n : left + across * n);
    }
    return box;
  };
  const boxOf = e => {
    const r = e.getClientRects()[0];
    return r ? outward(e, [r.left, r.top, r.right, r.bottom]) : null;
  };
  // the part of a box that its window, and those around that, show
  const shownOf = (e, box) => {
    for (let inner = e; inner; inner = around(inner)) {
      const {innerWidth, innerHeight} = inner.ownerDocument.defaultView;
      const view = outward(inner, [0, 0, innerWidth, innerHeight]);
      box = box.map((n, i) => i < 2 ? Math.max(n, view[i]) : Math.min(n, view[i]));
    }
    return box;
  };
  // the middle of what is shown of an element's first box
  const pointOf = e => {
    const [left, top, right, bottom] = shownOf(e, boxOf(e) || [0, 0, 0, 0]);
    return right - left >= 1 && bottom - top >= 1 ? [(left + right) / 2, (top + bottom) / 2] : null;
  };
  // the innermost element at a point of the page
  const at = ([x, y]) => {
    let e = document.elementFromPoint(x, y);
    while (e && documentOf(e)) {
      const [left, top, across, down] = placeOf(e);
      [x, y] = [(x - left) / across, (y - top) / down];
      const inner = documentOf(e).elementFromPoint(x, y);
      if (!inner) break;
      e = inner;
    }
    return e;
  };
  const hits = (e, point) => {
    for (let hit = at(point); hit; hit = around(hit)) if (e.contains(hit)) return true;
    return false;
  };

  // The page as HTML, annotated; leaves the numbered elements in the window. With Chromium's own
  // getEventListeners what a script listens on, and what has any role of a widget, is numbered, too.
  const annotate = listenersOf => {
    const words = text => new Set(text.split(' '));
    const ROLES = words('button tab link checkbox menuitem menuitemcheckbox menuitemradio radio');
    const TAGS = words('INPUT TEXTAREA SELECT BUTTON A IFRAME FRAME VIDEO OBJECT EMBED DETAILS');
    const WIDGETS = words('combobox gridcell option searchbox slider spinbutton switch textbox treeitem');
    const CLICKS = ['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup'];
    // the whole page is nothing to click
    const listens = e => e.tagName !== 'HTML' && e.tagName !== 'BODY' &&
      (WIDGETS.has(lower(e, 'role')) || CLICKS.some(kind => kind in listenersOf(e)));
    // the element's own attribute: what stands within something that can be edited does not count
    const EDITABLE = new Set(['', 'contenteditable', 'true']);
    const lower = (e, name) => (e.getAttribute(name) ?? 'none').toLowerCase();
    const clickable = e => TAGS.has(e.tagName) || ROLES.has(lower(e, 'role')) || e.onclick != null ||
      e.hasAttribute('jsaction') || EDITABLE.has(lower(e, 'contenteditable')) ||
      (e.tagName === 'LABEL' && e.control && !e.control.disabled) || (e.tagName === 'IMG' && e.useMap) ||
      lower(e, 'class').includes('button') || (e.hasAttribute('tabindex') && e.tabIndex >= 0) ||
      getComputedStyle(e).cursor === 'pointer' || (listenersOf && listens(e));
    const reached = e => { const point = pointOf(e); return point !== null && hits(e, point); };

    // a document without a window: nothing in the copy runs or loads
    const blank = document.implementation.createHTMLDocument('');
    const pairs = [];  // every element and its copy
    // A frame's content stands behind the frame, which would have no place for it, as a <div>.
    const pair = (from, to) => {
      const copied = to.querySelectorAll('*');
      pairs.push([from, to]);
      [...from.querySelectorAll('*')].map((e, i) => [e, copied[i]]).forEach(([e, copy]) => {
        pairs.push([e, copy]);
        const body = documentOf(e)?.body;
        if (!body || !pointOf(e)) return;
        const content = blank.createElement('div');
        for (const given of body.attributes) content.setAttributeNode(given.cloneNode());
        content.append(...blank.importNode(body, true).childNodes);
        pair(body, content);
        copy.after(content);
      });
    };
    const copy = blank.importNode(document.documentElement, true);
    pair(document.documentElement, copy);
    const live = pairs.map(([e]) => e);
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
    const copyOf = new Map(pairs);
    const OURS = /^data-(bbox|text|value|status|label-id)$/i;  // what a page itself has of these is not ours
    for (const to of copyOf.values())  // and nobody writes a hundred attributes by hand
      to.getAttributeNames().filter((name, i) => i >= 100 || OURS.test(name)).forEach(name => to.removeAttribute(name));
    for (const [e, to] of pairs) {
      const box = boxOf(e);
      // what a frame has scrolled away is not where its box says
      if (box && (!around(e) || pointOf(e))) {
        const [left, top, right, bottom] = box.map(Math.round);
        to.setAttribute('data-bbox', [left, top, right - left, bottom - top].join(','));
      }
      let text = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE)
        .map(n => n.textContent.trim()).filter(t => t).join(',');
      if (e.tagName === 'SELECT') {
        to.setAttribute('data-value', e.value);
        const chosen = e.selectedOptions[0];
        text = chosen ? chosen.text : '';
        for (const option of e.selectedOptions) copyOf.get(option).setAttribute('data-status', 'selected');
      }
      if (text) to.setAttribute('data-text', text);
      if (e.tagName === 'INPUT' && e.type === 'checkbox')
        to.setAttribute('data-status', e.checked ? 'checked' : 'not-checked');
      if (e.tagName === 'INPUT' || e.tagName === 'TEXTAREA') to.setAttribute('data-value', e.value);
      if (number.has(e)) to.setAttribute('data-label-id', number.get(e));
    }
    for (const e of copy.querySelectorAll('script, style, template')) e.remove();  // a comment could forge a tag
    for (let e, all = blank.createNodeIterator(copy, NodeFilter.SHOW_COMMENT); (e = all.nextNode());) e.remove();
    return copy.outerHTML;
  };

  // Where a numbered element is now: {point: [x, y]}, or {error} if it can't be reached.
  const locate = n => {
    const e = (window[NUMBERED] || [])[n];
    if (!e) return { error: 'there is no element ' + n + ' on this page' };
    if (!e.isConnected || !e.ownerDocument.defaultView) return { error: 'element ' + n + ' is gone' };
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
    const list = at([x, y])?.closest('select');
    if (!list) return "this is no dropdown list of the browser's; click it and then its option";
    list.focus();
    return list.ownerDocument.activeElement === list ? '' : 'this list is disabled';
  };

  return { annotate, locate, numberAt, focusList }[question](...given);
}
