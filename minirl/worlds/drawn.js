// Only on sites with drawings (pixels.py): an item's page shows, above all that it says, the record's drawing. It is
// a picture of pixels; no element, attribute or text tells what is drawn.
const detailInWords = detail;
detail = (record) => {
  if (!/^data:image\/png;base64,[\w+/=]+$/.test(record.drawn ?? "")) return detailInWords(record);
  const drawn = element("img", "drawn");
  drawn.decoding = "sync"; // a screenshot never shows a page without its pictures
  drawn.draggable = false;
  drawn.style.marginBottom = "14px";
  Object.assign(drawn, { alt: "", width: 240, height: 180, src: record.drawn });
  return [drawn, detailInWords(record)];
};
