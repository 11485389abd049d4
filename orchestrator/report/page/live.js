"use strict";
/* Keeps a page that is served up to date while a sweep runs: one event per change, which holds what
   was measured since. A page of another edition, whose stops changed, is loaded again. */
(() => {
  const RETRY_MS = 5000;
  const state = JSON.parse(document.getElementById("live-state").textContent);
  let bins = null;  // as they are unpacked, with those that came since
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
    const main = document.querySelector("main");
    const kept = ["tabs", "slo-tabs", "live"].map((id) => document.getElementById(id));
    const open = [...main.querySelectorAll("details")].map((details) => details.open);
    for (const part of [...main.children]) if (!kept.includes(part)) part.remove();
    let last = null;
    for (const part of [...fresh.querySelector("main").children]) {
      const own = kept.find((element) => element.id === part.id);
      if (own === undefined) {
        const adopted = document.adoptNode(part);
        if (last === null) main.prepend(adopted); else last.after(adopted);
      }
      last = own ?? part;
    }
    const details = [...main.querySelectorAll("details")];
    if (details.length === open.length) details.forEach((each, index) => { each.open = open[index]; });
  }

  async function takeStaticParts() {
    const answer = await fetch(address("parts", {}));
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    replaceStaticParts(fresh);
    document.getElementById("timelines").textContent = fresh.getElementById("timelines").textContent;
    if (decode.isPossible()) await timelines.read();
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
    if (change.edition !== state.edition) { location.reload(); return; }
    if (change.described === "") return;
    await takeStaticParts();
    if (decode.isPossible()) {
      bins ??= await decode.unpacked(JSON.parse(document.getElementById("payload").textContent).bins);
      const all = joined(bins, await decode.unpacked(change.bins));
      app.show(await decode.described(change.described), all);
      bins = all;
    }
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
