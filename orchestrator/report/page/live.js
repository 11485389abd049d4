"use strict";
/* Keeps a page that is served up to date while a sweep runs: one event per change, which holds what
   was measured since and the lines that differ. A page of another edition, whose stops changed, is loaded again. */
(() => {
  const RETRY_MS = 5000;
  const state = JSON.parse(document.getElementById("live-state").textContent);
  let bins = null;  // as they are unpacked, with those that came since
  let texts = null;  // the lines that the page shows, by PageTexts' names
  const token = new URLSearchParams(location.search).get("token");
  const line = document.createElement("p");
  line.id = "watching";
  line.setAttribute("role", "status");
  line.textContent = state.says;
  document.querySelector("header").append(line);

  function address(path, values) {
    const query = new URLSearchParams(values);
    if (token !== null) query.set("token", token);
    return `${path}?${query}`;
  }

  /* What the server writes as HTML is taken over. What scripts drew stays where it is: an element
     that is moved loses its focus, and a slider its drag. */
  function replaceStaticParts(fresh) {
    const panel = document.getElementById("panel");
    const live = document.getElementById("live");
    const open = [...panel.querySelectorAll("details")].map((details) => details.open);
    for (const part of [...panel.children]) if (part !== live) part.remove();
    let isAboveLive = true;
    for (const part of [...fresh.getElementById("panel").children]) {
      if (part.id === live.id) isAboveLive = false;
      else if (isAboveLive) live.before(document.adoptNode(part));
      else panel.append(document.adoptNode(part));
    }
    const details = [...panel.querySelectorAll("details")];
    if (details.length === open.length) details.forEach((each, index) => { each.open = open[index]; });
  }

  /* Lines after a change: a string is a new one, the others stand in those from before. */
  function edited(before, edits) {
    const lines = [];
    for (const edit of edits) {
      if (typeof edit === "string") lines.push(edit);
      else for (let place = edit.first; place < edit.end; place++) lines.push(before[place]);
    }
    return lines;
  }

  async function takeTexts(packed) {
    const changes = await decode.record(packed);
    texts ??= await decode.record(state.texts);
    const names = Object.keys(changes);
    texts = Object.fromEntries(names.map((name) => [name, edited(texts[name], changes[name])]));
    replaceStaticParts(new DOMParser().parseFromString(texts.html.join("\n"), "text/html"));
    timelines.takeLines(texts.timelines);
  }

  /* The bins of the page and of what came since: each latency's plane grows by itself. */
  function joined(earlier, later) {
    const planes = judge.LATENCIES.length;
    const before = earlier.length / planes;
    const added = later.length / planes;
    const all = new Uint8Array(earlier.length + later.length);
    for (let plane = 0; plane < planes; plane++) {
      const first = plane * (before + added);
      all.set(earlier.subarray(plane * before, (plane + 1) * before), first);
      all.set(later.subarray(plane * added, (plane + 1) * added), first + before);
    }
    return all;
  }

  async function take(change) {
    line.textContent = change.says;
    const isOther = change.edition !== state.edition || (change.texts !== "" && !decode.isPossible());
    if (isOther) { location.reload(); return; }
    if (change.texts === "") return;
    await takeTexts(change.texts);
    bins ??= await decode.unpacked(JSON.parse(document.getElementById("payload").textContent).bins);
    const all = joined(bins, await decode.unpacked(change.bins));
    app.show(decode.describedByLines(texts.described), all);
    bins = all;
    state.serial = change.serial;
    state.attempts = change.attempts;
  }

  function listen() {
    const source = new EventSource(address("events", { edition: state.edition, serial: state.serial, attempts: state.attempts }));
    let changes = Promise.resolve();
    function listenAgain() {
      if (source.readyState === EventSource.CLOSED) return;
      source.close();
      line.textContent = "no answer from orchestrator watch: what stands here is what it said last";
      setTimeout(listen, RETRY_MS);
    }
    source.addEventListener("message", (event) => {
      changes = changes.then(() => take(JSON.parse(event.data))).catch(listenAgain);
    });
    source.addEventListener("error", listenAgain);
  }

  listen();
})();
