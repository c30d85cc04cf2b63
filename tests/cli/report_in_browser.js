// Does with a page of `report` what its reader does, and notes what is to be seen. Runs behind the page's own
// script; the last thing that it does is to leave its notes in the page.
(() => {
  const notes = { focused: document.hasFocus() };
  const get = (id) => document.getElementById(id);
  const handle = (id) => get(id).querySelector(".handle");
  const segment = (key) => document.querySelector(`.seg[data-item="${key}"]`);
  const over = (element) => element.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
  const press = (key) => {
    const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
    return document.activeElement.dispatchEvent(event);
  };
  const keys = (name) => {
    const marked = [...document.querySelectorAll(`.${name}`)];
    const key = (it) => (it.dataset.op === undefined ? it.dataset.item : `op-${it.dataset.op}`);
    return [...new Set(marked.map(key))].sort();
  };
  const seen = () => ({
    chosen: keys("chosen"),
    linked: keys("linked"),
    pressed: [...document.querySelectorAll("[aria-pressed=true]")].length,
    says: get("status").textContent,
    counts: [...document.querySelectorAll(".count")].map((it) => it.textContent).filter(Boolean),
    release: !get("release").hidden,
    jumps: [...get("jumps").querySelectorAll("a")].map((it) => it.hash.slice(1)).sort(),
    focus: document.activeElement.closest("[id]")?.id ?? "",
  });

  notes.start = seen();
  const groups = [...document.querySelectorAll(".group")];
  notes.stops = groups.map((group) => group.querySelectorAll("[tabindex='0']").length);
  const members = [...document.querySelectorAll(".handle, .seg")];
  notes.buttons = members.every((it) => it.getAttribute("role") === "button" && it.hasAttribute("tabindex"));
  notes.named = [...document.querySelectorAll(".seg")].every((it) => it.getAttribute("aria-label"));

  // The mouse, over an operation, over a part of a picture, over an entry, and away.
  over(get("op-0"));
  notes.overOperation = seen();
  over(segment("run-0-3"));
  notes.overRun = seen();
  notes.rowOfRun = get("run-0-3").classList.contains("chosen");
  over(segment("actual-1"));
  notes.overExtent = seen();
  over(get("entry-0-0"));
  notes.overEntry = seen();
  over(get("vitals-h"));
  notes.overNothing = seen();

  // The keyboard: one stop for each table, arrows inside, Enter holds, Escape releases.
  handle("op-0").focus();
  notes.focusFirst = seen();
  press("ArrowDown");
  notes.focusSecond = seen();
  notes.stopMoved = handle("op-0").tabIndex === -1 && handle("op-1").tabIndex === 0;
  press("Enter");
  notes.pinned = seen();
  over(get("op-2"));
  press("ArrowDown");
  notes.pinnedStays = seen();
  press("Escape");
  notes.released = seen();
  press("End");
  notes.focusLast = seen();
  press("ArrowDown");
  notes.behindTheLast = seen();

  // From a part of a picture to the operations, with Space.
  segment("run-0-3").focus();
  press(" ");
  notes.pinnedRun = seen();
  press("Escape");
  document.activeElement.blur();
  notes.blurred = seen();

  // A click holds, another one releases; so does the button. Links go where they say.
  get("op-2").click();
  notes.clicked = seen();
  const folded = [...get("jumps").querySelectorAll("a")].find((it) => {
    const part = get(it.hash.slice(1)).closest("details");
    return part && !part.open;
  });
  notes.wasFolded = folded !== undefined;
  folded?.click();
  notes.unfolded = folded && get(folded.hash.slice(1)).closest("details").open;
  get("op-2").click();
  notes.clickedAgain = seen();
  segment("expected-0").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  notes.clickedExtent = seen();
  get("release").click();
  notes.letGo = seen();

  // What it looks like.
  const rgb = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const part = (value) => (value <= 10.31 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = rgb(colour).map(part);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const ground = (element) => {
    for (let it = element; it; it = it.parentElement) {
      const colour = getComputedStyle(it).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const part of document.querySelectorAll("details")) part.open = true;
  const worst = { ratio: 99, of: "" };
  const measure = (element, colour, behind) => {
    const ratio = contrast(colour, behind);
    if (ratio < worst.ratio) Object.assign(worst, { ratio, of: element.outerHTML.slice(0, 80) });
  };
  const measureAll = () => {
    for (const element of document.querySelectorAll("body *:not(svg *, script, style)")) {
      const own = [...element.childNodes].some((it) => it.nodeType === 3 && it.data.trim());
      if (own) measure(element, getComputedStyle(element).color, ground(element));
    }
    for (const text of document.querySelectorAll(".seg text, .swatch text")) {
      const box = text.parentElement.querySelector(".box");
      measure(text, getComputedStyle(text).fill, getComputedStyle(box).fill);
    }
    for (const text of document.querySelectorAll("svg text:not(.seg text, .swatch text)")) {
      measure(text, getComputedStyle(text).fill, getComputedStyle(document.body).backgroundColor);
    }
  };
  measureAll();
  get("op-0").click();
  measureAll();
  notes.contrast = worst;
  notes.paper = getComputedStyle(document.body).backgroundColor;
  notes.ink = getComputedStyle(document.body).color;
  notes.fills = [...new Set([...document.querySelectorAll(".box")].map((it) => getComputedStyle(it).fill))];
  notes.tooWide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  notes.narrowest = Math.min(
    ...[...document.querySelectorAll(".seg")].map((it) => it.getBoundingClientRect().width),
  );

  const result = document.createElement("pre");
  result.id = "test-result";
  result.textContent = JSON.stringify(notes);
  document.body.append(result);
})();
