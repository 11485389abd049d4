"use strict";
/* What the page does: keeps what the reader chose, has it judged by judge.js, and shows the result. */
const app = (() => {
  const { number } = charts;
  const LATENCIES = [
    { name: "ttft", title: "TTFT" },
    { name: "tpot", title: "TPOT" },
    { name: "e2e", title: "E2E" },
  ];
  const UNITS = {
    gpu: "output tokens/s per device", usd: "output tokens/USD", joule: "output tokens/J", deployment: "output tokens/s",
  };
  const METRICS = {
    throughput: { title: "output tokens/s", interval: (each) => each.throughput },
    attainment: { title: "attainment", interval: (each) => attainmentInSight(each) },
    ttft_p99_ms: { title: "TTFT p99 ms", latency: "ttft" },
    ttft_p50_ms: { title: "TTFT p50 ms", latency: "ttft" },
    tpot_p99_ms: { title: "TPOT p99 ms", latency: "tpot" },
    tpot_p50_ms: { title: "TPOT p50 ms", latency: "tpot" },
    e2e_p99_ms: { title: "E2E p99 ms", latency: "e2e" },
  };
  /* What the page shows of all that it holds: an element with data-in is in the views that it names. */
  const VIEWS = [
    { id: "answer", title: "Answer" },
    { id: "points", title: "Points" },
    { id: "efficiency", title: "Efficiency" },
    { id: "run", title: "Run" },
    { id: "words", title: "Words" },
  ];
  const MOST_CURVES = 8;
  const MOST_NAMED = 12;
  const ADDRESS_DELAY_MS = 300;  // browsers refuse an address that changes with every step of a slider
  const COPIED_MS = 1500;
  const PRICE = "price.";  // in the address before the name of the hardware
  const PART = "part.";  // in the address before the name of a part of a mix and that of a limit
  const ALL_PARTS = "";  // the choice of limits on all requests, whatever their part
  const LEAST_HIGHEST_PRICE = 10;  // USD per device and hour, at the right end of the slider
  const PRICE_STEP = 0.05;

  /* Everything that is shown.
     payload: as the records of payload.py describe it; planes: the bins of its requests, by latency;
     judges: by group, made when the group is first looked at; choices: what the reader set;
     result: what the judge found under the choices. */
  const shown = { payload: null, planes: null, judges: new Map(), choices: null, result: null };

  /* What the reader set. Limits are in seconds, null where there is none; `point` is a point's id;
     `part` is the part of a mix whose limits the sliders show, or ALL_PARTS. Beside these, `prices` has
     USD per device and hour by hardware, where they are not the file's, and `parts` the limits on each
     part whose limits the reader moved: `attainment` is null where the part is not judged. The limits
     on all requests are judged where `part` is ALL_PARTS, else those of every part. */
  const FIRST_CHOICES = {
    view: VIEWS[0].id,
    group: 0, slo: 0, part: ALL_PARTS, ttft: null, tpot: null, e2e: null, attainment: 0.95, per: "gpu", ratio: 4,
    metric: "throughput", sort: "rank", reversed: false, allRows: false, heatX: "", heatY: "", point: "",
  };
  const firstChoices = () => ({ ...FIRST_CHOICES, prices: {}, parts: {} });

  const byId = (id) => document.getElementById(id);
  const group = () => shown.payload.groups[shown.choices.group];
  const rivals = () => judge.rivalsOf(shown.payload.groups, shown.choices.group, shown.choices.per);
  const unitOf = (per) => UNITS[per].replace("device", group().device);
  const unit = () => unitOf(shown.choices.per);
  const chosenSlo = () => group().slos[shown.choices.slo];
  const isByPart = () => shown.choices.part !== ALL_PARTS;
  const limitsInSight = () => (isByPart() ? limitsOnPart(shown.choices.part) : shown.choices);
  const chosenPoint = () => group().points.find((point) => point.point_id === shown.choices.point);

  function element(tag, text, properties) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return Object.assign(made, properties);
  }

  // Choices

  function stopsOf(name) {
    return shown.payload.stops[name];
  }

  /* The number of the stop that lies nearest to a limit in seconds. */
  function stopAt(name, seconds) {
    const stops = stopsOf(name);
    if (seconds === null || stops.length === 0) return judge.NO_LIMIT;
    let nearest = 0;
    for (let stop = 1; stop < stops.length; stop++) {
      if (Math.abs(stops[stop] - seconds) < Math.abs(stops[nearest] - seconds)) nearest = stop;
    }
    return nearest;
  }

  function secondsAt(name, stop) {
    return stopsOf(name)[stop] ?? null;
  }

  function limitsInStops({ ttft, tpot, e2e }) {
    return { ttft: stopAt("ttft", ttft), tpot: stopAt("tpot", tpot), e2e: stopAt("e2e", e2e) };
  }

  /* What the reader asks of the requests, as judge.js reads it. */
  function asked() {
    const { choices } = shown;
    const askedOf = (part, limits) => ({ part, limits: limitsInStops(limits), target: limits.attainment });
    if (!isByPart()) return [askedOf(null, choices)];
    const judgedParts = Object.entries(limitsOnParts()).filter(([, limits]) => limits.attainment !== null);
    return judgedParts.map(([part, limits]) => askedOf(part, limits));
  }

  /* Sets the limits to those of one of the file's SLOs. */
  function chooseSlo(index) {
    const slo = group().slos[index];
    const { choices } = shown;
    choices.slo = index;
    choices.part = ALL_PARTS;
    if (slo !== undefined) {
      Object.assign(choices, limitsInSeconds(slo));
      choices.part = Object.keys(slo.parts)[0] ?? ALL_PARTS;
    }
    choices.parts = {};
  }

  /* Of an SLO of the file, or its limits on a part. */
  function limitsInSeconds({ stops, attainment }) {
    const limits = LATENCIES.map(({ name }) => [name, secondsAt(name, stops[name])]);
    return { ...Object.fromEntries(limits), attainment };
  }

  /* The limits on a part until they are moved: those of the file, or where it limits all requests
     together, the same of each part. */
  function firstLimitsOf(part) {
    const ofParts = chosenSlo()?.parts ?? {};
    if (Object.hasOwn(ofParts, part)) return limitsInSeconds(ofParts[part]);
    const { ttft, tpot, e2e, attainment } = shown.choices;
    if (Object.keys(ofParts).length === 0) return { ttft, tpot, e2e, attainment };
    return { ttft: null, tpot: null, e2e: null, attainment: null };
  }

  /* The parts of the group, in the order of the file. */
  function partNames() {
    const inFile = Object.keys(chosenSlo()?.parts ?? {});
    return [...inFile, ...group().parts.filter((part) => !inFile.includes(part))];
  }

  function limitsOnPart(part) {
    const { parts } = shown.choices;
    return Object.hasOwn(parts, part) ? parts[part] : firstLimitsOf(part);
  }

  /* The limits on every part of the group. */
  function limitsOnParts() {
    return Object.fromEntries(partNames().map((part) => [part, limitsOnPart(part)]));
  }

  /* The limits on a part as the reader's own, to be changed. */
  function movedLimitsOf(part) {
    const { choices } = shown;
    choices.parts = { ...choices.parts, [part]: limitsOnPart(part) };
    return choices.parts[part];
  }

  /* The limits in sight, to be changed. */
  function movedLimits() {
    return isByPart() ? movedLimitsOf(shown.choices.part) : shown.choices;
  }

  /* Makes the moved limits fit the parts of the group. Where parts are judged, at least one is. */
  function mendParts() {
    const { choices } = shown;
    const names = partNames();
    const moved = names.filter((part) => Object.hasOwn(choices.parts, part));
    choices.parts = Object.fromEntries(moved.map((part) => [part, mendedLimits(choices.parts[part])]));
    if (!names.includes(choices.part)) choices.part = ALL_PARTS;
    const isAnyJudged = names.some((part) => limitsOnPart(part).attainment !== null);
    if (isByPart() && !isAnyJudged) movedLimits().attainment = FIRST_CHOICES.attainment;
  }

  function mendedLimits(limits) {
    const { attainment } = limits;
    const isShare = attainment !== null && attainment >= 0 && attainment <= 1;
    const latencies = LATENCIES.map(({ name }) => [name, secondsAt(name, stopAt(name, limits[name]))]);
    return { ...Object.fromEntries(latencies), attainment: isShare ? attainment : null };
  }

  function chooseGroup(index) {
    const { choices } = shown;
    choices.group = index;
    choices.per = group().per;
    choices.point = group().points[0]?.point_id ?? "";
    chooseSlo(0);
    const settings = variedSettings();
    choices.heatX = settings[0] ?? "";
    choices.heatY = settings[1] ?? "";
  }

  /* Makes choices fit a payload that other choices were made for. */
  function mendChoices() {
    const { choices } = shown;
    if (!VIEWS.some(({ id }) => id === choices.view)) choices.view = FIRST_CHOICES.view;
    if (chosenSlo() === undefined) choices.slo = 0;
    Object.assign(choices, mendedLimits(choices));
    choices.attainment ??= FIRST_CHOICES.attainment;
    mendParts();
    if (!Object.hasOwn(UNITS, choices.per)) choices.per = group().per;
    if (!Object.hasOwn(METRICS, choices.metric)) choices.metric = FIRST_CHOICES.metric;
    const prices = Object.entries(choices.prices).filter(([, price]) => price >= 0 && price < Infinity);
    choices.prices = Object.fromEntries(prices);
    if (chosenPoint() === undefined) choices.point = group().points[0]?.point_id ?? "";
    const settings = variedSettings();
    if (!settings.includes(choices.heatX)) choices.heatX = settings[0] ?? "";
    if (!settings.includes(choices.heatY)) choices.heatY = settings.find((name) => name !== choices.heatX) ?? "";
  }

  /* Settings that differ between the deployments of the group. */
  function variedSettings() {
    const { deployments } = group();
    const names = new Set(deployments.flatMap((deployment) => Object.keys(deployment.settings)));
    const varied = [...names].filter((name) => valuesOf(name).length > 1);
    return varied.sort((first, second) => placeOf(first) - placeOf(second));
  }

  /* Numbers say most in a table of two settings; lists and mappings say least. */
  function placeOf(name) {
    const types = group().deployments.map((deployment) => typeof (deployment.settings[name] ?? 0));
    if (types.includes("object")) return 2;
    return types.includes("string") ? 1 : 0;
  }

  /* The values of a setting in the group, as texts: numbers by size, others by letters. */
  function valuesOf(name) {
    const texts = new Set(group().deployments.map((deployment) => settingText(deployment, name)));
    return [...texts].sort((first, second) => first - second || (first < second ? -1 : 1));
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

  // The choices stand in the address: a link shows what its sender saw.

  function textOfChoice(value) {
    return value === null ? "none" : String(value);
  }

  const isLatency = (name) => LATENCIES.some((latency) => latency.name === name);
  const limitOfText = (text) => (text === "none" || Number.isNaN(Number(text)) ? null : Number(text));

  /* A choice from the address, of the type of the first choice. */
  function choiceOf(name, text) {
    if (isLatency(name)) return limitOfText(text);
    if (typeof FIRST_CHOICES[name] === "number") return Number(text) || 0;
    if (typeof FIRST_CHOICES[name] === "boolean") return text === "true";
    return text;
  }

  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    const index = Number(given.get("group"));
    chooseGroup(shown.payload.groups[index] === undefined ? 0 : index);
    if (given.has("slo")) chooseSlo(Number(given.get("slo")));
    for (const name of Object.keys(FIRST_CHOICES)) {
      if (name !== "group" && given.has(name)) shown.choices[name] = choiceOf(name, given.get(name));
    }
    for (const [name, text] of given) {
      if (name.startsWith(PRICE) && text !== "") setPrice(name.slice(PRICE.length), Number(text));
      if (name.startsWith(PART)) readPartLimit(name.slice(PART.length), text);
    }
  }

  /* path: the name of a part, a dot and the name of a limit; names of parts have dots, too. */
  function readPartLimit(path, text) {
    const dot = path.lastIndexOf(".");
    const part = path.slice(0, dot);
    const name = path.slice(dot + 1);
    const isKnown = group().parts.includes(part) && (isLatency(name) || name === "attainment");
    if (isKnown) movedLimitsOf(part)[name] = limitOfText(text);
  }

  /* The limits on parts as the address has them: those that the reader moved. */
  function partsInAddress() {
    return Object.entries(shown.choices.parts).flatMap(([part, limits]) => (
      Object.entries(limits).map(([name, value]) => [`${PART}${part}.${name}`, textOfChoice(value)])));
  }

  /* price: USD per device and hour; null: the file's. */
  function setPrice(hardware, price) {
    const others = Object.entries(shown.choices.prices).filter(([name]) => name !== hardware);
    shown.choices.prices = Object.fromEntries(price === null ? others : [...others, [hardware, price]]);
  }

  function priceOf(hardware) {
    const { prices } = shown.choices;
    return Object.hasOwn(prices, hardware) ? prices[hardware] : null;
  }

  let addressTimer = 0;
  function writeAddress() {
    clearTimeout(addressTimer);
    const before = location.hash;
    addressTimer = setTimeout(() => {
      if (location.hash !== before) return;  // a link was pasted over it: followAddress reads it
      const { prices, parts, ...others } = shown.choices;
      const pairs = Object.entries(others).map(([name, value]) => [name, textOfChoice(value)]);
      const priced = Object.entries(prices).map(([hardware, price]) => [PRICE + hardware, String(price)]);
      history.replaceState(null, "", `#${new URLSearchParams([...pairs, ...partsInAddress(), ...priced])}`);
    }, ADDRESS_DELAY_MS);
  }

  /* Shows what another address says, as of a link that was pasted over this one. The link that skips
     the tabs leads to an element, and says nothing of choices. */
  function followAddress() {
    clearTimeout(addressTimer);
    if (shown.choices === null) return;
    if (byId(location.hash.slice(1)) !== null) {
      writeAddress();
      return;
    }
    shown.choices = firstChoices();
    readAddress();
    mendChoices();
    showAll();
  }

  // Tabs and the answers of Python

  function showTabs() {
    showViews();
    showTabList(byId("tabs"), shown.payload.groups.map(tabText), shown.choices.group, openTab);
    showTabList(byId("slo-tabs"), group().slos.map(sloText), shown.choices.slo, openSlo);
  }

  /* style.css leaves out what is in other views; without a script, and on paper, all of it is there. */
  function showViews() {
    const { view } = shown.choices;
    const chosen = VIEWS.findIndex(({ id }) => id === view);
    showTabList(byId("views"), VIEWS.map(({ title }) => title), chosen, openView);
    document.body.dataset.view = view;
    byId("panel").setAttribute("role", "tabpanel");
    byId("panel").setAttribute("aria-label", VIEWS[chosen].title);
    drawn.resize();
  }

  function openView(index) {
    shown.choices.view = VIEWS[index].id;
    showViews();
    writeAddress();
  }

  /* Tabs as buttons, of which the Tab key reaches the chosen one; arrows lead to the others.
     open: called with the number of the tab that was chosen. */
  function showTabList(list, texts, chosen, open) {
    list.hidden = texts.length < 2;
    list.replaceChildren(...texts.map((text, index) => {
      const tab = element("button", "", { type: "button" });
      tab.append(...breakable(text));
      const isChosen = index === chosen;
      const openIt = (target) => { open(target); list.children[target].focus(); };
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-selected", String(isChosen));
      tab.setAttribute("aria-controls", "panel");
      tab.tabIndex = isChosen ? 0 : -1;
      tab.addEventListener("click", () => openIt(index));
      tab.addEventListener("keydown", (event) => moveTab(event, index, texts.length - 1, openIt));
      return tab;
    }));
  }

  /* A text that breaks after its commas, between two limits rather than within one. */
  function breakable(text) {
    const [first, ...others] = text.split(",");
    return [first, ...others.flatMap((part) => [",", document.createElement("wbr"), part])];
  }

  const sloText = (slo) => (slo.name === "" ? slo.text : `${slo.name}: ${slo.text}`);

  /* The model, and that it is emulated or simulated, stand in tabs where groups differ in them. */
  function tabText(each) {
    const { groups } = shown.payload;
    const hasOther = (name) => groups.some((other) => other[name] !== each[name]);
    const model = hasOther("model") ? `: ${each.model_name}` : "";
    const hardware = ["", "none"].includes(each.hardware) ? "" : ` on ${each.hardware}`; // none: an endpoint's
    const differs = hasOther("emulated") || hasOther("simulated") || hasOther("source");
    const origin = differs ? originText(each) : "";
    return `${each.workload} of ${each.experiment}${model}${hardware}${origin}${questionText(each)}`;
  }

  /* Without a plan the same names may stand for different questions: which of them it is. */
  function questionText(each) {
    const contents = shown.payload.groups.filter((other) => (
      tabNames(other) === tabNames(each))).map((other) => other.content);
    return contents.length < 2 ? "" : `, question ${contents.indexOf(each.content) + 1} of ${contents.length}`;
  }

  function originText(each) {
    if (each.source !== "") return ` (${each.source})`;
    if (each.simulated) return " (simulated)";
    return each.emulated ? " (emulated)" : "";
  }

  const tabNames = (each) => JSON.stringify([each.experiment, each.workload, each.model, each.hardware, each.emulated, each.simulated, each.source]);

  function openTab(index) {
    chooseGroup(index);
    showAll();
  }

  function openSlo(index) {
    chooseSlo(index);
    showTabs();
    showAnswers();
    showLimits();
  }

  function moveTab(event, index, last, open) {
    const before = index === 0 ? last : index - 1;
    const after = index === last ? 0 : index + 1;
    const target = { ArrowLeft: before, ArrowRight: after, Home: 0, End: last }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    open(target);
  }

  /* Of the answers that Python gave, the one about the group in sight under the chosen limits. */
  function showAnswers() {
    const measuredGroups = new Set(shown.payload.groups.map(identityOf));
    for (const article of document.querySelectorAll(".answer")) {
      article.hidden = !isOfGroup(article, measuredGroups) || !isOfSlo(article);
    }
    const measured = new Set(shown.payload.groups.map((each) => each.experiment));
    for (const section of document.querySelectorAll(".of-experiment")) {
      const { experiment } = section.dataset;
      section.hidden = experiment !== group().experiment && measured.has(experiment);
    }
  }

  /* An answer about what was not measured yet stands with its workload. */
  function isOfGroup(article, measuredGroups) {
    const { experiment, workload, groups } = article.dataset;
    const compared = JSON.parse(groups).map((names) => JSON.stringify(names));
    if (compared.some((identity) => measuredGroups.has(identity))) return compared.includes(identityOf(group()));
    return experiment === group().experiment && workload === group().workload;
  }

  function isOfSlo(article) {
    const slo = chosenSlo();
    return slo === undefined || article.dataset.slo === slo.name;
  }

  // Controls: made once; afterwards only their values change

  /* The controls of the limits, by what they set. */
  const controls = {};

  function labelled(text, ...parts) {
    const label = element("label", text);
    label.append(...parts);
    return label;
  }

  function makeControls() {
    controls.part = selection("limits-on", choosePart);
    const labels = [labelled("limits on ", controls.part)];
    for (const { name, title } of LATENCIES) {
      controls[name] = slider(`limit-${name}`, (value) => chooseLimit(name, Number(value)));
      labels.push(labelled(`${title} `, controls[name].output, controls[name].input));
    }
    controls.attainment = slider("limit-attainment", (value) => chooseAttainment(Number(value)));
    Object.assign(controls.attainment.input, { min: "0.5", max: "1", step: "0.001" });
    labels.push(labelled("attainment ", controls.attainment.output, controls.attainment.input));
    controls.per = selection("per", choosePer);
    labels.push(labelled("per ", controls.per));
    byId("limits").replaceChildren(...labels, priceControls());
  }

  /* A slider, and beside it the number, which may be edited; empty: the price of the file. */
  function priceControls() {
    const { input, output } = slider("price-slider", (value) => choosePrice(Number(value)));
    Object.assign(input, { min: "0", step: String(PRICE_STEP) });
    const field = element("input", undefined, { id: "price", type: "number", min: "0", step: "any" });
    field.addEventListener("input", () => choosePrice(field.value === "" ? null : Number(field.value)));
    const label = element("label", undefined, { htmlFor: "price" });
    const box = element("div", undefined, { className: "priced" });
    output.className = "on-paper";
    box.append(label, field, output, input);
    controls.price = { input, output, field, label };
    return box;
  }

  function slider(id, changed) {
    const input = element("input", undefined, { id, type: "range" });
    const output = element("output");
    input.addEventListener("input", () => changed(input.value));
    return { input, output };
  }

  function selection(id, changed) {
    const select = element("select", undefined, { id });
    select.addEventListener("change", () => changed(select.value));
    return select;
  }

  /* A part that was not judged is from its first limit on. */
  function chooseLimit(name, stop) {
    const limits = movedLimits();
    limits[name] = secondsAt(name, stop);
    limits.attainment ??= chosenSlo()?.attainment ?? FIRST_CHOICES.attainment;
    showLimit(name);
    showAttainment();
    judgeAgain();
  }

  function chooseAttainment(share) {
    movedLimits().attainment = share;
    showAttainment();
    judgeAgain();
  }

  function choosePart(part) {
    shown.choices.part = part;
    mendParts();
    showLimits();
  }

  /* Shows other limits than before, which may be those of another part. */
  function showLimits() {
    showControls();
    judgeAgain();
    showPoint();
    drawn.redraw(ONE_POINT);
  }

  function choosePer(per) {
    shown.choices.per = per;
    showControls();
    judgeAgain();
  }

  function choosePrice(price) {
    setPrice(group().hardware, price === null || price >= 0 ? price : null);
    showPrice();
    judgeAgain();
  }

  function showControls() {
    const { choices } = shown;
    const { parts } = group();
    controls.part.parentElement.hidden = parts.length === 0;
    setOptions(controls.part, [[ALL_PARTS, "all requests"], ...parts.map((part) => [part, part])], choices.part);
    for (const { name } of LATENCIES) showLimit(name);
    showAttainment();
    setOptions(controls.per, units(), choices.per);
    showPrice();
  }

  /* What deployments can be ranked by; by energy where that of any point is known. */
  function units() {
    const all = [["gpu", group().device], ["usd", "USD"], ["joule", "joule"], ["deployment", "deployment"]];
    const hasEnergy = group().points.some((point) => point.power_w);
    return all.filter(([per]) => per !== "joule" || hasEnergy || shown.choices.per === per);
  }

  /* The price of the hardware in sight. A number that is being typed is left alone. */
  function showPrice() {
    const { input, output, field, label } = controls.price;
    const { hardware, device } = group();
    const ofFile = priceOfFile();
    const price = priceOf(hardware) ?? ofFile;
    const name = `USD per ${device} hour`;
    const text = price === null ? "not known" : `${number(price)} USD`;
    label.textContent = hasOtherHardware() ? `${name} of ${hardware}` : name;
    input.max = String(Math.max(LEAST_HIGHEST_PRICE, Math.ceil(2 * (ofFile ?? 0))));
    input.value = String(price ?? 0);
    input.setAttribute("aria-label", label.textContent);
    input.setAttribute("aria-valuetext", text);
    output.textContent = text;
    field.placeholder = ofFile === null ? "none" : number(ofFile);
    const written = priceOf(hardware) === null ? "" : String(priceOf(hardware));
    if (document.activeElement !== field) field.value = written;
  }

  function hasOtherHardware() {
    return judge.rivalsOf(shown.payload.groups, shown.choices.group, "usd")
      .some((index) => shown.payload.groups[index].hardware !== group().hardware);
  }

  /* USD per device and hour; null where the file does not say. */
  function priceOfFile() {
    const priced = group().deployments.find((each) => each.usd_per_hour && each.devices);
    return priced === undefined ? null : priced.usd_per_hour / priced.devices;
  }

  function showLimit(name) {
    const { input, output } = controls[name];
    const { title } = LATENCIES.find((latency) => latency.name === name);
    const seconds = limitsInSight()[name];
    const last = stopsOf(name).length;  // the step after the last stop: no limit
    const text = limitText(seconds);
    input.max = String(last);
    input.value = String(seconds === null ? last : stopAt(name, seconds));
    nameWithPart(input, title);
    input.setAttribute("aria-valuetext", text);
    output.textContent = text;
  }

  /* A slider is read aloud by its label, or where it moves the limits of one part, with the part. */
  function nameWithPart(input, title) {
    if (isByPart()) input.setAttribute("aria-label", `${title} of ${shown.choices.part}`);
    else input.removeAttribute("aria-label");
  }

  const limitText = (seconds) => (seconds === null ? "no limit" : `≤ ${number(seconds * 1000)} ms`);
  const attainmentText = (share) => (share === null ? "not judged" : `≥ ${number(share * 100)} %`);

  function showAttainment() {
    const { input, output } = controls.attainment;
    const { attainment } = limitsInSight();
    const text = attainmentText(attainment);
    input.value = String(attainment ?? FIRST_CHOICES.attainment);
    nameWithPart(input, "attainment");
    input.setAttribute("aria-valuetext", text);
    output.textContent = text;
  }

  /* The limits on every part, since the sliders show those of one. */
  function showPartLimits() {
    const line = byId("part-limits");
    line.hidden = !isByPart();
    const texts = Object.entries(limitsOnParts()).map(([part, limits]) => {
      if (limits.attainment === null) return `${part} not judged`;
      const limited = LATENCIES.filter(({ name }) => limits[name] !== null);
      const latencies = limited.map(({ name, title }) => `${title} ${limitText(limits[name])}`);
      return [`${part} ${latencies[0] ?? "answered"}`, ...latencies.slice(1), attainmentText(limits.attainment)].join(", ");
    });
    line.textContent = `A load holds where it holds for every part: ${texts.join("; ")}.`;
  }

  /* Fills a list unless it holds these options already. options: [value, text] */
  function setOptions(select, options, chosen) {
    const described = JSON.stringify(options);
    if (select.dataset.options !== described) {
      select.dataset.options = described;
      select.replaceChildren(...options.map(([value, text]) => element("option", text, { value })));
    }
    select.value = chosen;
  }

  // What is judged

  function judgeOf(index) {
    if (!shown.judges.has(index)) {
      const { groups, missing, student_t: quantiles } = shown.payload;
      const unmeasured = judge.missingOf(groups[index], missing);
      shown.judges.set(index, new judge.GroupJudge(groups[index], shown.planes, quantiles, unmeasured, shown.payload.stops));
    }
    return shown.judges.get(index);
  }

  /* The points of the group in sight, the ranking of all groups that are ranked with it, the
     deployments that may hold more, and where those that hold at no level miss the limits. Under the
     limits of the file what the page cannot judge is ranked as Python did. */
  function judgedNow() {
    const { per, slo } = shown.choices;
    const rankedGroups = rivals();
    const results = rankedGroups.map((index) => {
      const price = priceOf(shown.payload.groups[index].hardware);
      return judgeOf(index).judge({ asked: asked(), per, price, slo });
    });
    let ranking = judge.rankedTogether(results);
    const isRankedByPython = group().searched || (chosenSlo()?.fixed ?? []).length > 0;
    if (isRankedByPython && isAsked()) {
      const ranked = rankedGroups.flatMap((index, place) => judgeOf(index).rankedByPython(slo, results[place].judged));
      ranking = ranked.sort((first, second) => first.place - second.place);
    }
    const open = results.flatMap((result) => result.open);
    const missed = new Map(results.flatMap((result) => [...result.missed]));
    return { judged: results[0].judged, ranking, open, missed };
  }

  function judgeAgain() {
    shown.result = judgedNow();
    showPartLimits();
    showWinner();
    showRanking();
    showPrices();
    writeAddress();
    drawn.redraw(ALL_POINTS);
  }

  /* Whether what is judged is what the answer above was asked. */
  function isAsked() {
    const { choices } = shown;
    const slo = chosenSlo();
    if (slo === undefined || choices.per !== group().per) return false;
    if (choices.per === "usd" && Object.keys(choices.prices).length > 0) return false;
    if (Object.keys(slo.parts).length === 0) return !isByPart() && isAskedBy(slo, choices);
    return isByPart() && Object.entries(limitsOnParts()).every(([part, limits]) => (
      Object.hasOwn(slo.parts, part) ? isAskedBy(slo.parts[part], limits) : limits.attainment === null));
  }

  /* Whether limits are those of an SLO of the file, or of its limits on a part. */
  function isAskedBy(ofFile, limits) {
    const expected = limitsInSeconds(ofFile);
    return Object.entries(expected).every(([name, value]) => limits[name] === value);
  }

  function showWinner() {
    const [winner, runnerUp] = shown.result.ranking;
    let text = "";
    let caution = "";
    if (isAsked()) {
      text = "These are the limits of the file. Move one, and every stored request is judged again.";
      caution = lastingCautions().join("; ");
    } else if (winner === undefined) {
      text = whyNothingIsRanked();
    } else {
      text = rankedText(winner, tieText(winner));
      if (runnerUp !== undefined) text += `; runner-up ${rankedText(runnerUp)}`;
      caution = cautions(winner, runnerUp).join("; ");
    }
    byId("winner").replaceChildren(...withWholeIntervals(text));
    byId("caution").textContent = caution;
  }

  /* Parts of a text: no line ends within an interval. html.py does the same for answers. */
  function withWholeIntervals(text) {
    const parts = text.split(/(\((?:95 %|9 in 10): [^)]*\))/);
    return parts.map((part, index) => (index % 2 === 0 ? part : element("span", part, { className: "kept" })));
  }

  function whyNothingIsRanked() {
    const { per } = shown.choices;
    const ranked = rivals().map((index) => shown.payload.groups[index]);
    const isCounted = (each) => each.points.some((point) => (
      judge.divisorOf(point, each.deployments[point.deployment], per, priceOf(each.hardware)) !== null));
    if (!ranked.some(isCounted)) {
      if (per === "joule") return "The energy of no point is known.";
      if (per === "usd") return "There is no price to rank by: set one above 0.";
      return `How many ${group().device}s the deployments have is not known: rank them per deployment.`;
    }
    const isValid = (point) => point.excluded === null;
    if (!ranked.some((each) => each.points.some(isValid))) return "No point has a valid measurement.";
    return "No deployment holds these limits at any level with a valid measurement.";
  }

  /* Of intervals: what is simulated has those of the model's error. */
  const confidence = () => (group().simulated ? "9 in 10" : "95 %");

  /* As the headline of an answer says it. */
  function rankedText(ranked, tie = "") {
    const { estimate, lower, upper } = ranked.throughput;
    const name = `${ranked.deployment.label} at ${ranking.loadText(ranked)}`;
    const interval = `${confidence()}: ${number(lower)}-${number(upper)}`;
    return `${name}: ${number(estimate)} ${unit()} (${interval})${tie}${mayHoldText(ranked)}`;
  }

  /* As if_slower_text() of answer_table.py, which wrote `may_hold` where Python ranked. */
  function mayHoldText({ ifSlower, may_hold: byPython }) {
    if (byPython !== undefined) return byPython;
    if (ifSlower === null) return "";
    if (ifSlower.load === null) return "; if slower than simulated, no load holds";
    return `; if slower than simulated, only ${ifSlower.load} hold`;
  }

  /* As winner_text() of answer_table.py says it. */
  function tieText(winner) {
    const { estimate } = winner.throughput;
    const tied = shown.result.ranking.filter((each) => each !== winner && each.throughput.estimate === estimate);
    return tied.length > 0 ? `, a tie with ${tied.length} more` : "";
  }

  /* What the ranking below is not, also under the limits of the file. */
  function lastingCautions() {
    const texts = [];
    const unjudged = chosenSlo()?.fixed ?? [];
    if (unjudged.length > 0) texts.push(unjudgedText(unjudged.join(", ")));
    if (!group().searched) return texts;
    texts.push(isAsked()
      ? "the ranking is that of the search's claims; once a limit moves it is judged again from its probes"
      : "the ranking is judged again from probes of a search: the highest that held, not a claim");
    return texts;
  }

  function unjudgedText(names) {
    return isAsked()
      ? `the ranking is that of the file's answer; charts, and the ranking once a limit moves, do not judge the limits on ${names}`
      : `the limits on ${names} are not judged here: see the answer under the limits of the file`;
  }

  /* Why the winner may not be the best. */
  function cautions(winner, runnerUp) {
    const texts = lastingCautions();
    if (group().simulated) texts.push("simulated: nothing was measured");
    else if (group().emulated) texts.push("emulated: no real engine answered");
    if (group().source !== "") texts.push(`measured by ${group().source}, as it defines the figures`);
    const unsure = winner.judged.tests.filter(({ share, target }) => share.lower < target);
    texts.push(...unsure.map(({ part }) => `the winner's ${attainmentOf(part)} could be below the target`));
    if (runnerUp !== undefined) texts.push(...doubtsBetween(winner.throughput, runnerUp.throughput));
    texts.push(...notMeasured());
    if (!group().searched) texts.push(...openLevels());
    return texts;
  }

  const attainmentOf = (part) => (part === null ? "attainment" : `attainment of ${part}`);

  function doubtsBetween(winner, runnerUp) {
    if (winner.lower <= runnerUp.upper) return ["the intervals of winner and runner-up overlap"];
    if (!group().simulated && Math.min(winner.starts, runnerUp.starts) < 2) {
      return ["one engine start: another start could differ by more than the interval says"];
    }
    return [];
  }

  /* Deployments that are ranked together with those in sight and have no measurement yet. */
  function notMeasured() {
    const ranked = rivals().map((index) => shown.payload.groups[index]);
    const experiments = new Set(shown.payload.groups.filter((each) => (
      each.ranked_with === group().ranked_with)).map((each) => each.experiment));
    const labels = new Set(shown.payload.missing.filter((each) => (
      experiments.has(each.experiment) && each.workload === group().workload && each.model === group().model
      && each.emulated === group().emulated && each.simulated === group().simulated && each.source === group().source
      && (judge.isAcrossHardware(shown.choices.per) || each.hardware === group().hardware))).map((each) => each.label));
    for (const { deployments } of ranked) for (const { label } of deployments) labels.delete(label);
    if (labels.size === 0) return [];
    return [`not measured yet: ${firstOf([...labels])}`];
  }

  function openLevels() {
    const { open } = shown.result;
    const tooLittle = group().simulated ? "the error of the model" : "chance";
    const texts = open.slice(0, MOST_NAMED).map(({ deployment, levels, near }) => {
      const reasons = levels.map(({ load, why }) => `${load} is ${why}`);
      reasons.push(...near.map((load) => `${load} misses by no more than ${tooLittle}`));
      return `${deployment.label} may hold more: ${reasons.join(", ")}`;
    });
    if (open.length > texts.length) texts.push(`${open.length - texts.length} more may hold more`);
    return texts;
  }

  function firstOf(names) {
    const more = names.length - MOST_NAMED;
    return names.slice(0, MOST_NAMED).join(", ") + (more > 0 ? ` and ${more} more` : "");
  }

  // The ranking

  /* Of a deployment of a group; null where no price is known. */
  function usdPerHour({ deployment, group: { hardware } }) {
    const price = priceOf(hardware);
    return price === null ? deployment.usd_per_hour : price * deployment.devices;
  }

  function rankingView() {
    const { per, part, sort, reversed, allRows } = shown.choices;
    const rows = shown.result.ranking.map((ranked, place) => ({ ranked, place }));
    const partInSight = isByPart() ? part : null;
    return { rows, unit: unit(), per, part: partInSight, usdPerHour, sort, reversed, hasAllRows: allRows };
  }

  function showPrices() {
    prices.show(rankingView(), shown.choices, (ratio) => { shown.choices.ratio = ratio; showPrices(); writeAddress(); });
  }

  function showRanking() {
    rankingTable.show(rankingView());
    const count = shown.result.ranking.length;
    allRowsButton.textContent = `show all ${count} rows`;
    allRowsButton.hidden = shown.choices.allRows || count <= ranking.MOST_ROWS;
    const ranked = new Set(shown.result.ranking.map((each) => each.deployment));
    const labelsByReason = new Map();
    for (const { label, reason } of rivals().flatMap((index) => unrankedOf(shown.payload.groups[index], ranked))) {
      labelsByReason.set(reason, [...labelsByReason.get(reason) ?? [], label]);
    }
    const texts = [...labelsByReason].map(([reason, labels]) => `${reason}: ${firstOf(labels)}`);
    byId("not-ranked").textContent = texts.join("; ");
  }

  /* The deployments of a group that are not in the ranking, as {label, reason}. */
  function unrankedOf({ deployments, slos }, ranked) {
    const disagreeing = slos[shown.choices.slo]?.disagreeing ?? [];
    const all = deployments.map((deployment, index) => ({
      label: disagreeing.includes(index) ? `${deployment.label} (answers differ)` : deployment.label,
      reason: missedText(deployment),
    }));
    return all.filter((_, index) => !ranked.has(deployments[index]));
  }

  /* Why a deployment is in no ranking; where parts are judged, which of them miss its lowest levels. */
  function missedText(deployment) {
    const lowest = shown.result.missed.get(deployment);
    if (!isByPart() || lowest === undefined) return "holds at no level, or cannot be ranked";
    const texts = lowest.map((each) => `missed by ${ranking.missedParts(each)} at ${each.point.load}`);
    return `holds at no level, ${texts.join(", ")}`;
  }

  function chooseAllRows() {
    shown.choices.allRows = true;
    showRanking();
    writeAddress();
  }

  function chooseSort(column) {
    const { choices } = shown;
    choices.reversed = choices.sort === column && !choices.reversed;
    choices.sort = column;
    showRanking();
    writeAddress();
  }

  async function copy(button, text) {
    const title = button.textContent;
    button.textContent = await isCopied(text) ? "copied" : "not allowed here";
    setTimeout(() => { button.textContent = title; }, COPIED_MS);
  }

  /* Browsers without a clipboard for files from disk copy what is selected. */
  async function isCopied(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = element("textarea", text);
      document.body.append(area);
      area.select();
      const copied = document.execCommand("copy");
      area.remove();
      return copied;
    }
  }

  // Charts

  const ALL_POINTS = ["frontier", "curves", "roofline", "heat"];
  const ONE_POINT = ["distribution", "timeline"];

  function drawFrontier(chart) {
    const { deployments, device } = group();
    const points = [];
    for (const each of shown.result.judged) {
      const perUser = each.point.figures.per_user;
      if (!perUser || each.throughput === null) continue;
      const deployment = deployments[each.point.deployment];
      const devices = deployment.devices || 1;
      points.push({
        x: perUser,
        y: each.throughput.estimate / devices,
        lower: each.throughput.lower / devices,
        upper: each.throughput.upper / devices,
        confidence: confidence(),
        label: deployment.label,
        load: each.point.load,
        state: stateOf(each),
        remark: isByPart() && each.missed.length > 0 ? `\nmissed by ${ranking.missedParts(each)}` : "",
      });
    }
    const areCounted = deployments.every((deployment) => deployment.devices);
    charts.frontier(chart, points, "tokens/s a user sees", areCounted ? `tokens/s per ${device}` : "tokens/s");
  }

  function stateOf(judged) {
    if (judged.point.excluded !== null) return "excluded";
    return judged.holds ? "holds" : "misses";
  }

  /* The deployments of the group in sight, as they are ranked. */
  function rankedHere() {
    return shown.result.ranking.filter((each) => each.group === group());
  }

  /* The best deployments, in order; where too few are ranked others follow. */
  function highlighted() {
    const ranked = rankedHere().map((each) => each.index);
    const isRanked = new Set(ranked);
    const others = group().deployments.map((_, index) => index).filter((index) => !isRanked.has(index));
    return [...ranked, ...others].slice(0, MOST_CURVES);
  }

  function drawCurves(chart) {
    const metric = METRICS[shown.choices.metric];
    const control = group().points[0]?.control;
    const lines = highlighted().map((index) => curveOf(index, metric, control));
    const hasOther = group().points.some((point) => point.control !== control);
    const title = control === "request_rate" ? "requests/s" : "requests in flight";
    const isOfPart = isByPart() && metric !== METRICS.throughput;
    const metricTitle = isOfPart ? `${metric.title} of ${shown.choices.part}` : metric.title;
    charts.curves(chart, lines, metricTitle, hasOther ? `${title} (other loads: in the tables)` : title, limitOf(metric));
  }

  /* The share of the requests of the part in sight that met its limits, or what the point is judged by. */
  function attainmentInSight(judged) {
    if (!isByPart()) return judged.attainment;
    return judged.tests.find((test) => test.part === shown.choices.part)?.share ?? null;
  }

  /* A rate and a number of requests in flight share no axis: the curve is of one of them. */
  function curveOf(index, metric, control) {
    const judged = shown.result.judged.filter((each) => each.point.deployment === index && each.point.control === control);
    const levels = judged.filter((each) => Number.isFinite(each.point.level));
    levels.sort((first, second) => first.point.level - second.point.level);
    const points = levels.map((each) => curvePoint(each, metric));
    return {
      name: group().deployments[index].label,
      points: points.filter((point) => point.y !== null),
    };
  }

  function curvePoint(judged, metric) {
    const { point } = judged;
    const curve = {
      x: point.level, y: null, lower: null, upper: null,
      hollow: point.excluded !== null, load: point.load, confidence: confidence(),
    };
    if (metric.interval === undefined) {
      const y = ranking.figuresOf(point, isByPart() ? shown.choices.part : null)[shown.choices.metric] ?? null;
      return { ...curve, y, ...bandOfModel(y, metric, group().deployments[point.deployment].model_error) };
    }
    const interval = metric.interval(judged);
    if (interval === null) return curve;
    return { ...curve, y: interval.estimate, lower: interval.lower, upper: interval.upper };
  }

  /* What nine in ten measurements of a simulated latency lie between; empty for what was measured. */
  function bandOfModel(latency, metric, error) {
    if (error === null || latency === null || metric.latency === undefined) return {};
    const factor = metric.latency === "ttft" ? error.ttft : error.others;
    return { lower: latency / factor, upper: latency * factor };
  }

  /* The limit that a metric is judged by, in the metric's unit; null: none. */
  function limitOf(metric) {
    const limits = limitsInSight();
    if (metric === METRICS.attainment) return limits.attainment;
    const seconds = limits[metric.latency] ?? null;
    return seconds === null ? null : seconds * 1000;
  }

  function drawHeat(chart) {
    const { heatX, heatY } = shown.choices;
    const columns = valuesOf(heatX);
    const rows = valuesOf(heatY);
    const columnOf = new Map(columns.map((text, index) => [text, index]));
    const rowOf = new Map(rows.map((text, index) => [text, index]));
    const cells = new Map();
    for (const ranked of rankedHere().reverse()) {  // the best comes last and stays
      const x = columnOf.get(settingText(ranked.deployment, heatX));
      const y = rowOf.get(settingText(ranked.deployment, heatY));
      cells.set(`${x} ${y}`, { x, y, value: ranked.throughput.estimate, label: ranked.deployment.label });
    }
    const names = { x: heatX, y: heatY, value: unit() };
    charts.heat(chart, shortened(columns), shortened(rows), [...cells.values()], names);
  }

  const isOnRoofline = (point) => point.figures.flops_per_byte !== null;

  function drawRoofline(chart) {
    const { deployments } = group();
    const points = [];
    for (const judged of shown.result.judged) {
      const { point } = judged;
      if (!isOnRoofline(point)) continue;
      points.push({
        x: point.figures.flops_per_byte,
        y: point.figures.device_flops_s,
        mbu: point.figures.decode_mbu,
        mfu: point.figures.mfu,
        label: deployments[point.deployment].label,
        load: point.load,
        state: stateOf(judged),
      });
    }
    charts.roofline(chart, roofs(), points);
  }

  /* The roofs of the devices in sight, each once. */
  function roofs() {
    const byName = new Map();
    for (const { peaks } of group().deployments) {
      if (peaks === null) continue;
      const name = `${peaks.device}, ${peaks.compute_type}`;
      byName.set(name, { name, bandwidth: peaks.bandwidth_bytes_s, flops: peaks.flops_s });
    }
    return [...byName.values()];
  }

  function drawDistribution(chart) {
    const lines = LATENCIES.map(({ name, title }) => {
      const stops = stopsOf(name);
      const part = isByPart() ? group().parts.indexOf(shown.choices.part) : null;
      const shares = judge.distribution(chosenPoint(), shown.planes[name], stops, part);
      return { name: title, data: stops.map((seconds, index) => [seconds * 1000, shares[index]]) };
    });
    charts.distribution(chart, lines);
  }

  function drawTimeline(chart) {
    if (timelines.draw(chart, group().experiment, chosenPoint().point_id, () => drawn.redraw(["timeline"]))) return;
    const lines = chosenPoint().repeats.map((repeat, index) => {
      let end = 0;
      const data = repeat.tokens.map((tokens, batch) => {
        const seconds = repeat.seconds[batch];
        end += seconds;
        return [end, seconds > 0 ? tokens / seconds : 0];
      });
      return { name: `repeat ${index + 1}`, data };
    });
    charts.timeline(chart, lines);
  }

  // One point: its deployment is chosen first, then its load

  function makePointChoices() {
    const deployment = selection("point-deployment", chooseDeployment);
    deployment.setAttribute("aria-label", "Deployment of the point");
    byId("point-choice").before(deployment, " ");
    byId("point-choice").addEventListener("change", (event) => choosePoint(event.currentTarget.value));
  }

  function chooseDeployment(text) {
    const index = Number(text);
    const points = group().points.filter((point) => point.deployment === index);
    const sameLoad = points.find((point) => point.load === chosenPoint().load);
    choosePoint((sameLoad ?? points[0]).point_id);
  }

  function choosePoint(pointId) {
    shown.choices.point = pointId;
    showPoint();
    writeAddress();
    drawn.redraw(ONE_POINT);
  }

  function showPoint() {
    const point = chosenPoint();
    if (point === undefined) return;
    const { points, deployments } = group();
    const measured = new Set(points.map((each) => each.deployment));
    const names = [...measured].map((index) => [String(index), deployments[index].label]);
    setOptions(byId("point-deployment"), names, String(point.deployment));
    const levels = points.filter((each) => each.deployment === point.deployment);
    setOptions(byId("point-choice"), levels.map((each) => [each.point_id, `at ${each.load}`]), point.point_id);
    byId("point-facts").textContent = pointFacts(point);
    byId("distribution-of").textContent = isByPart() ? `requests of ${shown.choices.part}` : "requests";
  }

  function pointFacts(point) {
    const reasons = point.reasons.length === 0 ? "" : `: ${point.reasons.join("; ")}`;
    const excluded = point.excluded === null ? "" : `; it cannot hold limits: ${point.excluded}`;
    return point.validity + reasons + excluded;
  }

  // The page

  function showChartChoices() {
    const { choices } = shown;
    setOptions(byId("curve-metric"), Object.entries(METRICS).map(([id, metric]) => [id, metric.title]), choices.metric);
    const settings = variedSettings().map((name) => [name, name]);
    byId("heat-section").hidden = settings.length < 2;
    setOptions(byId("heat-x"), settings, choices.heatX);
    setOptions(byId("heat-y"), settings, choices.heatY);
    byId("roofline-section").hidden = !group().points.some(isOnRoofline);
  }

  function chooseForChart(name, value, chart) {
    shown.choices[name] = value;
    writeAddress();
    drawn.redraw([chart]);
  }

  function showAll() {
    showTabs();
    showAnswers();
    showControls();
    judgeAgain();
    announceReady();
    showChartChoices();
    showPoint();
    drawn.redraw(ONE_POINT);
  }

  /* Takes the limits of the file anew, which may be on parts of which no request was there before. */
  function followFile() {
    const { slo, part } = shown.choices;
    chooseSlo(slo);
    if (group().parts.includes(part)) shown.choices.part = part;
  }

  /* A group's name, which stays when others come before it. */
  function identityOf(each) {
    return JSON.stringify([each.experiment, each.workload, each.model, each.hardware, each.emulated, each.simulated, each.source, each.content]);
  }

  /* Shows a payload, the first or a newer one; what the reader chose stays.
     described: the description that decode.js reads; bins: the requests' bins as payload.py writes them. */
  function show(described, bins) {
    const identity = shown.choices === null || shown.payload.groups.length === 0 ? null : identityOf(group());
    const wasAsked = identity !== null && isAsked();
    shown.payload = described;
    shown.planes = judge.planesOf(bins, described.groups);
    shown.judges.clear();
    byId("live").hidden = described.groups.length === 0;
    if (described.groups.length === 0) {
      announceReady();
      return;
    }
    if (identity === null) {
      shown.choices = firstChoices();
      readAddress();
    } else {
      const index = described.groups.findIndex((each) => identityOf(each) === identity);
      if (index === -1) chooseGroup(0);
      else shown.choices.group = index;
      if (wasAsked) followFile();
    }
    mendChoices();
    drawn.look();
    showAll();
  }

  function announceReady() {
    document.body.dataset.ready = "yes";
  }

  function announceDrawn() {
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
  }

  const drawings = {
    frontier: drawFrontier,
    curves: drawCurves,
    roofline: drawRoofline,
    heat: drawHeat,
    distribution: drawDistribution,
    timeline: drawTimeline,
  };
  const drawn = new drawing.Charts(drawings, announceDrawn);
  const rankingTable = new ranking.RankingTable(byId("ranking-table"), chooseSort);
  const allRowsButton = element("button", undefined, { id: "all-rows", type: "button" });

  function listen() {
    byId("not-ranked").before(allRowsButton);
    allRowsButton.addEventListener("click", chooseAllRows);
    byId("copy-csv").addEventListener("click", (event) => copy(event.currentTarget, ranking.csv(rankingView())));
    byId("copy-markdown").addEventListener("click", (event) => copy(event.currentTarget, ranking.markdown(rankingView())));
    byId("curve-metric").addEventListener("change", (event) => chooseForChart("metric", event.currentTarget.value, "curves"));
    byId("heat-x").addEventListener("change", (event) => chooseForChart("heatX", event.currentTarget.value, "heat"));
    byId("heat-y").addEventListener("change", (event) => chooseForChart("heatY", event.currentTarget.value, "heat"));
    addEventListener("hashchange", followAddress);
    addEventListener("resize", () => drawn.resize());
    drawing.followBrowser(drawn);
  }

  async function start() {
    if (!decode.isPossible()) {
      announceReady();  // what needs no script is there
      return;
    }
    makeControls();
    makePointChoices();
    listen();
    const packed = JSON.parse(byId("payload").textContent);
    const [described, bins] = await Promise.all([decode.described(packed.described), decode.unpacked(packed.bins)]);
    show(described, bins);
  }

  return {
    shown,
    show,
    start,
    judgedNow,
    csv: () => ranking.csv(rankingView()),
    markdown: () => ranking.markdown(rankingView()),
  };
})();
app.start();
