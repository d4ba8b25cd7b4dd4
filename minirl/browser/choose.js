// For fields that can't be typed into letter by letter: dates and the like in their own format, and lists,
// whose pop-up is drawn by the desktop and in no screenshot. Answers with the value, or null if it does not fit.
function choose([text]) {
  const e = focused();
  if (!e) return null;
  if (e.tagName === 'SELECT') {
    const wanted = short(text, 1000).toLowerCase();
    const options = [...e.options], label = o => short(o.label, 1000).toLowerCase();
    const found = options.find(o => label(o) === wanted) || options.find(o => label(o).startsWith(wanted)) ||
      options.find(o => label(o).includes(wanted));
    if (!found) return null;
    e.selectedIndex = found.index;
  } else {
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
    const before = e.value;
    set.call(e, text);
    if (!e.value) { set.call(e, before); return null; }
  }
  e.dispatchEvent(new Event('input', {bubbles: true}));
  e.dispatchEvent(new Event('change', {bubbles: true}));
  return e.tagName === 'SELECT' ? short(e.selectedOptions[0].label, 100) : e.value;
}
