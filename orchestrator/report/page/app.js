"use strict";
/* What the page does: reads the payload, keeps the limits, and shows what judge.js finds. */
(async () => {
  const byId = (id) => document.getElementById(id);
  if (typeof DecompressionStream === "undefined") return;
  const packed = JSON.parse(byId("payload").textContent);
  const payload = JSON.parse(new TextDecoder().decode(await inflated(packed.described)));
  const groups = payload.groups;
  if (groups.length === 0) return;
  for (const point of groups.flatMap((group) => group.points)) point.level ??= Infinity;  // all at once: JSON has no such number
  const LATENCIES = [["ttft", "TTFT"], ["tpot", "TPOT"], ["e2e", "E2E"]];
  const UNITS = { gpu: "output tokens/s per device", usd: "output tokens/USD", deployment: "output tokens/s" };
  const bins = judge.decodeBins(await inflated(packed.bins), groups);
  const number = charts.number;
  const state = { group: 0, slo: 0, ttft: judge.NO_LIMIT, tpot: judge.NO_LIMIT, e2e: judge.NO_LIMIT,
    attainment: 0.95, per: "gpu", price: "", metric: "throughput", sort: "rank", heatX: "", heatY: "", point: 0 };
  let result = null;

  async function inflated(text) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function element(tag, text, properties) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return Object.assign(made, properties);
  }

  const group = () => groups[state.group];
  const price = () => (state.price === "" ? null : Number(state.price));
  const isLimited = (name) => state[name] !== judge.NO_LIMIT;
  const unitOf = (per) => UNITS[per].replace("device", group().device);
  const unit = () => unitOf(state.per);

  /* The limits of one of the file's SLOs. */
  function takeSlo(index) {
    const slo = group().slos[index];
    state.slo = index;
    if (slo === undefined) return;
    for (const [name] of LATENCIES) state[name] = slo.stops[name] ?? judge.NO_LIMIT;
    state.attainment = slo.attainment;
  }

  function takeGroup(index) {
    state.group = index;
    state.per = group().per;
    state.point = 0;
    takeSlo(0);
    const settings = variedSettings();
    state.heatX = settings[0] ?? "";
    state.heatY = settings[1] ?? settings[0] ?? "";
  }

  /* Settings that differ between the deployments of the group. */
  function variedSettings() {
    const names = new Set(group().deployments.flatMap((each) => Object.keys(each.settings)));
    return [...names].filter((name) => new Set(group().deployments.map((each) => settingText(each, name))).size > 1);
  }

  function settingText(deployment, name) {
    const value = deployment.settings[name];
    if (value === undefined || value === null) return "default";
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  }

  /* Paths that differ at their end alone are shown by their end. */
  function shortened(texts) {
    const ends = texts.map((text) => text.replace(/^.*\/(?=[^/]+$)/, ""));
    return new Set(ends).size === texts.length ? ends : texts;
  }

  // The state in the address: a link shows what its sender saw.
  const SHARED = ["group", "slo", "ttft", "tpot", "e2e", "attainment", "per", "price", "metric", "sort", "heatX", "heatY", "point"];

  function readHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    const index = Number(given.get("group"));
    takeGroup(groups[index] ? index : 0);
    for (const name of SHARED) {
      if (name === "group" || !given.has(name)) continue;
      const text = given.get(name);
      state[name] = typeof state[name] === "number" ? Number(text) || 0 : text;
    }
    if (!(state.per in UNITS)) state.per = group().per;
    if (!group().points[state.point]) state.point = 0;
  }

  let hashTimer = 0;
  function writeHash() {
    clearTimeout(hashTimer);
    hashTimer = setTimeout(() => {
      history.replaceState(null, "", `#${new URLSearchParams(SHARED.map((name) => [name, String(state[name])]))}`);
    }, 300);
  }

  // Controls

  /* The answers of Python that are about the group in sight. */
  function showAnswers() {
    for (const article of document.querySelectorAll(".answer")) {
      const { experiment, workload } = article.dataset;
      article.hidden = experiment !== group().experiment || workload !== group().workload;
    }
  }

  function showTabs() {
    byId("tabs").hidden = groups.length < 2;
    byId("tabs").replaceChildren(...groups.map((each, index) => {
      const name = `${each.workload} of ${each.experiment}${each.hardware ? ` on ${each.hardware}` : ""}`;
      const tab = element("button", name, { type: "button" });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(index === state.group));
      tab.tabIndex = index === state.group ? 0 : -1;
      tab.addEventListener("click", () => { takeGroup(index); showAll(); byId("tabs").children[index].focus(); });
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        takeGroup((index + step + groups.length) % groups.length);
        showAll();
        byId("tabs").children[state.group].focus();
      });
      return tab;
    }));
  }

  function labelled(text, control, output) {
    const label = element("label", text);
    if (output) label.append(output);
    label.append(control);
    return label;
  }

  function slider(name, title) {
    const stops = payload.stops[name];
    const input = element("input", undefined, { type: "range", min: "0", max: String(stops.length), step: "1", id: `limit-${name}` });
    input.value = String(isLimited(name) ? state[name] : stops.length);
    const output = element("output");
    const show = () => {
      const text = isLimited(name) ? `≤ ${number(stops[state[name]] * 1000)} ms` : "no limit";
      output.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
    input.addEventListener("input", () => {
      const stop = Number(input.value);
      state[name] = stop < stops.length ? stop : judge.NO_LIMIT;
      show();
      judgeAgain();
    });
    show();
    return labelled(`${title} `, input, output);
  }

  function choice(values, current, changed) {
    const select = element("select");
    select.append(...values.map(([value, text]) => element("option", text, { value, selected: value === current })));
    select.addEventListener("change", () => changed(select.value));
    return select;
  }

  function showLimits() {
    const controls = LATENCIES.map(([name, title]) => slider(name, title));
    const output = element("output", `≥ ${number(state.attainment * 100)} %`);
    const share = element("input", undefined, { type: "range", min: "0.5", max: "1", step: "0.001", id: "limit-attainment" });
    share.value = String(state.attainment);
    share.addEventListener("input", () => {
      state.attainment = Number(share.value);
      output.textContent = `≥ ${number(state.attainment * 100)} %`;
      judgeAgain();
    });
    controls.push(labelled("attainment ", share, output));
    controls.push(labelled("per ", choice(Object.keys(UNITS).map((per) => [per, unitOf(per)]), state.per, (value) => { state.per = value; showLimits(); judgeAgain(); })));
    if (state.per === "usd") {
      const input = element("input", undefined, { type: "number", min: "0", step: "0.01", value: state.price, placeholder: "of the file" });
      input.addEventListener("input", () => { state.price = input.value; judgeAgain(); });
      controls.push(labelled("USD per GPU hour ", input));
    }
    const slos = group().slos;
    if (slos.length > 0) {
      const names = slos.map((slo, index) => [String(index), slo.text]);
      controls.push(labelled("limits of the file ", choice(names, String(state.slo), (value) => { takeSlo(Number(value)); showLimits(); judgeAgain(); })));
    }
    byId("limits").replaceChildren(...controls);
  }

  // What is judged

  function judgeAgain() {
    const limits = { ttft: state.ttft, tpot: state.tpot, e2e: state.e2e };
    result = judge.judgeGroup(group(), bins, limits, state.attainment, state.per, price(), payload.student_t);
    showWinner();
    showRanking();
    writeHash();
    drawSoon(["frontier", "curves", "heat"]);  // the others show one point, whatever the limits are
  }

  function throughputText(ranked) {
    return `${ranked.noneFails ? "at least " : ""}${number(ranked.throughput.estimate)}`;
  }

  /* Whether what is judged is what the answer above was asked. */
  function isAsked() {
    const slo = group().slos[0];
    if (slo === undefined || state.per !== group().per || state.price !== "") return false;
    return slo.attainment === state.attainment
      && LATENCIES.every(([name]) => state[name] === (slo.stops[name] ?? judge.NO_LIMIT));
  }

  function showWinner() {
    const [first, second] = result.ranking;
    if (isAsked()) {
      byId("winner").textContent = "These are the limits of the file, answered above. Move one, and every stored request is judged again.";
      byId("caution").textContent = "";
      return;
    }
    if (first === undefined) {
      byId("winner").textContent = "No deployment holds these limits at any level with a valid measurement.";
      byId("caution").textContent = "";
      return;
    }
    const name = (ranked) => `${ranked.deployment.label} at ${ranked.judged.point.load}`;
    const runnerUp = second ? `; runner-up ${name(second)}: ${throughputText(second)}` : "";
    byId("winner").textContent = `${name(first)}: ${throughputText(first)} ${unit()}${runnerUp}`;
    byId("caution").textContent = cautions(first, second).join("; ");
  }

  function cautions(first, second) {
    const texts = group().emulated ? ["emulated: no real engine answered"] : [];
    const fixed = group().slos[state.slo]?.fixed ?? [];
    if (fixed.length > 0) texts.push(`the limits on ${fixed.join(", ")} are not judged here: see the answer above`);
    if (group().searched) texts.push("levels were chosen by a search: this is the highest probe that held, not a claim");
    if (first.judged.attainment.lower < state.attainment) texts.push("the winner's attainment could be below the target");
    if (second && first.throughput.lower <= second.throughput.upper) texts.push("the intervals of winner and runner-up overlap");
    else if (second && Math.min(first.throughput.starts, second.throughput.starts) < 2) texts.push("one engine start: another start could differ by more than the interval says");
    for (const ranked of group().searched ? [] : result.ranking) {
      if (ranked.open.length > 0) {
        texts.push(`${ranked.deployment.label} may hold more: ${ranked.open.map((point) => `${point.load} is ${point.validity}`).join(", ")}`);
      }
    }
    return texts;
  }

  const COLUMNS = [
    { id: "rank", title: "", of: (ranked, place) => place + 1 },
    { id: "label", title: "deployment", of: (ranked) => ranked.deployment.label },
    { id: "level", title: "load", of: (ranked) => ranked.judged.point.level, text: (ranked) => ranked.judged.point.load },
    { id: "value", title: () => unit(), of: (ranked) => ranked.throughput.estimate, text: (ranked) => `${ranked.noneFails ? "≥ " : ""}${number(ranked.throughput.estimate)}` },
    { id: "lower", title: "lower", of: (ranked) => ranked.throughput.lower },
    { id: "upper", title: "upper", of: (ranked) => ranked.throughput.upper },
    { id: "attainment", title: "attainment", of: (ranked) => ranked.judged.attainment.estimate, text: (ranked) => ranked.judged.attainment.estimate.toFixed(3) },
    { id: "attainmentLower", title: "lower", of: (ranked) => ranked.judged.attainment.lower, text: (ranked) => ranked.judged.attainment.lower.toFixed(3) },
    { id: "attainmentUpper", title: "upper", of: (ranked) => ranked.judged.attainment.upper, text: (ranked) => ranked.judged.attainment.upper.toFixed(3) },
    { id: "ttft", title: "TTFT p99 ms", of: (ranked) => ranked.judged.point.figures.ttft_p99_ms },
    { id: "tpot", title: "TPOT p99 ms", of: (ranked) => ranked.judged.point.figures.tpot_p99_ms },
    { id: "usd", title: "USD per million output tokens", of: usdPerMillion },
  ];

  function usdPerMillion(ranked) {
    const devices = ranked.deployment.devices;
    const perHour = price() === null ? ranked.deployment.usd_per_hour : price() * devices;
    if (!perHour) return null;
    const divisor = state.per === "gpu" ? devices : 1;
    if (state.per === "usd") return 1e6 / ranked.throughput.estimate;
    return perHour / 3600 / (ranked.throughput.estimate * divisor) * 1e6;
  }

  const titleOf = (column) => (typeof column.title === "function" ? column.title() : column.title);
  const shownColumns = () => COLUMNS.filter((column) => column.id !== "usd" || result.ranking.some((ranked) => usdPerMillion(ranked) !== null));

  function rankingRows() {
    const column = COLUMNS.find((each) => each.id === state.sort) ?? COLUMNS[0];
    const rows = result.ranking.map((ranked, place) => ({ ranked, place }));
    if (column.id === "rank") return rows;
    const value = (row) => column.of(row.ranked, row.place);
    const ascending = ["label", "ttft", "tpot", "usd"].includes(column.id);
    return rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (ascending ? 1 : -1));
  }

  function cellText(column, row) {
    if (column.text) return column.text(row.ranked);
    const value = column.of(row.ranked, row.place);
    return typeof value === "number" ? number(value) : value ?? "";
  }

  function showRanking() {
    const columns = shownColumns();
    const head = element("tr");
    head.append(...columns.map((column) => {
      const cell = element("th", undefined, { scope: "col" });
      const button = element("button", titleOf(column) || "#", { type: "button" });
      button.addEventListener("click", () => { state.sort = column.id; showRanking(); writeHash(); });
      cell.setAttribute("aria-sort", state.sort === column.id ? "other" : "none");
      cell.append(button);
      return cell;
    }));
    const body = element("tbody");
    body.append(...rankingRows().map((row) => {
      const line = element("tr");
      line.append(...columns.map((column) => element(column.id === "label" ? "th" : "td", String(cellText(column, row)))));
      return line;
    }));
    const top = element("thead");
    top.append(head);
    byId("ranking-table").replaceChildren(top, body);
    const ranked = new Set(result.ranking.map((each) => each.index));
    const others = group().deployments.filter((each, index) => !ranked.has(index));
    byId("not-ranked").textContent = others.length > 0 ? `holds at no level, or cannot be ranked: ${listed(others)}` : "";
  }

  const MOST_NAMED = 12;

  function listed(deployments) {
    const names = deployments.slice(0, MOST_NAMED).map((each) => each.disagrees ? `${each.label} (answers differ)` : each.label);
    const more = deployments.length - names.length;
    return names.join(", ") + (more > 0 ? ` and ${more} more` : "");
  }

  function plainRows() {
    const columns = shownColumns();
    return [columns.map(titleOf), ...rankingRows().map((row) => columns.map((column) => {
      const value = column.of(row.ranked, row.place);
      return value === null || value === undefined ? "" : value;
    }))];
  }

  /* A cell that a spreadsheet would take for a formula begins with a quote. */
  function csvCell(value) {
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  const csv = () => plainRows().map((row) => row.map(csvCell).join(",")).join("\n");

  function markdown() {
    const escaped = (text) => String(text).replace(/[\\|`*_<>[\]]/g, "\\$&").replace(/[\r\n]+/g, " ");
    const columns = shownColumns();
    const lines = rankingRows().map((row) => columns.map((column) => escaped(cellText(column, row))));
    const all = [columns.map((column) => escaped(titleOf(column))), columns.map(() => "---"), ...lines];
    return all.map((row) => `| ${row.join(" | ")} |`).join("\n");
  }

  async function copy(button, text) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      const area = element("textarea", text);
      document.body.append(area);
      area.select();
      button.textContent = document.execCommand("copy") ? "copied" : "not allowed here";
      area.remove();
    }
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  // Charts: one in a frame, those in sight first

  const instances = {};
  const instance = (id) => (instances[id] ??= echarts.init(byId(id), null, { renderer: "canvas" }));
  const drawings = { frontier: drawFrontier, curves: drawCurves, heat: drawHeat, distribution: drawDistribution, timeline: drawTimeline };
  let waiting = [];
  let isDrawing = false;

  function isInSight(id) {
    const box = byId(id).getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  }

  function drawSoon(ids = Object.keys(drawings)) {
    waiting = [...new Set([...waiting, ...ids])].sort((a, b) => Number(isInSight(b)) - Number(isInSight(a)));
    if (!isDrawing) { isDrawing = true; requestAnimationFrame(drawNext); }
  }

  function drawNext() {
    const id = waiting.shift();
    if (id === undefined) { isDrawing = false; document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1); return; }
    drawings[id](instance(id));
    requestAnimationFrame(drawNext);
  }

  function rateOf(point) {
    return judge.rateInterval(point.repeats.map((repeat) => (
      { amounts: repeat.tokens, sizes: repeat.seconds, start: repeat.start })), payload.student_t);
  }

  function drawFrontier(chart) {
    const points = [];
    for (const each of result.judged) {
      const tpot = each.point.figures.tpot_p50_ms;
      const rate = rateOf(each.point);
      const deployment = group().deployments[each.point.deployment];
      if (!tpot || rate === null) continue;
      points.push({
        x: 1000 / tpot, y: rate.estimate / (deployment.devices || 1), label: deployment.label, load: each.point.load,
        state: each.point.excluded !== null ? "excluded" : each.holds ? "holds" : "misses",
      });
    }
    charts.frontier(chart, points, "tokens/s a user sees", group().deployments.every((each) => each.devices) ? `tokens/s per ${group().device}` : "tokens/s");
  }

  const METRICS = {
    throughput: { title: "output tokens/s", of: (each) => rateOf(each.point) },
    attainment: { title: "attainment", of: (each) => each.attainment, limit: () => state.attainment },
    ttft_p99_ms: { title: "TTFT p99 ms", limit: () => limitMs("ttft") },
    ttft_p50_ms: { title: "TTFT p50 ms", limit: () => limitMs("ttft") },
    tpot_p99_ms: { title: "TPOT p99 ms", limit: () => limitMs("tpot") },
    tpot_p50_ms: { title: "TPOT p50 ms", limit: () => limitMs("tpot") },
    e2e_p99_ms: { title: "E2E p99 ms", limit: () => limitMs("e2e") },
  };
  const limitMs = (name) => (isLimited(name) ? payload.stops[name][state[name]] * 1000 : null);

  /* The best eight deployments; of those that are not ranked the first ones. */
  function highlighted() {
    const ranked = result.ranking.map((each) => each.index);
    const others = group().deployments.map((_, index) => index).filter((index) => !ranked.includes(index));
    return [...ranked, ...others].slice(0, 8);
  }

  function drawCurves(chart) {
    const metric = METRICS[state.metric] ?? METRICS.throughput;
    const lines = highlighted().map((index) => ({
      name: group().deployments[index].label,
      points: result.judged
        .filter((each) => each.point.deployment === index && Number.isFinite(each.point.level))
        .sort((a, b) => a.point.level - b.point.level)
        .map((each) => {
          const interval = metric.of ? metric.of(each) : null;
          const y = metric.of ? interval?.estimate ?? null : each.point.figures[state.metric];
          return { x: each.point.level, y, lower: interval?.lower ?? null, upper: interval?.upper ?? null,
            hollow: each.point.excluded !== null, load: each.point.load };
        })
        .filter((point) => point.y !== null),
    }));
    const control = group().points[0]?.control === "request_rate" ? "requests/s" : "requests in flight";
    charts.curves(chart, lines, metric.title, control, metric.limit ? metric.limit() : null);
  }

  function drawHeat(chart) {
    const names = [state.heatX, state.heatY];
    if (variedSettings().length < 2) return;
    const sorted = (name) => [...new Set(group().deployments.map((each) => settingText(each, name)))]
      .sort((a, b) => Number(a) - Number(b) || (a < b ? -1 : 1));
    const [columns, rows] = names.map(sorted);
    const cells = new Map();
    for (const ranked of [...result.ranking].reverse()) {
      const x = columns.indexOf(settingText(ranked.deployment, names[0]));
      const y = rows.indexOf(settingText(ranked.deployment, names[1]));
      cells.set(`${x} ${y}`, { x, y, value: ranked.throughput.estimate, label: ranked.deployment.label });
    }
    charts.heat(chart, shortened(columns), shortened(rows), [...cells.values()], { x: names[0], y: names[1], value: unit() });
  }

  function chosenPoint() { return group().points[state.point]; }

  function drawDistribution(chart) {
    const point = chosenPoint();
    charts.distribution(chart, LATENCIES.map(([name, title]) => {
      const stops = payload.stops[name];
      const shares = judge.distribution(point, bins[name], stops);
      return { name: title, data: stops.map((stop, index) => [stop * 1000, shares[index]]) };
    }));
  }

  function drawTimeline(chart) {
    if (timelines.draw(chart, chosenPoint().point_id, () => drawSoon(["timeline"]))) return;
    const lines = chosenPoint().repeats.map((repeat, index) => {
      let at = 0;
      const data = repeat.tokens.map((tokens, batch) => {
        at += repeat.seconds[batch];
        return [at, repeat.seconds[batch] ? tokens / repeat.seconds[batch] : 0];
      });
      return { name: `repeat ${index + 1}`, data };
    });
    charts.timeline(chart, lines);
  }

  function showPoint() {
    const point = chosenPoint();
    const reason = point.excluded === null ? "" : `; it cannot hold limits: ${point.excluded}`;
    byId("point-facts").textContent = `${point.validity}${point.reasons.length > 0 ? `: ${point.reasons.join("; ")}` : ""}${reason}`;
    const names = group().points.map((each, index) => [String(index), `${group().deployments[each.deployment].label} at ${each.load}`]);
    const select = choice(names, String(state.point), (value) => { state.point = Number(value); showPoint(); writeHash(); drawSoon(["distribution", "timeline"]); });
    select.id = "point-choice";
    select.setAttribute("aria-label", "Point");
    byId("point-choice").replaceWith(select);
  }

  function replaceChoice(id, values, current, changed) {
    const select = choice(values, current, changed);
    select.id = id;
    byId(id).replaceWith(select);
  }

  function showAll() {
    showTabs();
    showAnswers();
    showLimits();
    replaceChoice("curve-metric", Object.entries(METRICS).map(([id, metric]) => [id, metric.title]), state.metric,
      (value) => { state.metric = value; writeHash(); drawSoon(["curves"]); });
    const settings = variedSettings().map((name) => [name, name]);
    byId("heat-section").hidden = settings.length < 2;
    replaceChoice("heat-x", settings, state.heatX, (value) => { state.heatX = value; writeHash(); drawSoon(["heat"]); });
    replaceChoice("heat-y", settings, state.heatY, (value) => { state.heatY = value; writeHash(); drawSoon(["heat"]); });
    showPoint();
    judgeAgain();
    drawSoon(["distribution", "timeline"]);
  }

  byId("copy-csv").addEventListener("click", (event) => copy(event.currentTarget, csv()));
  byId("copy-markdown").addEventListener("click", (event) => copy(event.currentTarget, markdown()));
  addEventListener("resize", () => Object.values(instances).forEach((chart) => chart.resize()));
  addEventListener("beforeprint", () => Object.values(instances).forEach((chart) => chart.resize()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawSoon());
  byId("live").hidden = false;
  readHash();
  showAll();
  document.body.dataset.ready = "yes";
  window.page = { state, judgeAgain, result: () => result, csv, markdown, bins, payload };
})();
