"use strict";
/* The charts of a comparison of two sweeps: BASE is dashed and starred, NEW is solid. */
const comparison = (() => {
  const STAR = "path://M10 0 L12.9 6.5 L20 7.3 L14.7 12 L16.2 19 L10 15.4 L3.8 19 L5.3 12 L0 7.3 L7.1 6.5 Z";
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];  // Okabe and Ito's, one for each deployment
  const SYMBOLS = { worse: "diamond", better: "triangle", same: "circle", undecided: "circle" };
  const MOST_NAME = 250;  // pixels that the name of a pair may take
  const CAP = 4;  // pixels that the end of an interval is high to each side
  const ROW_HEIGHT = 22;  // pixels
  const byId = (id) => document.getElementById(id);
  const charted = JSON.parse(byId("comparison").textContent);

  function chosen(kind) {
    return charted[`${kind}s`][Number(byId(`${kind}-choice`).value)];
  }

  function drawCurves(chart) {
    const shown = chosen("curve");
    const option = charts.base(`${shown.y_name} over ${shown.x_name} in both sweeps`);
    option.tooltip.formatter = (item) => {
      const point = item.data.point;
      return `${item.data.deployment} at ${point.load}\n★ BASE ${charts.number(point.base)}\nNEW ${charts.number(point.new)}\n${point.text}`;
    };
    charts.draw(chart, {
      ...option,
      xAxis: charts.axis(shown.x_name),
      yAxis: charts.axis(shown.y_name, { nameGap: 46 }),
      series: shown.curves.flatMap((curve, index) => [seriesOf(curve, "base", index), seriesOf(curve, "new", index)]),
    });
    const rest = shown.deployments - shown.curves.length;
    byId("curve-note").textContent = "★ dashed: BASE" + (rest > 0 ? `; ${rest} more deployments are in the table` : "");
  }

  function seriesOf(curve, side, index) {
    const isBase = side === "base";
    const color = COLOURS[index];
    const points = curve.points.filter((point) => typeof point.level === "number");
    return {
      type: "line", name: isBase ? `★ ${curve.deployment}` : curve.deployment,
      symbol: isBase ? STAR : "circle", symbolSize: isBase ? 13 : 8, color,
      lineStyle: { color, width: 1.8, type: isBase ? "dashed" : "solid" },
      data: points.map((point) => ({ value: [point.level, point[side]], point, deployment: curve.deployment })),
    };
  }

  function drawChanges(chart) {
    const shown = chosen("change");
    const { soft, ink } = charts.theme();
    const rows = [...shown.changes].reverse();  // ECharts begins at the bottom
    const nameWidth = Math.min(MOST_NAME, chart.getWidth() * 0.45);
    const option = charts.base(`change of ${shown.title} in ${shown.unit}, ${rows.length} pairs`);
    option.legend.show = false;
    option.tooltip.formatter = (item) => `${rows[item.dataIndex].name}\n${rows[item.dataIndex].text}`;
    charts.draw(chart, {
      ...option,
      grid: { left: nameWidth, right: 16, top: 10, bottom: 46 },
      xAxis: charts.axis(`change in ${shown.unit}`),
      yAxis: charts.axis("", {
        type: "category", scale: undefined, data: rows.map((row) => row.name), splitLine: { show: false },
        axisLabel: { color: soft, width: nameWidth - 15, overflow: "truncate" },
      }),
      series: [
        {
          type: "custom", silent: true, tooltip: { show: false }, encode: { x: [1, 2], y: 0 },
          data: rows.map((row, index) => [index, row.low ?? row.change, row.high ?? row.change]),
          renderItem: (item, api) => intervalOf(api, ink),
          markArea: {
            silent: true, itemStyle: { color: soft, opacity: 0.15 },
            data: [[{ xAxis: shown.lower }, { xAxis: shown.upper }]],
          },
        },
        {
          type: "scatter", symbolSize: 10,
          data: rows.map((row, index) => ({
            value: [row.change, index], symbol: SYMBOLS[row.verdict], itemStyle: markOf(row.verdict),
          })),
        },
      ],
    });
    byId("change-note").textContent = "grey: tolerated; lines: 95 % intervals; ◆ worse, ▲ better, ● same, ○ undecided";
  }

  function intervalOf(api, color) {
    const [left, y] = api.coord([api.value(1), api.value(0)]);
    const [right] = api.coord([api.value(2), api.value(0)]);
    const cap = (x) => [[x, y - CAP], [x, y + CAP], [x, y]];
    return {
      type: "polyline",
      style: { stroke: color, fill: "none", lineWidth: 1 },
      shape: { points: [...cap(left), ...cap(right).reverse()] },
    };
  }

  /* An undecided change is hollow. */
  function markOf(verdict) {
    const { warn, good, soft } = charts.theme();
    if (verdict === "undecided") return { color: "transparent", borderColor: soft, borderWidth: 1.5 };
    return { color: { worse: warn, better: good }[verdict] ?? soft };
  }

  const drawings = { "change-chart": drawChanges, "curve-chart": drawCurves };
  const drawn = new drawing.Charts(drawings, announceDrawn);

  function announceDrawn() {
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
  }

  function makeChoice(kind) {
    const select = byId(`${kind}-choice`);
    charted[`${kind}s`].forEach((chart, index) => select.add(new Option(chart.title, index)));
    select.addEventListener("change", () => {
      sizeChanges();
      drawn.redraw([`${kind}-chart`]);
    });
  }

  /* A chart of many pairs is as high as their rows. */
  function sizeChanges() {
    const rows = chosen("change").changes.length;
    byId("change-chart").style.height = `${Math.max(336, rows * ROW_HEIGHT + 60)}px`;
    drawn.resize();
  }

  function start() {
    makeChoice("change");
    makeChoice("curve");
    byId("charts").hidden = false;
    sizeChanges();
    addEventListener("resize", () => drawn.resize());
    drawing.followBrowser(drawn);
    drawn.look();
    drawn.redraw();
  }

  return { charted, start };
})();
comparison.start();
