// Pictures that are drawn, not loaded: a scene for each record, and icons. A record's scene shows its
// `shape` in its colour `fill`, large and alone, before a background that its id decides.

const STROKES = { // icons, on a grid of 24
  home: "M4 11l8-7 8 7v9h-5v-6h-6v6h-5z",
  list: "M8 6h12M8 12h12M8 18h12M4 6h.1M4 12h.1M4 18h.1",
  star: "M12 3l3 6 6 1-5 4 2 7-6-4-6 4 2-7-5-4 6-1z",
  chat: "M4 5h16v11h-9l-5 4v-4h-2z",
  arrow: "M5 12h14M13 6l6 6-6 6",
  file: "M6 3h8l5 5v13h-13zM14 3v5h5",
};

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", STROKES[name]);
  svg.append(path);
  return svg;
}

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
