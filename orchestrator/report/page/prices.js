"use strict";
/* What a million tokens cost. An output token is priced as `ratio` times an input token, and both
   prices together pay for the deployment's hour at the load where it holds: prices.py says the same. */
const prices = (() => {
  const MOST_ROWS = 20;
  const MOST_RATIO = 20;
  const { number } = charts;
  const COLUMNS = [
    { title: "deployment", isText: true, of: (row) => row.deployment.label },
    { title: "load", of: (row) => row.load },
    { title: "USD per hour", of: (row) => number(row.usdPerHour) },
    { title: "input", of: (row) => number(row.price.input) },
    { title: "output", of: (row) => number(row.price.output) },
    { title: "both alike", of: (row) => number(row.price.blended) },
    { title: "output, input free", of: (row) => number(row.price.outputAlone) },
  ];
  const PRICES = 4;  // columns at the end that are prices
  let slider = null;

  /* USD per million tokens; null where nothing is known. figures: of a point. Where prompts were not
     counted, only the price with free input is known. */
  function perMillion(usdPerHour, figures, ratio) {
    const input = figures.input_token_throughput;
    const output = figures.output_token_throughput;
    if (!usdPerHour || !output) return null;
    const perToken = (tokensPerSecond) => usdPerHour / 3600 / tokensPerSecond * 1e6;
    const outputAlone = perToken(output);
    if (input === null || input === undefined) return { input: null, output: null, blended: null, outputAlone };
    const ofInput = perToken(input + ratio * output);
    return { input: ofInput, output: ratio * ofInput, blended: perToken(input + output), outputAlone };
  }

  const ratioOf = (choices) => Math.min(Math.max(Number(choices.ratio) || 1, 1), MOST_RATIO);

  function makeSlider(chosen) {
    slider = { input: document.createElement("input"), output: document.createElement("output") };
    Object.assign(slider.input, { id: "price-ratio", type: "range", min: "1", max: String(MOST_RATIO), step: "0.5" });
    slider.input.addEventListener("input", () => chosen(Number(slider.input.value)));
    document.getElementById("price-limits").append(slider.output, slider.input);
  }

  /* table: what the ranking shows; choices: what the reader set; chosen: called with a new ratio. */
  function show(table, choices, chosen) {
    if (slider === null) makeSlider(chosen);
    const ratio = ratioOf(choices);
    const text = `${number(ratio)} times an input token`;
    slider.input.value = String(ratio);
    slider.input.setAttribute("aria-valuetext", text);
    slider.output.textContent = text;
    const rows = [];
    for (const { ranked } of table.rows) {
      const usdPerHour = table.usdPerHour(ranked);
      const price = perMillion(usdPerHour, ranked.judged.point.figures, ratio);
      if (price !== null) rows.push({ deployment: ranked.deployment, load: ranked.load, usdPerHour, price });
    }
    rows.sort((first, second) => cost(first) - cost(second));
    document.getElementById("price-note").textContent = noteOn(rows.length, table.rows.length);
    document.getElementById("price-table").replaceChildren(...(rows.length === 0 ? [] : [head(), body(rows)]));
  }

  const cost = (row) => row.price.input ?? row.price.outputAlone;

  function noteOn(priced, ranked) {
    if (ranked === 0) return "No deployment holds these limits.";
    if (priced === 0) return "No price is known: give one per GPU hour above, or in the file (usd_per_gpu_hour).";
    if (priced > MOST_ROWS) return `The cheapest ${MOST_ROWS} of ${priced} that hold the limits, each at its highest load that does.`;
    return "Each at its highest load that holds the limits, the cheapest first.";
  }

  function cell(tag, text, isText) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (isText) made.className = "text";
    return made;
  }

  function head() {
    const line = document.createElement("tr");
    line.append(...COLUMNS.map((column) => Object.assign(cell("th", column.title, column.isText), { scope: "col" })));
    const made = document.createElement("thead");
    const above = document.createElement("tr");
    above.append(
      Object.assign(document.createElement("td"), { colSpan: COLUMNS.length - PRICES }),
      Object.assign(cell("th", "USD per million tokens"), { colSpan: PRICES, scope: "colgroup" }));
    made.append(above, line);
    return made;
  }

  function body(rows) {
    const made = document.createElement("tbody");
    made.append(...rows.slice(0, MOST_ROWS).map((row) => {
      const line = document.createElement("tr");
      line.append(...COLUMNS.map((column, place) => cell(place === 0 ? "th" : "td", column.of(row), column.isText)));
      line.firstChild.scope = "row";
      return line;
    }));
    return made;
  }

  return { perMillion, show };
})();
