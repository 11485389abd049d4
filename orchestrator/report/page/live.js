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

  /* What the server writes as HTML is taken over; what scripts drew stays where it is. */
  async function takeStaticParts() {
    const answer = await fetch(address("parts", {}));
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = document.querySelector("main");
    const open = [...main.querySelectorAll("details")].map((details) => details.open);
    const parts = [...fresh.querySelector("main").children].map((part) =>
      (["live", "tabs"].includes(part.id) ? document.getElementById(part.id) : document.adoptNode(part)));
    main.replaceChildren(...parts);
    [...main.querySelectorAll("details")].forEach((details, index) => { details.open = open[index] ?? false; });
    document.getElementById("timelines").textContent = fresh.getElementById("timelines").textContent;
    await timelines.read();
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
    state.attempts = change.attempts;
    await takeStaticParts();
    bins ??= await decode.unpacked(JSON.parse(document.getElementById("payload").textContent).bins);
    bins = joined(bins, await decode.unpacked(change.bins));
    app.show(await decode.described(change.described), bins);
  }

  function listen() {
    const source = new EventSource(address("events", { edition: state.edition, attempts: state.attempts }));
    let changes = Promise.resolve();
    source.addEventListener("message", (event) => {
      changes = changes.then(() => take(JSON.parse(event.data))).catch(() => location.reload());
    });
    source.addEventListener("error", () => {
      source.close();
      line.textContent = "no answer from orchestrator watch: what stands here is what it said last";
      setTimeout(listen, RETRY_MS);
    });
  }

  listen();
})();
