"use strict";
/* Draws. Each function takes an ECharts instance and plain figures; none of them judges. */
const charts = (() => {
  // Okabe and Ito's colours, which colour-blind people can tell apart; black is left out for dark pages
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b0a000", "#8c6bb1"];
  const SYMBOLS = ["circle", "rect", "triangle", "diamond", "pin", "roundRect", "arrow", "circle"];
  const HEAT_COLOURS = ["#cfe3f5", "#56b4e9", "#0072b2", "#00304d"];
  const THEME_NAMES = ["ink", "soft", "paper", "panel", "line", "accent", "good", "warn"];
  const MOST_BARS = 100;  // of more points that hold, those of the frontier alone have bars
  const ROOF_ROOM = 3;  // a roofline reaches to so many times the outermost points
  const TERA = 1e12;
  const CAP = 3;  // pixels that the end of a bar is wide to each side
  const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

  const figuresOf = new WeakMap();  // as text, by chart
  let colours = null;

  /* The colours of style.css as they are now: light or dark. */
  function theme() {
    colours ??= themeOf(document.documentElement);
    return colours;
  }

  function themeOf(element) {
    const style = getComputedStyle(element);
    const values = THEME_NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]);
    return Object.fromEntries(values);
  }

  /* Takes the colours of an element of the page from now on. */
  function takeTheme(element) {
    colours = themeOf(element);
  }

  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    if (!Number.isFinite(value)) return "∞";
    const size = Math.abs(value);
    if (size >= 1000) return wholeNumber.format(value);
    if (size === 0) return "0";
    return String(Number(value.toPrecision(3)));
  }

  const hasInterval = ({ lower }) => lower !== null && !Number.isNaN(lower);

  /* A line of its own; empty where there is no interval, or its bounds are unknown. */
  function intervalText(point) {
    if (!hasInterval(point)) return "";
    return `\n${number(point.lower)} to ${number(point.upper)} (${point.confidence})`;
  }

  function axis(name, extra) {
    const { soft, line } = theme();
    return {
      type: "value", scale: true, name, nameLocation: "middle", nameGap: 28,
      nameTextStyle: { color: soft },
      axisLabel: { color: soft, formatter: number },
      axisLine: { lineStyle: { color: line } },
      splitLine: { lineStyle: { color: line } },
      ...extra,
    };
  }

  /* What every chart has. description: read aloud in place of the picture. */
  function base(description) {
    const { ink, panel, accent } = theme();
    return {
      animation: false,
      color: COLOURS,
      aria: { enabled: true, label: { description } },
      textStyle: { color: ink },
      grid: { left: 62, right: 16, top: 34, bottom: 46 },
      tooltip: { renderMode: "richText", confine: true, transitionDuration: 0, backgroundColor: panel, textStyle: { color: ink } },
      legend: { type: "scroll", animation: false, top: 0, textStyle: { color: ink }, pageTextStyle: { color: ink }, pageIconColor: accent },
    };
  }

  /* Shows an option in place of what the chart showed. */
  function draw(chart, option) {
    chart.setOption(option, { notMerge: true, silent: true });
  }

  /* Whether a chart shows these figures already, in the colours of now: a slider often moves without
     changing the best deployments. */
  function isShown(chart, figures) {
    const text = JSON.stringify([theme(), figures]);
    if (figuresOf.get(chart) === text) return true;
    figuresOf.set(chart, text);
    return false;
  }

  /* The coordinates of points, one after the other: ECharts reads these without a copy. */
  function coordinatesOf(points) {
    const coordinates = new Float64Array(2 * points.length);
    points.forEach((point, index) => {
      coordinates[2 * index] = point.x;
      coordinates[2 * index + 1] = point.y;
    });
    return coordinates;
  }

  /* Three lists of points: those that hold the limits, that miss them, and that are not valid. */
  function byState(points) {
    return ["holds", "misses", "excluded"].map((state) => points.filter((point) => point.state === state));
  }

  /* A series of marks for each list of points that byState returns: one path for all marks of a series. */
  function marksOf(pointsOfSeries, soft) {
    const looks = [
      { name: "holds the limits", itemStyle: { color: COLOURS[2] } },
      { name: "misses them", itemStyle: { color: COLOURS[1] } },
      { name: "cannot hold (not valid)", itemStyle: { color: "transparent", borderColor: soft, borderWidth: 1.5 } },
    ];
    return looks.map((look, index) => ({
      type: "scatter", ...look, symbolSize: 10,
      large: pointsOfSeries[index].length > 0, largeThreshold: 0, progressive: 0,
      data: coordinatesOf(pointsOfSeries[index]),
    }));
  }

  /* points: {x, y, lower, upper, label, load, state, remark} with state one of holds, misses, excluded. */
  function frontier(chart, points, xName, yName) {
    const { soft, accent } = theme();
    const pointsOfSeries = byState(points);
    const series = marksOf(pointsOfSeries, soft);
    const edge = paretoEdge(pointsOfSeries[0]);
    series.push({
      type: "line", name: "frontier", step: "start", symbol: "none", silent: true,
      lineStyle: { color: accent, width: 1.5 }, itemStyle: { color: accent },
      data: edge.map((point) => [point.x, point.y]),
    });
    series.push(barsOf(pointsOfSeries[0].length > MOST_BARS ? edge : pointsOfSeries[0], soft));
    const option = base(`${yName} against ${xName}: ${pointsOfSeries[0].length} of ${points.length} points hold the limits`);
    option.tooltip.formatter = (item) => {
      const point = pointsOfSeries[item.seriesIndex][item.dataIndex];
      return `${point.label} at ${point.load}\n${number(point.x)} ${xName}\n${number(point.y)} ${yName}${intervalText(point)}${point.remark}`;
    };
    draw(chart, { ...option, xAxis: axis(xName), yAxis: axis(yName, { nameGap: 46 }), series });
  }

  /* The intervals of points as bars with caps, beneath the points. */
  function barsOf(points, color) {
    return {
      type: "custom", silent: true, tooltip: { show: false }, z: 1, encode: { x: 0, y: [1, 2] },
      data: points.filter(hasInterval).map((point) => [point.x, point.lower, point.upper]),
      renderItem: (item, api) => {
        const [x, low] = api.coord([api.value(0), api.value(1)]);
        const [, high] = api.coord([api.value(0), api.value(2)]);
        const cap = (y) => [[x - CAP, y], [x + CAP, y], [x, y]];
        return {
          type: "polyline",
          style: { stroke: color, fill: "none", lineWidth: 1 },
          shape: { points: [...cap(low), ...cap(high).reverse()] },
        };
      },
    };
  }

  /* The points that no other beats in both figures, by ascending x. Of equal ones each stays. */
  function paretoEdge(points) {
    const sorted = [...points].sort((first, second) => second.x - first.x || second.y - first.y);
    const edge = [];
    let highest = -Infinity;
    for (const point of sorted) {
      const last = edge[edge.length - 1];
      const isEqual = last !== undefined && last.x === point.x && last.y === point.y;
      if (point.y > highest || isEqual) edge.push(point);
      highest = Math.max(highest, point.y);
    }
    return edge.reverse();
  }

  /* lines: {name, points: [{x, y, lower, upper, hollow, load}]}; lower and upper may be null. */
  function curves(chart, lines, yName, xName, limit) {
    if (isShown(chart, [lines, yName, xName, limit])) return;
    const option = base(`${yName} over ${xName} for ${lines.length} deployments`);
    option.tooltip.trigger = "item";
    option.tooltip.formatter = (item) => `${item.seriesName} at ${item.data.load}\n${number(item.value[1])} ${yName}${item.data.interval}`;
    const series = lines.flatMap((line, index) => [lineOf(line, index), bandOf(line, index)]);
    if (limit !== null && series.length > 0) series[0].markLine = limitLine(limit);
    draw(chart, { ...option, xAxis: axis(xName), yAxis: axis(yName, { nameGap: 46 }), series });
  }

  function lineOf(line, index) {
    const color = COLOURS[index % COLOURS.length];
    return {
      type: "line", name: line.name, symbol: SYMBOLS[index % SYMBOLS.length], symbolSize: 7, color,
      lineStyle: { color, width: 1.6 },
      data: line.points.map((point) => ({
        value: [point.x, point.y],
        load: point.load,
        interval: intervalText(point),
        itemStyle: point.hollow ? { color: "transparent", borderColor: color } : { color },
      })),
    };
  }

  /* The intervals of a line's points as one area, drawn where ECharts asks for its first corner. */
  function bandOf(line, index) {
    const color = COLOURS[index % COLOURS.length];
    const points = line.points.filter(hasInterval);
    const outline = [
      ...points.map((point) => [point.x, point.upper]),
      ...[...points].reverse().map((point) => [point.x, point.lower]),
    ];
    return {
      type: "custom", silent: true, tooltip: { show: false }, data: outline,
      renderItem: (corner, api) => {
        if (corner.dataIndex > 0) return null;
        return {
          type: "polygon",
          style: { fill: color, opacity: 0.15 },
          shape: { points: outline.map((each) => api.coord(each)) },
        };
      },
    };
  }

  function limitLine(limit) {
    const { warn } = theme();
    return {
      symbol: "none", silent: true, lineStyle: { color: warn, type: "dashed" },
      label: { formatter: `limit ${number(limit)}`, color: warn, position: "insideEndTop" },
      data: [{ yAxis: limit }],
    };
  }

  /* cells: {x, y, value, label}: the best of the deployments that share two settings. */
  function heat(chart, columns, rows, cells, names) {
    if (isShown(chart, [columns, rows, cells, names])) return;
    const { soft, paper } = theme();
    const values = cells.map((cell) => cell.value);
    const least = Math.min(...values);
    const most = Math.max(...values);
    const option = base(`${names.value} by ${names.x} and ${names.y}`);
    option.legend.show = false;
    option.tooltip.formatter = (item) => `${names.x} ${columns[item.value[0]]}, ${names.y} ${rows[item.value[1]]}\n${number(item.value[2])} ${names.value}\n${item.data.label}`;
    const category = { type: "category", scale: undefined, splitArea: { show: false }, splitLine: { show: false } };
    const label = { color: soft, overflow: "truncate" };
    draw(chart, {
      ...option,
      grid: { left: 110, right: 70, top: 10, bottom: 46 },
      xAxis: axis(names.x, { ...category, data: columns, axisLabel: { ...label, width: 110 } }),
      yAxis: axis(names.y, { ...category, data: rows, nameGap: 80, axisLabel: { ...label, width: 90 } }),
      visualMap: {
        show: most > least, min: most > least ? least : 0, max: cells.length > 0 ? most : 1, right: 0, top: "middle",
        inRange: { color: HEAT_COLOURS }, textStyle: { color: soft },
        text: [number(most), number(least)], itemHeight: 100, calculable: false,
      },
      series: [{
        type: "heatmap", progressive: 0, itemStyle: { borderColor: paper, borderWidth: 2 },
        data: cells.map((cell) => ({ value: [cell.x, cell.y, cell.value], label: cell.label })),
      }],
    });
  }

  /* What one device can do: as many FLOPs for a byte as its bandwidth feeds, up to its peak.
     roofs: {name, bandwidth, flops} in B/s and FLOP/s of one device; points: {x, y, mbu, mfu, label,
     load, state}, with x in FLOPs per byte and y in FLOP/s of one device. */
  function roofline(chart, roofs, points) {
    const { soft } = theme();
    const intensities = [...points.map((point) => point.x), ...roofs.map((roof) => roof.flops / roof.bandwidth)];
    const least = Math.min(...intensities) / ROOF_ROOM;
    const most = Math.max(...intensities) * ROOF_ROOM;
    const pointsOfSeries = byState(points.map((point) => ({ ...point, y: point.y / TERA })));
    const series = marksOf(pointsOfSeries, soft);
    roofs.forEach((roof, index) => {
      const ridge = roof.flops / roof.bandwidth;
      const edge = [least, ridge, most].map((x) => [x, Math.min(roof.bandwidth * x, roof.flops) / TERA]);
      series.push({
        type: "line", name: roof.name, symbol: "none", silent: true, data: edge,
        color: COLOURS[index % COLOURS.length], lineStyle: { width: 1.6 },
      });
    });
    const option = base(`FLOP/s against FLOPs per byte: ${points.length} points below ${roofs.map((roof) => roof.name).join(", ")}`);
    option.tooltip.formatter = (item) => {
      const point = pointsOfSeries[item.seriesIndex][item.dataIndex];
      return `${point.label} at ${point.load}\n${percent(point.mbu)} of the bandwidth (decode MBU)\n${percent(point.mfu)} of the FLOP/s (MFU)`;
    };
    const log = { type: "log", scale: undefined };
    draw(chart, {
      ...option,
      xAxis: axis("FLOPs per byte", { ...log, min: least, max: most }),
      yAxis: axis("TFLOP/s of one device", { ...log, nameGap: 46 }),
      series,
    });
  }

  const percent = (share) => `${(share * 100).toFixed(1)} %`;

  /* lines: {name, data: [[ms, share]]} */
  function distribution(chart, lines) {
    const option = base("shares of requests by latency");
    option.tooltip.formatter = (item) => `${item.seriesName}\n${(item.value[1] * 100).toFixed(1)} % within ${number(item.value[0])} ms`;
    draw(chart, {
      ...option,
      xAxis: axis("ms", { type: "log", scale: undefined }),
      yAxis: axis("share", { min: 0, max: 1, nameGap: 40 }),
      series: lines.map((line) => ({ type: "line", name: line.name, step: "end", symbol: "none", data: line.data })),
    });
  }

  /* lines: {name, data: [[seconds, tokens/s]]} */
  function timeline(chart, lines) {
    const option = base("output tokens per second over time");
    option.tooltip.formatter = (item) => `${item.seriesName}\n${number(item.value[1])} tokens/s at ${number(item.value[0])} s`;
    draw(chart, {
      ...option,
      xAxis: axis("s since the window began"),
      yAxis: axis("output tokens/s", { nameGap: 46 }),
      series: lines.map((line) => ({ type: "line", name: line.name, step: "end", symbolSize: 4, data: line.data })),
    });
  }

  return { number, theme, takeTheme, axis, base, draw, frontier, paretoEdge, curves, heat, roofline, distribution, timeline };
})();
