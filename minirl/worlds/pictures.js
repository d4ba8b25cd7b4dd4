// Elements and drawings, for all that draws pages.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const SHAPES = {
  circle: "M20 5a15 15 0 1 1 0 30a15 15 0 1 1 0-30z",
  square: "M7 7h26v26h-26z",
  triangle: "M20 5l17 29h-34z",
  diamond: "M20 3l17 17l-17 17l-17-17z",
  hexagon: "M20 4l14 8v16l-14 8l-14-8v-16z",
  ring: "M20 4a16 16 0 1 1 0 32a16 16 0 1 1 0-32zm0 9a7 7 0 1 0 0 14a7 7 0 1 0 0-14z",
  cross: "M14 5h12v9h9v12h-9v9h-12v-9h-9v-12h9z",
  drop: "M20 3c7 10 12 15 12 21a12 12 0 1 1-24 0c0-6 5-11 12-21z",
  tick: "M5 21l6-6l6 6l14-14l6 6l-20 20z",
};

function drawing(shape, fill) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 40 40");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", SHAPES[shape]);
  path.setAttribute("fill", fill);
  svg.append(path);
  return svg;
}
