// Pictures that are drawn, not loaded: a scene for each record, faces and icons. A record's scene
// shows its `shape` in its colour `fill`, large and alone, before a background that its id decides.

const STROKES = { // icons, on a grid of 24
  home: "M4 11l8-7 8 7v9h-5v-6h-6v6h-5z",
  list: "M8 6h12M8 12h12M8 18h12M4 6h.1M4 12h.1M4 18h.1",
  user: "M12 4a4 4 0 1 0 .1 0zM4 21c1-5 4-7 8-7s7 2 8 7",
  arrow: "M5 12h14M13 6l6 6-6 6",
  star: "M12 3l3 6 6 1-5 4 2 7-6-4-6 4 2-7-5-4 6-1z",
  heart: "M12 20l-8-8a5 5 0 0 1 8-6 5 5 0 0 1 8 6z",
  chat: "M4 5h16v11h-9l-5 4v-4h-2z",
  file: "M6 3h8l5 5v13h-13zM14 3v5h5",
  info: "M12 3a9 9 0 1 0 .1 0zM12 11v6M12 7v.1",
};

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", STROKES[name] ?? STROKES.info);
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

function picture(inner, width, height, fit = "xMidYMid slice") {
  const made = element("img", "");
  const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 400 300" preserveAspectRatio="${fit}">`;
  made.decoding = "sync"; // a screenshot never shows a page without its pictures
  made.src = "data:image/svg+xml," + encodeURIComponent(head + inner + "</svg>");
  made.alt = "";
  made.draggable = false;
  return made;
}

const BACKGROUNDS = [
  (hue, r) => `<path fill="hsl(${hue} 30% 78%)" d="M0 0h400v300h-400z"/><path fill="hsl(${hue} 25% 62%)"
    d="M0 ${190 + 40 * r()}l110-${50 + 70 * r()}l130 90l90-${60 * r()}l70 50v140h-400z"/>`,
  (hue, r) => `<path fill="hsl(${hue} 35% 88%)" d="M0 0h400v300h-400z"/><path fill="hsl(${hue} 30% 70%)"
    d="M0 ${200 + 30 * r()}q50-24 100 0t100 0t100 0t100 0v110h-400z"/><circle fill="hsl(${hue} 20% 96%)"
    cx="${60 + 280 * r()}" cy="60" r="34"/>`,
  (hue, r) => `<path fill="hsl(${hue} 22% 84%)" d="M0 0h400v300h-400z"/><path fill="hsl(${hue} 20% 66%)" d="M0 300v-${
    60 + 90 * r()}h60v-40h50v60h40v-${70 * r()}h60v90h50v-${80 * r()}h70v60h70v120z"/>`,
  (hue, r) => `<path fill="hsl(${hue} 24% 90%)" d="M0 0h400v300h-400z"/><path fill="hsl(${hue} 26% 72%)"
    d="M0 ${225 + 20 * r()}h400v90h-400z"/><path fill="hsl(${hue} 30% 80%)" d="M${30 + 60 * r()} 30h80v90h-80z"/>`,
  (hue, r) => `<path fill="hsl(${hue} 18% 92%)" d="M0 0h400v300h-400z"/><ellipse fill="hsl(${hue} 14% 78%)" cx="200"
    cy="262" rx="${100 + 60 * r()}" ry="20"/>`,
  (hue, r) => `<path fill="hsl(${hue} 30% 82%)" d="M0 0h400v300h-400z"/><path stroke="hsl(${hue} 28% 74%)"
    stroke-width="${10 + 16 * r()}" d="M-20 60l480-160M-20 150l480-160M-20 240l480-160M-20 330l480-160M-20 420l480-160"/>`,
];

function scene(record) {
  const next = numbers(record.collection + record.id);
  const r = () => next.next().value;
  const background = BACKGROUNDS[Math.floor(r() * BACKGROUNDS.length)](Math.floor(360 * r()), r);
  const fill = /^#[0-9a-f]{6}$/i.test(record.fill) ? record.fill : "#7a828c";
  const size = 4 + r(), x = 200 - 20 * size + 40 * (r() - 0.5), y = 150 - 20 * size + 20 * (r() - 0.5);
  const shape = SHAPES[record.shape] ?? SHAPES.circle;
  return picture(`${background}<path transform="translate(${x} ${y}) scale(${size})" fill="${fill}" stroke="#fff"
    stroke-width="1.4" d="${shape}"/>`, 400, 300);
}

function face(name) {
  const next = numbers(name);
  const hue = Math.floor(360 * next.next().value), width = 60 + 40 * next.next().value;
  return picture(`<path fill="hsl(${hue} 40% 80%)" d="M0 0h400v300h-400z"/><ellipse fill="hsl(${hue} 35% 45%)" cx="200"
    cy="300" rx="${width + 50}" ry="90"/><circle fill="hsl(${hue} 30% 62%)" cx="200" cy="130" r="${width - 5}"/>`, 300, 300);
}
