// Fills in what a site kept in the browser, where it has not put anything newer.
(kept) => {
  try {
    for (const { name, value } of kept[location.origin] ?? [])
      if (localStorage.getItem(name) === null) localStorage.setItem(name, value);
  } catch {} // a document without storage
}
