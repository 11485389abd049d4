"use strict";
/* What one point did while it ran: throughput above, requests and KV cache below. The lines lie in
   the page packed, apart from what is judged, and are unpacked when the first of them is drawn. */
const timelines = (() => {
  const COLOURS = { tokens: "#0072b2", flight: "#8c6bb1", running: "#009e73", waiting: "#d55e00", kv: "#e69f00", power: "#cc79a7", heat: "#a65628" };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let byPoint = null;
  let drawAgain = null;  // of a chart that was asked for before the lines were read

  async function read() {
    const stored = JSON.parse(document.getElementById("timelines").textContent);
    take(await decode.record(stored.timelines), stored);
  }

  /* The lines as Timelines.lines writes them. */
  function takeLines(texts) {
    const [counts, ...records] = texts.map((text) => JSON.parse(text));
    take(records.map((record) => record.timeline), counts);
  }

  function take(lines, counts) {
    byPoint = new Map(lines.map((line) => [keyOf(line.experiment, line.point_id), line]));
    document.getElementById("timelines-kept").textContent = counts.left_out > 0
      ? `The page has room for the time lines of ${counts.kept} points, first of the deployments that the curves show; ${counts.left_out} are left out.` : "";
    if (drawAgain !== null) drawAgain();
  }

  const keyOf = (experiment, pointId) => JSON.stringify([experiment, pointId]);

  /* Draws the time line of a point. Returns false where there is none, or not yet: `again` is called
     once they are read. */
  function draw(chart, experiment, pointId, again) {
    if (byPoint === null) {
      drawAgain = again;
      return false;
    }
    const line = byPoint.get(keyOf(experiment, pointId));
    const facts = document.getElementById("timeline-facts");
    facts.textContent = line === undefined ? "No finer time line of this point is in the page: tenths of its window." : factsOf(line);
    if (line === undefined) return false;
    chart.setOption(optionOf(line), true);
    return true;
  }

  function factsOf(line) {
    const facts = ["grey: the steady window"];
    if (line.repeats > 1) facts.push(`repeat ${line.repeat + 1} of ${line.repeats}`);
    if (line.is_interpolated) facts.push("tokens of an answer evenly between its first and last");
    if (line.readings === null) facts.push("the engine's own metrics were not stored");
    else facts.push("marks: running, waiting and KV cache as the engine says");
    return facts.join("; ");
  }

  function axis(name, grid, extra) {
    return {
      gridIndex: grid, name, nameLocation: "middle", nameTextStyle: { color: css("--soft") }, min: 0,
      axisLabel: { color: css("--soft"), formatter: charts.number },
      axisLine: { lineStyle: { color: css("--line") } }, splitLine: { lineStyle: { color: css("--line") } }, ...extra,
    };
  }

  function optionOf(line) {
    const steps = (values) => values.map((value, index) => [(index + 0.5) * line.step_s, value]);
    const readings = line.readings;
    const atReadings = (values) => values.map((value, index) => [readings.seconds[index], value]);
    const end = line.step_s * line.throughput.length;
    const series = [curve("output tokens/s", COLOURS.tokens, steps(line.throughput), 0)];
    series.push(curve("in flight (client)", COLOURS.flight, steps(line.in_flight), 1));
    if (readings !== null) {
      if (readings.running.length) series.push(marks("running", COLOURS.running, atReadings(readings.running)));
      if (readings.waiting.length) series.push(marks("waiting", COLOURS.waiting, atReadings(readings.waiting), "diamond"));
      if (readings.kv_usage.length) series.push({ ...marks("KV cache in use", COLOURS.kv, atReadings(readings.kv_usage), "triangle"), yAxisIndex: 2 });
    }
    const gpus = line.gpus;
    const hasPower = gpus !== null && gpus.power_w.length > 0;
    if (gpus !== null) {
      const atGpus = (values) => values.map((value, index) => [gpus.seconds[index], value]);
      if (hasPower) series.push({ ...curve("GPU power, W", COLOURS.power, atGpus(gpus.power_w), 0), yAxisIndex: 3 });
      if (gpus.temperature_c.length) series.push({ ...curve("hottest GPU, °C", COLOURS.heat, atGpus(gpus.temperature_c), 0), yAxisIndex: 4 });
    }
    for (const each of [series[0], series[1]]) {
      each.markArea = { silent: true, itemStyle: { color: css("--line"), opacity: 0.35 }, data: [[{ xAxis: line.window_s[0] }, { xAxis: Math.min(line.window_s[1], end) }]] };
    }
    const time = (grid, shown) => axis(shown ? "s since its start" : "", grid, { type: "value", max: end, nameGap: 26, axisLabel: { show: shown, color: css("--soft"), formatter: charts.number } });
    return {
      animation: false, textStyle: { color: css("--ink") },
      aria: { enabled: true, label: { description: `output tokens per second, requests and KV cache over ${charts.number(end)} seconds` } },
      legend: { type: "scroll", top: 0, textStyle: { color: css("--ink") }, pageTextStyle: { color: css("--ink") }, pageIconColor: css("--accent") },
      grid: [{ left: 62, right: 70, top: 32, height: "33%" }, { left: 62, right: 70, top: "54%", bottom: 44 }],
      xAxis: [time(0, false), time(1, true)],
      yAxis: [
        axis("tokens/s", 0, { nameGap: 46, splitNumber: 3 }), axis("requests", 1, { nameGap: 46, splitNumber: 3, minInterval: 1 }),
        axis("KV cache", 1, { nameGap: 38, max: 1, splitNumber: 2, position: "right", splitLine: { show: false }, show: readings !== null && readings.kv_usage.length > 0,
          axisLabel: { color: css("--soft"), formatter: (share) => `${Math.round(share * 100)} %` } }),
        axis("GPU power, W", 0, { nameGap: 46, splitNumber: 3, position: "right", splitLine: { show: false }, show: hasPower }),
        axis("", 0, { max: 110, position: "right", show: false }),  // degrees: the legend names them
      ],
      tooltip: {
        trigger: "axis", renderMode: "richText", confine: true, backgroundColor: css("--panel"), textStyle: { color: css("--ink") },
        formatter: (items) => [`${charts.number(items[0].value[0])} s`, ...items.map((item) => `${item.seriesName}: ${
          item.seriesName === "KV cache in use" ? `${charts.number(item.value[1] * 100)} %` : charts.number(item.value[1])}`)].join("\n"),
      },
      axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: css("--soft") } },
      series,
    };
  }

  /* Readings, some seconds apart: what lies between them is not known, so their line is faint. */
  function marks(name, color, data, symbol = "circle") {
    return { ...curve(name, color, data, 1), symbol, symbolSize: 7, lineStyle: { color, width: 1, type: "dotted", opacity: 0.6 } };
  }

  function curve(name, color, data, grid) {
    return {
      type: "line", name, data, xAxisIndex: grid, yAxisIndex: grid, color, symbol: "none",
      lineStyle: { color, width: 1.6 }, itemStyle: { color },
    };
  }

  /* After the answer is shown. */
  if (decode.isPossible()) addEventListener("load", () => setTimeout(read));

  return { draw, takeLines };
})();
