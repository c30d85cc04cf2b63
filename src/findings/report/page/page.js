"use strict";
// Marks what belongs together. Operations have `data-op`, their numbers; everything else has `data-item`, a key
// that a row and a part of a picture share. Which operations an item goes back to stands in its row.
(() => {
  const NAMED = 6;
  const JUMPS = 40;
  const KINDS = { run: ["run", "runs"], entry: ["entry", "entries"], extent: ["extent", "extents"] };

  const status = document.getElementById("status");
  const jumps = document.getElementById("jumps");
  const release = document.getElementById("release");

  const operations = new Map();
  const items = new Map();
  // The elements that draw or describe each of them.
  const elements = new Map();

  const keyOf = (element) =>
    element.dataset.op === undefined ? element.dataset.item : `op-${element.dataset.op}`;

  for (const element of document.querySelectorAll("[data-op]")) {
    operations.set(keyOf(element), { number: element.dataset.op, says: element.dataset.says, items: [] });
  }
  for (const element of document.querySelectorAll("[data-op], [data-item]")) {
    const key = keyOf(element);
    elements.set(key, [...(elements.get(key) ?? []), element]);
    if (element.dataset.ops === undefined) continue;
    const by = element.dataset.ops.split(" ").filter(Boolean).map((number) => `op-${number}`);
    const { kind, says, by: spoken } = element.dataset;
    items.set(key, { kind, says, spoken, operations: by });
    for (const operation of by) operations.get(operation)?.items.push(key);
  }

  const linkedTo = (key) => operations.get(key)?.items ?? items.get(key)?.operations ?? [];

  const listed = (keys) => {
    const named = keys.slice(0, NAMED).map((key) => items.get(key).says);
    const more = keys.length - named.length;
    return named.join(", ") + (more > 0 ? ` and ${more} more` : "");
  };

  const sentenceOf = (key) => {
    const item = items.get(key);
    if (item) return `${item.says}: ${item.spoken}.`;
    const { number, items: wrote } = operations.get(key);
    const parts = Object.entries(KINDS).map(([kind, [one, many]]) => {
      const keys = wrote.filter((it) => items.get(it).kind === kind);
      return keys.length && `${keys.length} ${keys.length === 1 ? one : many}: ${listed(keys)}`;
    });
    const all = parts.filter(Boolean).join("; ");
    return `Operation ${number} ${all ? `wrote ${all}` : "wrote nothing that is still in the files"}.`;
  };

  let shown = null;
  let pinned = null;

  const mark = (key, name, on) => {
    for (const element of elements.get(key) ?? []) element.classList.toggle(name, on);
  };

  const press = (key, on) => {
    for (const element of elements.get(key) ?? []) {
      const handle = element.matches(".seg") ? element : element.querySelector(".handle");
      handle?.setAttribute("aria-pressed", String(on));
    }
  };

  // Entries may be in a part that is folded away: its summary counts them.
  const count = () => {
    for (const part of document.querySelectorAll("details")) {
      const linked = part.querySelectorAll(".linked").length;
      part.querySelector(".count").textContent = linked ? `${linked} linked` : "";
    }
  };

  const show = (key) => {
    if (key === shown) return;
    if (shown !== null) {
      mark(shown, "chosen", false);
      linkedTo(shown).forEach((other) => mark(other, "linked", false));
    }
    shown = key;
    if (key !== null) {
      mark(key, "chosen", true);
      linkedTo(key).forEach((other) => mark(other, "linked", true));
    }
    count();
    say();
  };

  const say = () => {
    const hold = pinned === null ? "" : " The mark is held. Press Escape to release it.";
    status.textContent = shown === null ? "Nothing is marked." : sentenceOf(shown) + hold;
  };

  const jump = (key) => {
    const link = document.createElement("a");
    link.href = `#${key}`;
    link.textContent = items.get(key)?.says ?? `operation ${operations.get(key)?.number}`;
    const item = document.createElement("li");
    item.append(link);
    return item;
  };

  const pin = (key) => {
    if (pinned !== null) press(pinned, false);
    pinned = key;
    release.hidden = key === null;
    jumps.replaceChildren(...(key === null ? [] : linkedTo(key).slice(0, JUMPS).map(jump)));
    if (key !== null) press(key, true);
    show(key ?? target(document.activeElement));
    say();
  };

  const target = (element) => {
    const found = element?.closest?.("[data-op], [data-item]");
    return found ? keyOf(found) : null;
  };

  document.addEventListener("mouseover", (event) => {
    if (pinned === null) show(target(event.target) ?? target(document.activeElement));
  });
  document.addEventListener("focusin", (event) => {
    if (pinned === null) show(target(event.target));
  });
  document.addEventListener("focusout", (event) => {
    if (pinned === null && event.relatedTarget === null) show(null);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link) return open(link.hash);
    // A click that selects text to copy it pins nothing.
    if (String(getSelection())) return;
    const key = target(event.target);
    if (key !== null) pin(key === pinned ? null : key);
  });
  release.addEventListener("click", () => pin(null));

  const open = (hash) => {
    const aim = document.getElementById(hash.slice(1));
    for (let part = aim?.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
  };

  // Each table and each picture is one stop of the Tab key; arrows move inside.
  const groups = new Map();
  for (const group of document.querySelectorAll(".group")) {
    const members = [...group.querySelectorAll(".handle, a.by, .seg")];
    for (const [at, member] of members.entries()) {
      groups.set(member, members);
      member.setAttribute("tabindex", at === 0 ? "0" : "-1");
      if (member.matches("a")) continue;
      member.setAttribute("role", "button");
      member.setAttribute("aria-pressed", "false");
    }
  }

  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const moved = (members, at, key) => {
    if (key === "Home") return members[0];
    if (key === "End") return members.at(-1);
    return STEPS[key] && members[at + STEPS[key]];
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && pinned !== null) {
      pin(null);
      event.preventDefault();
      return;
    }
    const members = groups.get(event.target);
    if (!members || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      if (event.target.matches("a")) return;
      const key = target(event.target);
      pin(key === pinned ? null : key);
      event.preventDefault();
      return;
    }
    const next = moved(members, members.indexOf(event.target), event.key);
    if (next) {
      next.focus();
      event.preventDefault();
    } else if (event.key in STEPS) {
      event.preventDefault();
    }
  });
  document.addEventListener("focusin", (event) => {
    const members = groups.get(event.target);
    members?.forEach((member) => member.setAttribute("tabindex", member === event.target ? "0" : "-1"));
  });

  // A printed page shows every part.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });

  document.documentElement.classList.add("js");
  say();
})();
