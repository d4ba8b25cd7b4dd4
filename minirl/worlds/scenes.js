// Pictures that are drawn, not loaded: a scene for each record, which shows its `shape` in its colour `fill`,
// large and alone, before a background that its id decides.

// Numbers from 0 to 1 that a text decides, always the same.
function* numbers(text) {
  let h = 2166136261;
  for (const c of text) h = Math.imul(h ^ c.codePointAt(0), 16777619);
  while (true) {
    h = Math.imul(h ^ (h >>> 15), 2246822519) + 0x9e3779b9 | 0;
    const mixed = Math.imul(h ^ (h >>> 13), 3266489917);
    yield ((mixed ^ (mixed >>> 16)) >>> 0) / 4294967296;
  }
}

function scene(record) {
  const next = numbers(record.collection + record.id);
  const r = () => next.next().value;
  const hue = Math.floor(360 * r()), hills = 180 + 60 * r();
  const fill = /^#[0-9a-f]{6}$/i.test(record.fill) ? record.fill : "#7a828c";
  const size = 4 + r(), x = 200 - 20 * size + 40 * (r() - 0.5), y = 150 - 20 * size + 20 * (r() - 0.5);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="400" height="300" viewBox="0 0 400 300"
    preserveAspectRatio="xMidYMid slice"><path fill="hsl(${hue} 30% 84%)" d="M0 0h400v300h-400z"/>
    <path fill="hsl(${hue} 25% 68%)" d="M0 ${hills}q50-24 100 0t100 0t100 0t100 0v120h-400z"/>
    <path transform="translate(${x} ${y}) scale(${size})" fill="${fill}" stroke="#fff" stroke-width="1.4"
    d="${SHAPES[record.shape] ?? SHAPES.circle}"/></svg>`;
  const made = element("img", "");
  made.decoding = "sync"; // a screenshot never shows a page without its pictures
  made.src = "data:image/svg+xml," + encodeURIComponent(svg);
  made.alt = "";
  made.draggable = false;
  return made;
}
