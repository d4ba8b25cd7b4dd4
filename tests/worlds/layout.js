// Where everything of a page of tiles is, and what is cut off, in CSS pixels.
() => {
    const box = (e) => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
    const found = [...document.querySelectorAll("button, h1, h2, main, .grid, header")];
    return {
        boxes: Object.fromEntries(found.map((e) => [e.id + " " + e.className + " " + e.tagName, box(e)])),
        inner: [...document.querySelectorAll("button *")].filter((e) => e.checkVisibility())
            .map((e) => [box(e), box(e.closest("button"))]),
        cut: [...document.querySelectorAll("button, .title, .crumbs, h1, main, .grid")]
            .filter((e) => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight)
            .map((e) => e.outerHTML.slice(0, 80)),
        font: getComputedStyle(document.body).fontFamily,
        page: [document.documentElement.scrollWidth, document.documentElement.scrollHeight],
    };
}
