"use strict";
/* Judges stored requests by limits, as orchestrator/capacity/capacities.py and
   orchestrator/analysis/intervals.py do. Nothing here touches the document.

   A request is three bins, one for each of TTFT, TPOT and E2E: the number of the first stop that its
   value does not exceed. A limit is the number of a stop; a request meets it if its bin is not above.
   Limits are on all requests, or on those of each part of a mix, which is judged by itself. */
const judge = (() => {
  const LATENCIES = ["ttft", "tpot", "e2e"];
  const NO_LIMIT = 254;      // the limit that every answered request meets; those without an answer have bin 255
  const NOT_THE_LIMIT = "not the limit";  // a load above which none was judged
  const UNLIMITED = Object.fromEntries(LATENCIES.map((name) => [name, NO_LIMIT]));
  const BINS = 256;
  const BATCHES = 10;
  const MOST_OF_16_BITS = 65535;

  /* Sizes of the batches that the requests of a repeat are cut into, in order of schedule. */
  function batchSizes(requests) {
    const count = Math.min(BATCHES, requests);
    const sizes = [];
    if (count === 0) return sizes;
    const least = Math.floor(requests / BATCHES);
    const larger = requests - least * count;
    for (let batch = 0; batch < count; batch++) sizes.push(batch < larger ? least + 1 : least);
    return sizes;
  }

  /* Undoes the coding of the payload: TTFT bins stand as differences within each batch, the others
     less the repeat's centre. Returns the bins of every request by latency. */
  function planesOf(bytes, groups) {
    const requests = bytes.length / LATENCIES.length;
    const ttft = bytes.slice(0, requests);
    const tpot = bytes.slice(requests, 2 * requests);
    const e2e = bytes.slice(2 * requests);
    for (const repeat of repeatsOf(groups)) {
      const end = repeat.first + repeat.requests;
      addDifferences(ttft, repeat);
      for (let request = repeat.first; request < end; request++) {
        tpot[request] += repeat.centres.tpot;  // modulo 256, as every sum in an array of bytes
        e2e[request] += repeat.centres.e2e;
      }
    }
    return { ttft, tpot, e2e };
  }

  function addDifferences(bins, repeat) {
    let first = repeat.first;
    for (const size of batchSizes(repeat.requests)) {
      const end = first + size;
      for (let request = first + 1; request < end; request++) bins[request] += bins[request - 1];
      first = end;
    }
  }

  function repeatsOf(groups) {
    const points = groups.flatMap((group) => group.points);
    return points.flatMap((point) => point.repeats);
  }

  // Intervals

  function sum(values) {
    let total = 0;
    for (let index = 0; index < values.length; index++) total += values[index];
    return total;
  }

  /* Variance of a ratio estimator: B / (B - 1) * sum((a - ratio * s)^2) / sum(s)^2. */
  function varianceOf(parts, ratio) {
    const { amounts, sizes } = parts;
    const count = amounts.length;
    if (count < 2) return 0;
    let squares = 0;
    for (let part = 0; part < count; part++) {
      const difference = amounts[part] - ratio * sizes[part];
      squares += difference * difference;
    }
    return (count / (count - 1)) * squares / sum(sizes) ** 2;
  }

  /* The batches of all repeats as one list of amounts and one of sizes. */
  function batchesOf(repeats) {
    if (repeats.length === 1) return repeats[0];
    return {
      amounts: repeats.flatMap((repeat) => [...repeat.amounts]),
      sizes: repeats.flatMap((repeat) => [...repeat.sizes]),
    };
  }

  function totalsOf(repeats) {
    return {
      amounts: repeats.map((repeat) => sum(repeat.amounts)),
      sizes: repeats.map((repeat) => sum(repeat.sizes)),
    };
  }

  /* The total of all repeats of each engine start. */
  function totalsOfStarts(repeats) {
    const byStart = new Map();
    for (const repeat of repeats) {
      const total = byStart.get(repeat.start) ?? { amount: 0, size: 0 };
      total.amount += sum(repeat.amounts);
      total.size += sum(repeat.sizes);
      byStart.set(repeat.start, total);
    }
    const totals = [...byStart.values()];
    return {
      amounts: totals.map((total) => total.amount),
      sizes: totals.map((total) => total.size),
    };
  }

  /* What a variance is worth that so many parts show: Student's t beside it. */
  function spreadOf(variance, parts, quantiles) {
    const freedom = Math.max(parts.amounts.length - 1, 1);
    return { variance, t: quantiles[freedom] };
  }

  /* Total amount over total size of repeats {amounts, sizes, start}; null where the size is 0.
     The variance is that of batches, repeats or starts, whichever differ most. quantiles: those of
     Student's distribution by degrees of freedom. */
  function ratioOf(repeats, quantiles) {
    const measured = repeats.filter((repeat) => sum(repeat.sizes) > 0);
    if (measured.length === 0) return null;
    const batches = batchesOf(measured);
    const size = sum(batches.sizes);
    const estimate = sum(batches.amounts) / size;
    let withinStart = varianceOf(batches, estimate);
    let starts = 1;
    const spreads = [];
    if (measured.length > 1) {
      withinStart = Math.max(withinStart, varianceOf(totalsOf(measured), estimate));
      const totals = totalsOfStarts(measured);
      starts = totals.amounts.length;
      if (starts > 1) spreads.push(spreadOf(varianceOf(totals, estimate), totals, quantiles));
    }
    const within = spreadOf(withinStart, batches, quantiles);
    spreads.push(within);
    const variance = Math.max(...spreads.map((spread) => spread.variance));
    let { t } = within;
    if (variance > 0) {
      t = Math.max(...spreads.map((spread) => spread.t * Math.sqrt(spread.variance / variance)));
    }
    return { estimate, size, variance, t, starts, batches: batches.amounts.length };
  }

  /* Wilson's interval of a share with the effective number of samples; null: there are none. */
  function shareInterval(repeats, quantiles) {
    const ratio = ratioOf(repeats, quantiles);
    if (ratio === null) return null;
    const share = ratio.estimate;
    const binomial = share * (1 - share) / ratio.size;
    const effect = binomial > 0 ? Math.max(ratio.variance / binomial, 1) : 1;
    const samples = ratio.size / effect;
    const t2 = ratio.t ** 2;
    const scale = 1 + t2 / samples;
    const centre = (share + t2 / (2 * samples)) / scale;
    const spread = share * (1 - share) / samples + t2 / (4 * samples * samples);
    const half = Math.sqrt(t2 * spread) / scale;
    return {
      estimate: share,
      lower: Math.max(centre - half, 0),
      upper: Math.min(centre + half, 1),
      starts: ratio.starts,
    };
  }

  /* The interval of an amount per size, such as tokens per second; null where the size is 0. The
     bounds are NaN where there is only one batch, which says nothing of the spread. */
  function rateInterval(repeats, quantiles) {
    const ratio = ratioOf(repeats, quantiles);
    if (ratio === null) return null;
    const half = ratio.batches > 1 ? ratio.t * Math.sqrt(ratio.variance) : NaN;
    return {
      estimate: ratio.estimate,
      lower: Math.max(ratio.estimate - half, 0),
      upper: ratio.estimate + half,
      starts: ratio.starts,
    };
  }

  const isAtOnce = (point) => point.level === Infinity;

  /* Output tokens per second of a point; null: it has no window. Of requests that are due at once only
     repeats show how much the throughput varies. */
  function throughputOf(point, quantiles) {
    const repeats = point.repeats.map((repeat) => (
      { amounts: repeat.tokens, sizes: repeat.seconds, start: repeat.start }));
    return rateInterval(isAtOnce(point) ? repeats.map(asOneBatch) : repeats, quantiles);
  }

  function asOneBatch({ amounts, sizes, start }) {
    return { amounts: [sum(amounts)], sizes: [sum(sizes)], start };
  }

  function scaled(interval, factor) {
    return {
      estimate: interval.estimate * factor,
      lower: interval.lower * factor,
      upper: interval.upper * factor,
      starts: interval.starts,
    };
  }

  // Requests that meet the limits

  /* Where the requests of each batch of a group lie, as runs of neighbours. A batch of all requests is
     one run. The requests of a part of a mix are cut into batches of their own, and such a batch has a
     run in each batch of all requests that it reaches into.

     part: the number of the part in the group, null: all requests. repeatsOfPoints: for each point its
     repeats, as {firstBatch, sizes, start}; first, end: the requests of each run; batch: the number of
     its batch; count: how many batches there are; largest: the most requests of one. */
  function batchesOfGroup(group, part) {
    const runs = { first: [], end: [], batch: [] };
    let count = 0;
    let largest = 0;
    const repeatsOfPoints = group.points.map((point) => point.repeats.map((repeat) => {
      const segments = segmentsOf(repeat, part);
      const sizes = batchSizes(sum(segments.map((segment) => segment.end - segment.first)));
      const firstBatch = count;
      addRuns(runs, segments, sizes, firstBatch);
      count += sizes.length;
      largest = Math.max(largest, ...sizes);
      return { firstBatch, sizes, start: repeat.start };
    }));
    return {
      repeatsOfPoints,
      first: Uint32Array.from(runs.first),
      end: Uint32Array.from(runs.end),
      batch: Uint32Array.from(runs.batch),
      count,
      largest,
    };
  }

  /* Where the requests of a part lie in a repeat, as {first, end}; those of all where it is null. Within
     each batch of the repeat requests stand by their parts, those of no part first. */
  function segmentsOf(repeat, part) {
    if (part === null) return [{ first: repeat.first, end: repeat.first + repeat.requests }];
    let end = repeat.first;
    return batchSizes(repeat.requests).map((size, batch) => {
      end += size;
      const counts = repeat.parts.map((ofPart) => ofPart[batch]);
      const first = end - sum(counts.slice(part));
      return { first, end: first + counts[part] };
    });
  }

  /* Cuts segments into batches of these sizes. */
  function addRuns(runs, segments, sizes, firstBatch) {
    let batch = 0;
    let room = sizes[0];
    for (const segment of segments) {
      let { first } = segment;
      while (first < segment.end) {
        if (room === 0) {
          batch++;
          room = sizes[batch];
        }
        const end = Math.min(first + room, segment.end);
        runs.first.push(first);
        runs.end.push(end);
        runs.batch.push(firstBatch + batch);
        room -= end - first;
        first = end;
      }
    }
  }

  /* Counts the requests of each batch that meet all three limits.

     While one limit moves, what the other two say of a request stays. So the first move counts, for
     each batch and each bin of the moved latency, the requests at or below it that meet the other
     two limits; each further move reads one of these counts for each batch. */
  class MetRequests {
    constructor(batches, planes) {
      this.batches = batches;
      this.planes = planes;
      this.limits = null;          // those that `counts` is of
      this.counts = new Uint32Array(batches.count);
      this.table = null;           // of every batch and bin
      this.tableOf = "";           // the latency that may move, and the limits of the others
    }

    /* For each batch; the array is used again by the next call. */
    under(limits) {
      const moved = LATENCIES.filter((name) => this.limits?.[name] !== limits[name]);
      if (moved.length === 1) this.lookUp(moved[0], limits);
      if (moved.length > 1) this.countAll(limits);
      this.limits = { ...limits };
      return this.counts;
    }

    countAll(limits) {
      const { ttft, tpot, e2e } = this.planes;
      const { first, end, batch } = this.batches;
      this.counts.fill(0);
      for (let run = 0; run < first.length; run++) {
        let count = 0;
        for (let request = first[run]; request < end[run]; request++) {
          const meets = ttft[request] <= limits.ttft && tpot[request] <= limits.tpot && e2e[request] <= limits.e2e;
          if (meets) count++;
        }
        this.counts[batch[run]] += count;
      }
    }

    lookUp(latency, limits) {
      const fixed = LATENCIES.filter((name) => name !== latency);
      const wanted = `${latency} moves; ${fixed.map((name) => limits[name])}`;
      if (this.tableOf !== wanted) {
        this.tabulate(latency, fixed, limits);
        this.tableOf = wanted;
      }
      const bin = limits[latency];
      for (let batch = 0; batch < this.counts.length; batch++) {
        this.counts[batch] = bin < 0 ? 0 : this.table[batch * BINS + bin];
      }
    }

    /* fixed: the two latencies whose limits stay. */
    tabulate(latency, fixed, limits) {
      this.table ??= this.emptyTable();
      const { table } = this;
      const { first, end, batch } = this.batches;
      const movedBins = this.planes[latency];
      const [fixedBins, otherFixedBins] = fixed.map((name) => this.planes[name]);
      const [limit, otherLimit] = fixed.map((name) => limits[name]);
      table.fill(0);
      for (let run = 0; run < first.length; run++) {
        const row = batch[run] * BINS;
        for (let request = first[run]; request < end[run]; request++) {
          const meets = fixedBins[request] <= limit && otherFixedBins[request] <= otherLimit;
          if (meets) table[row + movedBins[request]]++;
        }
      }
      for (let row = 0; row < table.length; row += BINS) {
        for (let cell = row + 1; cell < row + BINS; cell++) table[cell] += table[cell - 1];
      }
    }

    emptyTable() {
      const { count, largest } = this.batches;
      const cells = count * BINS;
      return largest > MOST_OF_16_BITS ? new Uint32Array(cells) : new Uint16Array(cells);
    }
  }

  // Simulations

  /* Limits that a simulated request meets exactly if it meets `limits` when all its latencies are
     longer by the factors of the model's error; as numbers of stops, -1: no request meets it. */
  function limitsIfSlower(limits, error, stops) {
    return scaledLimits(limits, error, (latency, limit, factor) => {
      const seconds = stops[latency][limit] / factor;
      return stops[latency].findLastIndex((stop) => stop <= seconds);
    });
  }

  /* The same for shorter latencies. Between two stops the wider limit is taken. */
  function limitsIfFaster(limits, error, stops) {
    return scaledLimits(limits, error, (latency, limit, factor) => {
      const seconds = stops[latency][limit] * factor;
      const number = stops[latency].findIndex((stop) => stop >= seconds);
      return number < 0 ? NO_LIMIT : number;
    });
  }

  function scaledLimits(limits, error, scale) {
    return Object.fromEntries(LATENCIES.map((latency) => {
      const limit = limits[latency];
      const factor = latency === "ttft" ? error.ttft : error.others;
      return [latency, limit === NO_LIMIT ? NO_LIMIT : scale(latency, limit, factor)];
    }));
  }

  /* What nine in ten measurements of a simulated throughput lie between; bounds are NaN where the
     model's error is not known. At a rate that is kept up with, what comes out is what was sent: less
     only where the engine, slower by the model's error, gives less at its best, which is `peak`. */
  function throughputOfModel(point, throughput, error, peak) {
    if (throughput === null) return null;
    const { estimate, starts } = throughput;
    const factor = error?.others ?? NaN;
    const asksForLess = point.control === "request_rate" && !isAtOnce(point);
    if (asksForLess && point.validity !== "engine_bound_backlog") return { estimate, lower: Math.min(peak / factor, estimate), upper: estimate, starts };
    return { estimate, lower: estimate / factor, upper: estimate * factor, starts };
  }

  /* The most throughput that each deployment gives at any rate. Where one fell behind at no rate, it is at
     least what its prediction says it holds. */
  function peaksOf(group, throughputs) {
    const peaks = group.deployments.map((deployment, index) => {
      const isBehind = group.points.some((point) => (
        point.deployment === index && point.control === "request_rate" && point.validity === "engine_bound_backlog"));
      return isBehind ? 0 : deployment.predicted_capacity;
    });
    group.points.forEach(({ control, deployment }, index) => {
      const estimate = throughputs[index]?.estimate ?? 0;
      if (control === "request_rate") peaks[deployment] = Math.max(peaks[deployment], estimate);
    });
    return peaks;
  }

  /* Counts requests that meet limits if the model is wrong by its known error, for each error that a
     group's deployments have. */
  class ModelBounds {
    constructor(group, batches, planes, stops) {
      this.stops = stops;
      const errors = group.deployments.map((deployment) => deployment.model_error);
      this.byError = new Map();
      this.ofDeployments = errors.map((error) => {
        if (error === null) return null;
        const name = JSON.stringify(error);
        if (!this.byError.has(name)) {
          const slower = new MetRequests(batches, planes);
          const faster = new MetRequests(batches, planes);
          this.byError.set(name, { error, slower, faster });
        }
        return this.byError.get(name);
      });
    }

    /* Counts anew; read by `of`. */
    under(limits) {
      for (const { error, slower, faster } of this.byError.values()) {
        slower.under(limitsIfSlower(limits, error, this.stops));
        faster.under(limitsIfFaster(limits, error, this.stops));
      }
    }

    /* The attainment of a point of a deployment; share: gives its interval from counts. */
    of(deployment, share) {
      const bounds = this.ofDeployments[deployment];
      const lower = bounds === null ? NaN : share(bounds.slower.counts)?.estimate;
      const upper = bounds === null ? NaN : share(bounds.faster.counts)?.estimate;
      return { lower, upper };
    }
  }

  // Tests

  /* Which share of the requests at each point of a group meets limits. */
  class Attainments {
    /* part: the number of a part of a mix, whose requests alone count; null: all requests do. */
    constructor(group, part, planes, quantiles, stops) {
      this.group = group;
      this.quantiles = quantiles;
      this.batches = batchesOfGroup(group, part);
      this.met = new MetRequests(this.batches, planes);
      this.modelBounds = group.simulated ? new ModelBounds(group, this.batches, planes, stops) : null;
      this.limits = null;     // those that `intervals` are under
      this.intervals = null;
    }

    /* An interval for each point, null where no request was due. That of a simulated one is of the
       model's error. While the limits of one part move, those of the others stay as they were judged. */
    under(limits) {
      if (this.limits === null || LATENCIES.some((name) => this.limits[name] !== limits[name])) {
        this.intervals = this.judged(limits);
        this.limits = { ...limits };
      }
      return this.intervals;
    }

    judged(limits) {
      const counts = this.met.under(limits);
      this.modelBounds?.under(limits);
      return this.group.points.map((point, index) => {
        const share = this.share(index, counts);
        if (share === null || this.modelBounds === null) return share;
        return { ...share, ...this.modelBounds.of(point.deployment, (bounds) => this.share(index, bounds)) };
      });
    }

    share(index, counts) {
      const repeats = this.batches.repeatsOfPoints[index].map((repeat) => ({
        amounts: counts.subarray(repeat.firstBatch, repeat.firstBatch + repeat.sizes.length),
        sizes: repeat.sizes,
        start: repeat.start,
      }));
      return shareInterval(repeats, this.quantiles);
    }
  }

  /* What an SLO of the file asks: {part, limits, target} for all requests, whose part is null, or for
     those of each part of a mix that it limits. limits: as numbers of stops; target: the share of the
     requests that must meet them all. */
  function askedBy(slo) {
    const asked = (part, { stops, attainment }) => ({ part, limits: { ...UNLIMITED, ...stops }, target: attainment });
    const ofParts = Object.entries(slo.parts).map(([part, limits]) => asked(part, limits));
    return ofParts.length > 0 ? ofParts : [asked(null, slo)];
  }

  /* Whether requests that fail `other` fail `asked` too. */
  function isAsStrict(asked, other) {
    return asked.part === other.part && asked.target >= other.target
      && LATENCIES.every((name) => asked.limits[name] <= other.limits[name]);
  }

  const margin = (test) => test.share.estimate - test.target;
  const isMissed = (test) => margin(test) < 0;

  /* Whether a test is further below its target than another, or less above it; of tests that are equally
     far, whether it is less certain. */
  function isWeaker(test, other) {
    if (margin(test) !== margin(other)) return margin(test) < margin(other);
    return test.share.lower - test.target < other.share.lower - other.target;
  }

  function weakestOf(tests) {
    return tests.reduce((weakest, test) => (isWeaker(test, weakest) ? test : weakest));
  }

  // Deployments

  /* Whether the unit makes different hardware comparable. */
  const isAcrossHardware = (per) => per === "usd" || per === "joule";

  /* What the throughput of a point is divided by; null where it is not known. */
  function divisorOf(point, deployment, per, price) {
    if (per === "deployment") return 1;
    if (per === "joule") return point.power_w || null;
    if (per === "gpu") return deployment.devices || null;
    const usdPerHour = price === null ? deployment.usd_per_hour : price * deployment.devices;
    return usdPerHour ? usdPerHour / 3600 : null;
  }

  /* Judges the points of one group of the payload. What no limit changes is computed once. */
  class GroupJudge {
    /* quantiles: those of Student's distribution, by degrees of freedom; missing: levels of the
       group that are planned and not measured yet; stops: by latency, in seconds, for simulations. */
    constructor(group, planes, quantiles, missing = [], stops = {}) {
      this.group = group;
      this.planes = planes;
      this.quantiles = quantiles;
      this.stops = stops;
      this.attainments = new Map();  // by part, made when the part is first asked for
      this.throughputs = group.points.map((point) => throughputOf(point, quantiles));
      if (group.simulated) {
        const peaks = peaksOf(group, this.throughputs);
        this.throughputs = this.throughputs.map((throughput, index) => {
          const point = group.points[index];
          const error = group.deployments[point.deployment].model_error;
          return throughputOfModel(point, throughput, error, peaks[point.deployment]);
        });
      }
      this.controls = [...new Set([...group.points, ...missing].map((each) => each.control))];
      this.missing = group.deployments.map(({ label }) => missing.filter((each) => each.label === label));
    }

    /* Judges every point and ranks the deployments, best first.

       asked: what `askedBy` returns; a point holds where it meets all of it. per: gpu, usd, joule or
       deployment; price: USD per device and hour, null for the file's; slo: the number of the file's
       SLO that says how far outputs must agree.
       Returns {judged, ranking, open, missed}: judged has one entry for each point; open has the
       deployments that may hold more than is shown: see `answerOf`; missed: by deployment that holds
       at no level, the lowest level of each control that tells, as it was judged. */
    judge({ asked, per, price, slo = 0 }) {
      const judged = this.judgedPoints(asked);
      const pointsOfDeployments = this.group.deployments.map(() => []);
      for (const each of judged) pointsOfDeployments[each.point.deployment].push(each);
      const disagreeing = this.group.slos[slo]?.disagreeing ?? [];
      const ranking = [];
      const open = [];
      const missed = new Map();
      this.group.deployments.forEach((deployment, index) => {
        const points = pointsOfDeployments[index];
        const divisor = ({ point }) => divisorOf(point, deployment, per, price);
        const { best, levels, near } = this.answerOf(points, this.missing[index], divisor);
        const lowest = this.lowestOfControls(points.filter((each) => each.usable));
        if (lowest.length > 0 && !points.some((each) => each.holds)) missed.set(deployment, lowest);
        if (best !== null && disagreeing.includes(index)) return;
        if (levels.length > 0 || near.length > 0) open.push({ deployment, levels, near });
        if (best !== null) ranking.push({ group: this.group, deployment, index, ...best });
      });
      ranking.sort(comparedRanked);
      return { judged, ranking, open, missed };
    }

    /* The deployments as Python ranked them under one SLO of the file: by claims and estimates of
       searches, or by limits that are not judged here. judged: all points under its limits. */
    rankedByPython(slo, judged) {
      const ofPoints = new Map(judged.map((each) => [each.point.point_id, each]));
      const ranking = this.group.slos[slo]?.ranking ?? [];
      return ranking.map((ranked) => ({
        ...ranked,
        group: this.group,
        deployment: this.group.deployments[ranked.deployment],
        index: ranked.deployment,
        judged: { ...ofPoints.get(ranked.point_id), attainment: ranked.attainment, part: ranked.part },
      }));
    }

    /* A rate and a number of requests in flight are not compared: each has a lowest level. */
    lowestOfControls(points) {
      const lowest = this.controls.map((control) => (
        lowestOf(points.filter((each) => each.point.control === control))));
      return lowest.filter((each) => each !== null);
    }

    judgedPoints(asked) {
      const shares = asked.map(({ part, limits }) => this.attainmentsOf(part)?.under(limits));
      const areStricter = this.areStricter(asked);
      return this.group.points.map((point, index) => {
        const tests = asked.map(({ part, target }, place) => (
          { part, target, share: shares[place]?.[index] ?? null }));
        return judgedPoint(point, this.throughputs[index], tests, areStricter);
      });
    }

    /* Undefined for a part that no request of the group is of. */
    attainmentsOf(part) {
      if (!this.attainments.has(part)) {
        const number = part === null ? null : this.group.parts.indexOf(part);
        if (number === -1) return undefined;
        const made = new Attainments(this.group, number, this.planes, this.quantiles, this.stops);
        this.attainments.set(part, made);
      }
      return this.attainments.get(part);
    }

    /* Whether what fails the limits of the file fails these too: probes of a search end early when
       they fail every SLO of the file. */
    areStricter(asked) {
      return this.group.slos.some((slo) => slo.fixed.length === 0 && askedBy(slo).every((ofSlo) => (
        asked.some((each) => isAsStrict(each, ofSlo)))));
    }

    /* What is known of one deployment. points: judged; missing: its levels that nobody measured.

       best: {judged, throughput, load, mark, next, ifSlower}, the highest level that holds, of the control where
       that gives the most throughput over its divisor; null: none holds, or no divisor is known.
       next: the lowest level above it that misses the limits, null: none does; ifSlower: see
       `heldIfSlower`. levels: {load, why} of
       levels above what holds that could hold as well; near: loads of those that fail by no more than
       chance. divisor: gives that of a judged point. */
    answerOf(points, missing, divisor) {
      const answer = { best: null, levels: [], near: [] };
      for (const control of this.controls) {
        const levels = points.filter((each) => each.point.control === control);
        const highest = highestThatHolds(levels);
        const floor = highest === null ? 0 : highest.point.level;
        const above = knownAbove(levels, missing.filter((each) => each.control === control), floor);
        answer.levels.push(...above.open);
        answer.near.push(...above.near);
        if (highest === null || highest.throughput === null || divisor(highest) === null) continue;
        const ifSlower = this.group.simulated ? heldIfSlower(highest, levels, divisor(highest)) : null;
        const throughput = downTo(scaled(highest.throughput, 1 / divisor(highest)), ifSlower);
        const most = answer.best?.throughput.estimate ?? -Infinity;
        if (throughput.estimate <= most) continue;
        const { load, level } = highest.point;
        const mark = above.noneFails && level < Infinity ? NOT_THE_LIMIT : "";  // nothing is above all at once
        answer.best = { judged: highest, throughput, load, mark, next: above.next, ifSlower };
      }
      return answer;
    }
  }

  /* tests: {part, target, share} of all that is asked. attainment: the share of the weakest test;
     part: its part of a mix. missed: the tests whose share is below the target. */
  function judgedPoint(point, throughput, tests, areStricter) {
    const isKnown = tests.every(({ share }) => share !== null);
    const usable = point.excluded === null && isKnown;
    const failed = point.too_much || (point.ended_early && areStricter);
    const missed = isKnown ? tests.filter(isMissed) : [];
    const weakest = isKnown ? weakestOf(tests) : null;
    return {
      point,
      throughput,
      tests: isKnown ? tests : [],
      attainment: isKnown ? weakest.share : null,
      part: isKnown ? weakest.part : null,
      missed,
      usable,
      holds: usable && missed.length === 0,
      fails: failed || (usable && tests.some(({ share, target }) => share.upper < target)),
    };
  }

  function lowestOf(levels) {
    let lowest = null;
    for (const each of levels) {
      if (lowest === null || each.point.level < lowest.point.level) lowest = each;
    }
    return lowest;
  }

  function highestThatHolds(levels) {
    let highest = null;
    for (const each of levels) {
      if (!each.holds) continue;
      if (highest === null || each.point.level > highest.point.level) highest = each;
    }
    return highest;
  }

  /* What is held where the engine is slower by the model's error, as {load, value}: the highest simulated
     level below the best one that holds even then; {load: null}: none does; null: the best one holds, or
     that is not known. */
  function heldIfSlower(best, levels, divisor) {
    if (!best.tests.some(({ share, target }) => share.lower < target)) return null;
    const isHeld = ({ usable, tests }) => usable && tests.every(({ share, target }) => share.lower >= target);
    const held = levels.filter((each) => isHeld(each) && each.point.level < best.point.level);
    if (held.length === 0) return { load: null, value: 0 };
    const highest = held.reduce((most, each) => (each.point.level > most.point.level ? each : most));
    return { load: highest.point.load, value: highest.throughput.lower / divisor };
  }

  /* A throughput with an interval down to what is held if the engine is slower than simulated. */
  function downTo(throughput, ifSlower) {
    if (ifSlower === null || throughput.lower <= ifSlower.value) return throughput;
    return { ...throughput, lower: ifSlower.value };
  }

  /* What is known above the best level, up to the first that fails. noneFails: no level above it was
     judged; next: the lowest that misses the limits, null: none does; open: {load, why} of levels that
     tell nothing; near: loads that fail by chance. */
  function knownAbove(levels, missing, floor) {
    const above = levels.filter((each) => each.point.level > floor);
    const failing = above.filter((each) => each.fails);
    const isBelowFailing = (level) => failing.every((each) => level < each.point.level);  // all at once, too
    const below = above.filter((each) => isBelowFailing(each.point.level));
    const near = below.filter((each) => each.usable);
    const untold = below.filter((each) => !each.usable);
    const unmeasured = missing.filter((each) => each.level > floor && isBelowFailing(each.level));
    return {
      noneFails: failing.length === 0 && near.length === 0,
      next: lowestOf([...failing, ...near]),
      near: near.map((each) => each.point.load),
      open: [
        ...untold.map(({ point }) => ({ load: point.load, why: point.validity })),
        ...unmeasured.map(({ load }) => ({ load, why: "not measured yet" })),
      ],
    };
  }

  /* Most throughput first; of equal ones that with the higher lower bound, then by their names. */
  function comparedRanked(first, second) {
    const difference = second.throughput.estimate - first.throughput.estimate;
    if (difference !== 0) return difference;
    const surer = (second.throughput.lower || 0) - (first.throughput.lower || 0);
    if (surer !== 0) return surer;
    return first.deployment.label < second.deployment.label ? -1 : 1;
  }

  /* Numbers of the groups that are ranked together with one of them, which is the first: a price
     makes all hardware comparable, and runs of `load` that asked for the same are compared. */
  function rivalsOf(groups, index, per) {
    const rivals = [...groups.keys()].filter((other) => other !== index && areRivals(groups[index], groups[other], per));
    return [index, ...rivals];
  }

  function areRivals(first, second, per) {
    const names = ["ranked_with", "workload", "model", "emulated", "simulated", "source", "content"];
    if (!isAcrossHardware(per)) names.push("hardware");
    return names.every((name) => first[name] === second[name]);
  }

  /* Planned levels of the deployments of a group. */
  function missingOf(group, missing) {
    const names = ["experiment", "workload", "model", "hardware", "emulated", "simulated", "source"];
    return missing.filter((each) => names.every((name) => each[name] === group[name]));
  }

  /* What several groups hold together, best first. results: of GroupJudge. */
  function rankedTogether(results) {
    return results.flatMap((result) => result.ranking).sort(comparedRanked);
  }

  /* The share of a point's requests at or below each stop. plane: the bins of one latency; part: the
     number of a part of a mix, whose requests alone count; null: all do. */
  function distribution(point, plane, stops, part) {
    const counts = new Uint32Array(BINS);
    let total = 0;
    for (const { first, end } of point.repeats.flatMap((repeat) => segmentsOf(repeat, part))) {
      for (let request = first; request < end; request++) counts[plane[request]]++;
      total += end - first;
    }
    const shares = [];
    let below = 0;
    for (let stop = 0; stop < stops.length; stop++) {
      below += counts[stop];
      shares.push(total > 0 ? below / total : 0);
    }
    return shares;
  }

  return {
    LATENCIES, NO_LIMIT, GroupJudge, planesOf, rivalsOf, missingOf, rankedTogether, divisorOf, distribution,
    isAcrossHardware, shareInterval, rateInterval,
  };
})();
