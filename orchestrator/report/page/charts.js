"use strict";
/* Draws. Each function takes an ECharts instance and plain figures; none of them judges. */
const charts = (() => {
  // Okabe and Ito's colours, which colour-blind people can tell apart; black is left out for dark pages
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b0a000", "#8c6bb1"];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "pin", "roundRect", "arrow", "circle"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    if (!Number.isFinite(value)) return "∞";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    if (size === 0) return "0";
    return String(Number(value.toPrecision(3)));
  }

  function axis(name, extra) {
    return {
      type: "value", scale: true, name, nameLocation: "middle", nameGap: 28,
      nameTextStyle: { color: css("--soft") }, axisLabel: { color: css("--soft"), formatter: number },
      axisLine: { lineStyle: { color: css("--line") } }, splitLine: { lineStyle: { color: css("--line") } },
      ...extra,
    };
  }

  function base(description) {
    return {
      animation: false, color: COLOURS, aria: { enabled: true, label: { description } },
      textStyle: { color: css("--ink") },
      grid: { left: 62, right: 16, top: 34, bottom: 46 },
      tooltip: { renderMode: "richText", confine: true, backgroundColor: css("--panel"), textStyle: { color: css("--ink") } },
      legend: { type: "scroll", top: 0, textStyle: { color: css("--ink") }, pageTextStyle: { color: css("--ink") }, pageIconColor: css("--accent") },
    };
  }

  /* points: {x, y, label, load, state} with state one of holds, misses, excluded. */
  function frontier(chart, points, xName, yName) {
    const looks = {
      holds: { name: "holds the limits", color: COLOURS[2], hollow: false },
      misses: { name: "misses them", color: COLOURS[1], hollow: false },
      excluded: { name: "cannot hold (not valid)", color: css("--soft"), hollow: true },
    };
    const series = Object.entries(looks).map(([state, look]) => ({
      type: "scatter", name: look.name, symbolSize: 10,
      itemStyle: look.hollow ? { color: "transparent", borderColor: look.color, borderWidth: 1.5 } : { color: look.color },
      data: points.filter((point) => point.state === state)
        .map((point) => ({ value: [point.x, point.y], name: `${point.label} at ${point.load}` })),
    }));
    const edge = paretoEdge(points.filter((point) => point.state !== "excluded"));
    series.push({
      type: "line", name: "frontier", step: "start", symbol: "none", silent: true,
      lineStyle: { color: css("--accent"), width: 1.5 }, itemStyle: { color: css("--accent") },
      data: edge.map((point) => [point.x, point.y]),
    });
    const option = base(`${xName} against ${yName}, ${points.length} points`);
    option.tooltip.formatter = (item) => `${item.name}\n${number(item.value[0])} ${xName}\n${number(item.value[1])} ${yName}`;
    chart.setOption({ ...option, xAxis: axis(xName), yAxis: axis(yName, { nameGap: 46 }), series }, true);
  }

  /* The points that no other beats in both figures. Of equal ones each stays. */
  function paretoEdge(points) {
    const sorted = [...points].sort((a, b) => b.x - a.x || b.y - a.y);
    const edge = [];
    let highest = -Infinity;
    for (const point of sorted) {
      const same = edge.length > 0 && edge[edge.length - 1].x === point.x && edge[edge.length - 1].y === point.y;
      if (point.y > highest || same) edge.push(point);
      highest = Math.max(highest, point.y);
    }
    return edge.reverse();
  }

  /* curves: {name, points: [{x, y, lower, upper, hollow, load}]}; lower and upper may be null. */
  function curves(chart, lines, yName, xName, limit) {
    const option = base(`${yName} over ${xName} for ${lines.length} deployments`);
    option.tooltip.trigger = "item";
    option.tooltip.formatter = (item) => `${item.seriesName} at ${item.data.load}\n${number(item.value[1])} ${yName}${item.data.interval}`;
    const series = lines.flatMap((line, index) => {
      const color = COLOURS[index % COLOURS.length];
      const banded = line.points.filter((point) => point.lower !== null);
      return [
        {
          type: "line", name: line.name, symbol: SYMBOLS[index % SYMBOLS.length], symbolSize: 7, color,
          lineStyle: { color, width: 1.6 },
          data: line.points.map((point) => ({
            value: [point.x, point.y], load: point.load,
            interval: point.lower === null ? "" : `\n${number(point.lower)} to ${number(point.upper)} (95 %)`,
            itemStyle: point.hollow ? { color: "transparent", borderColor: color } : { color },
          })),
        },
        {
          type: "custom", silent: true, tooltip: { show: false }, data: banded.length > 1 ? [0] : [],
          renderItem: (params, api) => ({
            type: "polygon", style: { fill: color, opacity: 0.15 },
            shape: { points: [
              ...banded.map((point) => api.coord([point.x, point.upper])),
              ...[...banded].reverse().map((point) => api.coord([point.x, point.lower])),
            ] },
          }),
        },
      ];
    });
    if (limit !== null && series.length > 0) {
      series[0].markLine = {
        symbol: "none", silent: true, lineStyle: { color: css("--warn"), type: "dashed" },
        label: { formatter: `limit ${number(limit)}`, color: css("--warn"), position: "insideEndTop" },
        data: [{ yAxis: limit }],
      };
    }
    chart.setOption({ ...option, xAxis: axis(xName), yAxis: axis(yName, { nameGap: 46 }), series }, true);
  }

  /* cells: {x, y, value, label}: the best of the deployments that share two settings. */
  function heat(chart, columns, rows, cells, names) {
    const values = cells.map((cell) => cell.value);
    const option = base(`${names.value} by ${names.x} and ${names.y}`);
    option.legend.show = false;
    option.tooltip.formatter = (item) => `${names.x} ${columns[item.value[0]]}, ${names.y} ${rows[item.value[1]]}\n${number(item.value[2])} ${names.value}\n${item.data.label}`;
    const category = { type: "category", splitArea: { show: false }, splitLine: { show: false } };
    chart.setOption({
      ...option, grid: { left: 110, right: 70, top: 10, bottom: 46 },
      xAxis: axis(names.x, { ...category, scale: undefined, data: columns, axisLabel: { color: css("--soft"), interval: 0, width: 110, overflow: "truncate" } }),
      yAxis: axis(names.y, { ...category, scale: undefined, data: rows, nameGap: 80, axisLabel: { color: css("--soft"), width: 90, overflow: "truncate" } }),
      visualMap: {
        show: cells.length > 1, min: Math.min(...values, 0), max: Math.max(...values, 1), right: 0, top: "middle",
        inRange: { color: ["#cfe3f5", "#56b4e9", "#0072b2", "#00304d"] }, textStyle: { color: css("--soft") },
        formatter: number, itemHeight: 100, calculable: false,
      },
      series: [{
        type: "heatmap", data: cells.map((cell) => ({ value: [cell.x, cell.y, cell.value], label: cell.label })),
        itemStyle: { borderColor: css("--paper"), borderWidth: 2 },
      }],
    }, true);
  }

  function distribution(chart, lines) {
    const option = base("shares of requests by latency");
    option.tooltip.formatter = (item) => `${item.seriesName}\n${(item.value[1] * 100).toFixed(1)} % within ${number(item.value[0])} ms`;
    chart.setOption({
      ...option,
      xAxis: axis("ms", { type: "log", scale: undefined }), yAxis: axis("share", { min: 0, max: 1, nameGap: 40 }),
      series: lines.map((line) => ({ type: "line", name: line.name, step: "end", symbol: "none", data: line.data })),
    }, true);
  }

  function timeline(chart, lines) {
    const option = base("output tokens per second over time");
    option.tooltip.formatter = (item) => `${item.seriesName}\n${number(item.value[1])} tokens/s at ${number(item.value[0])} s`;
    chart.setOption({
      ...option,
      xAxis: axis("s since the window began"), yAxis: axis("output tokens/s", { nameGap: 46 }),
      series: lines.map((line) => ({ type: "line", name: line.name, step: "end", symbolSize: 4, data: line.data })),
    }, true);
  }

  return { number, frontier, paretoEdge, curves, heat, distribution, timeline };
})();
if (typeof module !== "undefined") module.exports = charts;
