// The page's elements that can be clicked: name, and middle as shares of the window.
() => [...document.querySelectorAll('a, button, input, select, textarea, [role=button]')].map(e => {
  const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
  const name = e.getAttribute('aria-label') || e.innerText || e.placeholder || e.tagName.toLowerCase();
  return [name.trim().replace(/\s+/g, ' '), x / innerWidth, y / innerHeight, r.width > 0 && !e.disabled];
}).filter(([, x, y, works]) => works && 0 <= x && x <= 1 && 0 <= y && y <= 1)
