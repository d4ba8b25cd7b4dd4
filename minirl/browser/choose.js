// For fields that can't be typed into letter by letter: dates and the like in their own format, and lists,
// whose pop-up is drawn by the desktop and in no screenshot. A list of several takes several, between commas.
// A slider takes numbers alone, a colour #rrggbb. Answers with the value, or null if it does not fit.
function choose([text]) {
  const e = focused();
  if (!e || e.readOnly || e.matches(':disabled')) return null;
  if (e.tagName === 'SELECT') {
    // one form for all ways to write it: É has two, and ß is SS in capitals
    const plain = text => short(text, 1000).normalize('NFKC').toUpperCase().toLowerCase();
    const options = choicesOf(e).map(o => [o, ...[labelOf(o), labelOf(o, true), o.value].map(plain)]);
    const find = text => {
      const wanted = plain(text);
      const found = [1, 2, 3].map(way => options.find(names => names[way] === wanted)).find(Boolean) || wanted &&
        (options.find(names => names[1].startsWith(wanted)) || options.find(names => names[1].includes(wanted)));
      return found ? found[0] : undefined;
    };
    let chosen = [find(text)];
    if (!chosen[0] && e.multiple) chosen = text.split(',').filter(plain).map(find);
    if (!chosen.length || chosen.includes(undefined)) return null;
    for (const o of e.options) o.selected = chosen.includes(o);
  } else {
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
    const before = e.value, fits = {range: /^\s*-?\d+(\.\d+)?\s*$/, color: /^\s*#[0-9a-f]{6}\s*$/i}[e.type];
    if (fits && !fits.test(text)) return null;
    set.call(e, fits ? text.trim() : text);
    if (!e.value) { set.call(e, before); return null; }
  }
  e.dispatchEvent(new Event('input', {bubbles: true}));
  e.dispatchEvent(new Event('change', {bubbles: true}));
  return valueOf(e);
}
