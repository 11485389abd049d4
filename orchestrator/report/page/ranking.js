"use strict";
/* The table of ranked deployments, and its copies as CSV and Markdown. */
const ranking = (() => {
  const { number } = charts;
  const threeDigits = (share) => share.toFixed(3);
  const latencyTitle = (name, { part }) => (part === null ? name : `${name} of ${part}`);

  const MOST_ROWS = 50;  // until all are asked for: a browser paints each of them at every move

  /* What the table shows. rows: {ranked, place}, as judge.js ranks them; unit: of the throughput;
     usdPerHour: of a ranked deployment, null where no price is known; per: what throughputs are divided by;
     part: the part of a mix whose limits are in sight, null where limits are on all requests;
     sort, reversed: the column that orders the rows; hasAllRows: not only the first MOST_ROWS. */

  /* Each column: `value` of a row sorts and stands in the CSV; `text` is what people read; those that
     are `ofParts` stand where each part of a mix has limits of its own. */
  const COLUMNS = [
    { id: "rank", title: () => "#", isAscending: true, value: (row) => row.place + 1 },
    { id: "label", title: () => "deployment", isAscending: true, value: (row) => row.ranked.deployment.label },
    { id: "level", title: () => "load", value: (row) => row.ranked.judged.point.level, text: (row) => loadText(row.ranked) },
    { id: "value", title: (table) => table.unit, value: (row) => row.ranked.throughput.estimate },
    { id: "lower", title: () => "lower", value: (row) => row.ranked.throughput.lower },
    { id: "upper", title: () => "upper", value: (row) => row.ranked.throughput.upper },
    { id: "attainment", title: () => "attainment", value: (row) => row.ranked.judged.attainment.estimate, format: threeDigits },
    { id: "attainmentLower", title: () => "lower", value: (row) => row.ranked.judged.attainment.lower, format: threeDigits },
    { id: "attainmentUpper", title: () => "upper", value: (row) => row.ranked.judged.attainment.upper, format: threeDigits },
    { id: "weakest", title: () => "of part", ofParts: true, isAscending: true, value: (row) => row.ranked.judged.part },
    { id: "missed", title: () => "first to miss", ofParts: true, isAscending: true, value: missedNext },
    { id: "ttft", title: (table) => latencyTitle("TTFT p99 ms", table), isAscending: true, value: (row, table) => figuresOf(row.ranked.judged.point, table.part).ttft_p99_ms },
    { id: "tpot", title: (table) => latencyTitle("TPOT p99 ms", table), isAscending: true, value: (row, table) => figuresOf(row.ranked.judged.point, table.part).tpot_p99_ms },
    { id: "usd", title: () => "USD per million output tokens, input free", isAscending: true, value: usdPerMillion },
  ];

  /* A load beside which no higher one was shown to fail, so that the deployment may hold more, says so. */
  function loadText(ranked) {
    return ranked.mark === "" ? ranked.load : `${ranked.load} (${ranked.mark})`;
  }

  /* Latencies of all requests of a point, or where `part` is not null, of one part of a mix. */
  function figuresOf(point, part) {
    return part === null ? point.figures : point.part_figures[part] ?? {};
  }

  /* What keeps the deployment from holding the next level. What a search claims has no next level. */
  function missedNext({ ranked: { next } }) {
    if (!next) return null;
    const what = next.missed.length > 0 ? missedParts(next) : next.point.validity;
    return `${what} at ${next.point.load}`;
  }

  /* `chat and rag`: the parts of a mix whose limits a point misses. */
  function missedParts({ missed }) {
    return missed.map(({ part }) => part).join(" and ");
  }

  function usdPerMillion(row, table) {
    const { deployment, throughput, judged } = row.ranked;
    if (table.per === "usd") return 1e6 / throughput.estimate;
    const usdPerHour = table.usdPerHour(row.ranked);
    if (!usdPerHour) return null;
    if (table.per === "joule") return usdPerHour / (judged.throughput.estimate * 3600) * 1e6;
    const deployments = table.per === "gpu" ? deployment.devices : 1;
    const tokensPerHour = throughput.estimate * deployments * 3600;
    return usdPerHour / tokensPerHour * 1e6;
  }

  function columnsOf(table) {
    const hasPrices = table.rows.some((row) => usdPerMillion(row, table) !== null);
    const columns = COLUMNS.filter((column) => column.id !== "usd" || hasPrices);
    return columns.filter((column) => !column.ofParts || table.part !== null);
  }

  function textOf(column, row, table) {
    if (column.text !== undefined) return column.text(row);
    const value = column.value(row, table);
    if (value === null || value === undefined) return "";
    if (column.format !== undefined) return column.format(value);
    return typeof value === "number" ? number(value) : value;
  }

  function sortedRows(table) {
    const column = COLUMNS.find((each) => each.id === table.sort) ?? COLUMNS[0];
    const isAscending = Boolean(column.isAscending) !== table.reversed;
    const keyed = table.rows.map((row) => ({ row, key: column.value(row, table) }));
    keyed.sort((first, second) => compared(first.key, second.key, isAscending));
    return keyed.map((each) => each.row);
  }

  /* Values that are not known come last. */
  function compared(first, second, isAscending) {
    const isFirstKnown = first !== null && first !== undefined;
    const isSecondKnown = second !== null && second !== undefined;
    if (!isFirstKnown || !isSecondKnown) return Number(isSecondKnown) - Number(isFirstKnown);
    if (first === second) return 0;
    return (first < second) === isAscending ? -1 : 1;
  }

  /* Keeps one HTML table; only texts that changed are written. */
  class RankingTable {
    /* chosen: called with the id of the column whose heading was pressed. */
    constructor(element, chosen) {
      this.chosen = chosen;
      this.headings = document.createElement("tr");
      this.body = document.createElement("tbody");
      this.columns = "";
      this.lines = [];
      const head = document.createElement("thead");
      head.append(this.headings);
      element.replaceChildren(head, this.body);
    }

    show(table) {
      const columns = columnsOf(table);
      this.showHeadings(columns, table);
      const sorted = sortedRows(table);
      const rows = table.hasAllRows ? sorted : sorted.slice(0, MOST_ROWS);
      while (this.lines.length > rows.length) this.lines.pop().element.remove();
      while (this.lines.length < rows.length) this.lines.push(this.addedLine(columns));
      rows.forEach((row, index) => {
        const line = this.lines[index];
        columns.forEach((column, place) => {
          const text = String(textOf(column, row, table));
          if (line.texts[place] === text) return;
          line.texts[place] = text;
          line.cells[place].data = text;
        });
      });
    }

    showHeadings(columns, table) {
      const ids = columns.map((column) => column.id).join();
      if (this.columns !== ids) {
        this.columns = ids;
        this.headings.replaceChildren(...columns.map((column) => this.heading(column)));
        this.body.replaceChildren();
        this.lines = [];
      }
      columns.forEach((column, place) => {
        const cell = this.headings.children[place];
        cell.firstChild.textContent = column.title(table);
        cell.setAttribute("aria-sort", sortOf(column, table));
      });
    }

    heading(column) {
      const cell = document.createElement("th");
      const button = document.createElement("button");
      cell.scope = "col";
      button.type = "button";
      button.addEventListener("click", () => this.chosen(column.id));
      cell.append(button);
      return cell;
    }

    addedLine(columns) {
      const element = document.createElement("tr");
      const cells = columns.map((column) => {
        const cell = document.createElement(column.id === "label" ? "th" : "td");
        if (column.id === "label") cell.scope = "row";
        const text = document.createTextNode("");
        cell.append(text);
        element.append(cell);
        return text;
      });
      this.body.append(element);
      return { element, cells, texts: columns.map(() => "") };
    }
  }

  function sortOf(column, table) {
    if (column.id !== table.sort) return "none";
    const isAscending = Boolean(column.isAscending) !== table.reversed;
    return isAscending ? "ascending" : "descending";
  }

  // Copies

  /* A cell that a spreadsheet would take for a formula begins with a quote. */
  function csvCell(value) {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r\n]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv(table) {
    const columns = columnsOf(table);
    const titles = columns.map((column) => column.title(table));
    const rows = sortedRows(table).map((row) => columns.map((column) => column.value(row, table)));
    return [titles, ...rows].map((row) => row.map(csvCell).join(",")).join("\n");
  }

  /* Foreign text as one safe line, as plain() of orchestrator/report/text.py writes it. */
  function plain(text) {
    const line = text.replaceAll("\t", "    ").replaceAll("\n", " ");
    return line.replace(/[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, (char) => {
      const code = char.codePointAt(0).toString(16);
      if (code.length <= 2) return `\\x${code.padStart(2, "0")}`;
      return code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
    });
  }

  /* As markdown_cell() of orchestrator/report/formats.py: no markup, HTML, link or mention, and no
     formula where the cell is pasted into a spreadsheet. */
  function markdownCell(value) {
    let text = plain(String(value).trim());
    text = text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
    text = text.replace(/[\\`*[\]|~#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])/g, "\\$&");
    text = text.replaceAll("@", "@<!-- -->").replaceAll("://", ":<!-- -->//");
    return /^[=+-]./u.test(text) ? `\\${text}` : text;
  }

  function markdown(table) {
    const columns = columnsOf(table);
    const titles = columns.map((column) => markdownCell(column.title(table)));
    const rows = sortedRows(table).map((row) => (
      columns.map((column) => markdownCell(textOf(column, row, table)))));
    const lines = [titles, columns.map(() => "---"), ...rows];
    return lines.map((cells) => `| ${cells.join(" | ")} |`).join("\n");
  }

  return { MOST_ROWS, RankingTable, loadText, figuresOf, missedParts, csv, markdown, markdownCell };
})();
