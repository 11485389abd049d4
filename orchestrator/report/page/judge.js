"use strict";
/* Judges stored requests by limits, as orchestrator/capacity/capacities.py and
   orchestrator/analysis/intervals.py do. Pure functions: nothing here touches the document.

   A request is three bins, one for each of TTFT, TPOT and E2E: the first stop that its value does
   not exceed. A limit is the number of a stop; a request meets it if its bin is not above. */
const judge = (() => {
  const FAILED = 255;     // the bin of a request without an answer
  const NO_LIMIT = 254;   // the limit that every answered request meets
  const BATCHES = 10;

  /* Sizes of the batches that n requests are cut into, in order of schedule. */
  function batchSizes(n) {
    const count = Math.min(BATCHES, n);
    if (count === 0) return [];
    const base = Math.floor(n / BATCHES);
    const larger = n - base * count;
    return Array.from({ length: count }, (_, i) => base + (i < larger ? 1 : 0));
  }

  /* Requests of each batch of a repeat that meet all three limits. */
  function metPerBatch(bins, repeat, limits) {
    const { ttft, tpot, e2e } = bins;
    const met = [];
    let at = repeat.first;
    for (const size of batchSizes(repeat.requests)) {
      const end = at + size;
      let count = 0;
      for (; at < end; at++) {
        if (ttft[at] <= limits.ttft && tpot[at] <= limits.tpot && e2e[at] <= limits.e2e) count++;
      }
      met.push(count);
    }
    return met;
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);

  /* Variance of a ratio estimator: B / (B - 1) * sum((a - ratio * s)^2) / sum(s)^2. */
  function ratioVariance(amounts, sizes, ratio) {
    const count = amounts.length;
    if (count < 2) return 0;
    let squares = 0;
    for (let i = 0; i < count; i++) squares += (amounts[i] - ratio * sizes[i]) ** 2;
    return (count / (count - 1)) * squares / sum(sizes) ** 2;
  }

  /* Total amount over total size of repeats {amounts, sizes, start}; null where the size is 0.
     The variance is that of batches, repeats or starts, whichever differ most. t: the quantiles of
     Student's distribution by degrees of freedom. */
  function ratioOf(repeats, t) {
    const measured = repeats.filter((repeat) => sum(repeat.sizes) > 0);
    if (measured.length === 0) return null;
    const amounts = measured.flatMap((repeat) => repeat.amounts);
    const sizes = measured.flatMap((repeat) => repeat.sizes);
    const size = sum(sizes);
    const estimate = sum(amounts) / size;
    const freedom = (count) => t[Math.max(count - 1, 1)];
    const spread = (groups) => ratioVariance(
      groups.map((group) => sum(group.flatMap((repeat) => repeat.amounts))),
      groups.map((group) => sum(group.flatMap((repeat) => repeat.sizes))),
      estimate,
    );
    const within = Math.max(
      ratioVariance(amounts, sizes, estimate), spread(measured.map((repeat) => [repeat])));
    const spreads = [{ variance: within, t: freedom(amounts.length) }];
    const starts = [...new Set(measured.map((repeat) => repeat.start))];
    if (starts.length > 1) {
      const groups = starts.map((start) => measured.filter((repeat) => repeat.start === start));
      spreads.push({ variance: spread(groups), t: freedom(starts.length) });
    }
    const variance = Math.max(...spreads.map((each) => each.variance));
    const widest = variance > 0
      ? Math.max(...spreads.map((each) => each.t * Math.sqrt(each.variance / variance)))
      : spreads[0].t;
    return { estimate, size, variance, t: widest, starts: starts.length };
  }

  /* Wilson's interval with the effective number of samples. */
  function shareInterval(repeats, t) {
    const ratio = ratioOf(repeats, t);
    if (ratio === null) return null;
    const share = ratio.estimate;
    const binomial = share * (1 - share) / ratio.size;
    const effect = binomial > 0 ? Math.max(ratio.variance / binomial, 1) : 1;
    const n = ratio.size / effect;
    const t2 = ratio.t ** 2;
    const scale = 1 + t2 / n;
    const centre = (share + t2 / (2 * n)) / scale;
    const half = Math.sqrt(t2 * (share * (1 - share) / n + t2 / (4 * n * n))) / scale;
    return {
      estimate: share,
      lower: Math.max(centre - half, 0),
      upper: Math.min(centre + half, 1),
      starts: ratio.starts,
    };
  }

  function rateInterval(repeats, t) {
    const ratio = ratioOf(repeats, t);
    if (ratio === null) return null;
    const half = ratio.t * Math.sqrt(ratio.variance);
    return {
      estimate: ratio.estimate,
      lower: Math.max(ratio.estimate - half, 0),
      upper: ratio.estimate + half,
      starts: ratio.starts,
    };
  }

  /* The share of the requests of a point that meet the limits, with its interval; null: none was due. */
  function attainment(point, bins, limits, t) {
    const repeats = point.repeats.map((repeat) => ({
      amounts: metPerBatch(bins, repeat, limits),
      sizes: batchSizes(repeat.requests),
      start: repeat.start,
    }));
    return shareInterval(repeats, t);
  }

  /* What a throughput is divided by; null where it is not known. */
  function divisorOf(deployment, per, price) {
    if (per === "deployment") return 1;
    if (per === "gpu") return deployment.devices || null;
    const usdPerHour = price === null ? deployment.usd_per_hour : price * deployment.devices;
    return usdPerHour ? usdPerHour / 3600 : null;
  }

  function scaled(interval, factor) {
    const { estimate, lower, upper, starts } = interval;
    return { estimate: estimate * factor, lower: lower * factor, upper: upper * factor, starts };
  }

  /* Judges every point of a group and ranks its deployments, best first.

     limits: {ttft, tpot, e2e} as stops, target: the share that must meet them all. Returns
     {judged, ranking}: judged has one entry for each point. */
  function judgeGroup(group, bins, limits, target, per, price, t) {
    const judged = group.points.map((point) => {
      const share = attainment(point, bins, limits, t);
      const usable = point.excluded === null && share !== null;
      return {
        point,
        attainment: share,
        usable,
        holds: usable && share.estimate >= target,
        fails: point.too_much || (usable && share.upper < target),
      };
    });
    const ranking = [];
    group.deployments.forEach((deployment, index) => {
      if (deployment.disagrees) return;
      const divisor = divisorOf(deployment, per, price);
      if (divisor === null) return;
      const own = judged.filter((each) => each.point.deployment === index);
      const best = bestOfDeployment(own, divisor, t);
      if (best !== null) ranking.push({ deployment, index, ...best });
    });
    ranking.sort((a, b) => b.throughput.estimate - a.throughput.estimate
      || (a.deployment.label < b.deployment.label ? -1 : 1));
    return { judged, ranking };
  }

  /* The highest level that holds, of the control where that gives the most throughput. */
  function bestOfDeployment(own, divisor, t) {
    let best = null;
    for (const control of [...new Set(own.map((each) => each.point.control))]) {
      const levels = own.filter((each) => each.point.control === control);
      const holding = levels.filter((each) => each.holds);
      if (holding.length === 0) continue;
      const highest = holding.reduce((a, b) => (b.point.level > a.point.level ? b : a));
      const above = levels.filter((each) => each.point.level > highest.point.level);
      const rate = rateInterval(highest.point.repeats.map((repeat) => (
        { amounts: repeat.tokens, sizes: repeat.seconds, start: repeat.start })), t);
      if (rate === null) continue;
      const throughput = scaled(rate, 1 / divisor);
      if (best !== null && throughput.estimate <= best.throughput.estimate) continue;
      const failing = above.filter((each) => each.fails);
      const ceiling = Math.min(...failing.map((each) => each.point.level), Infinity);
      const near = above.filter((each) => each.usable && each.point.level < ceiling);
      const open = above.filter((each) => !each.usable && each.point.level < ceiling);
      best = {
        judged: highest,
        throughput,
        noneFails: failing.length === 0 && near.length === 0,
        open: open.map((each) => each.point),
      };
    }
    return best;
  }

  /* Undoes the coding of the payload: TTFT bins stand as differences within each batch. */
  function decodeBins(bytes, groups) {
    const count = bytes.length / 3;
    const bins = {
      ttft: bytes.slice(0, count),
      tpot: bytes.subarray(count, 2 * count),
      e2e: bytes.subarray(2 * count),
    };
    for (const group of groups) {
      for (const point of group.points) {
        for (const repeat of point.repeats) {
          let at = repeat.first;
          for (const size of batchSizes(repeat.requests)) {
            for (let i = at + 1; i < at + size; i++) bins.ttft[i] += bins.ttft[i - 1];
            at += size;
          }
        }
      }
    }
    return bins;
  }

  /* The share of a point's requests at or below each stop: {stops, shares}. */
  function distribution(point, plane, stops) {
    const counts = new Uint32Array(256);
    let total = 0;
    for (const repeat of point.repeats) {
      for (let i = repeat.first; i < repeat.first + repeat.requests; i++) counts[plane[i]]++;
      total += repeat.requests;
    }
    const shares = [];
    let below = 0;
    for (let i = 0; i < stops.length; i++) {
      below += counts[i];
      shares.push(total ? below / total : 0);
    }
    return shares;
  }

  return { FAILED, NO_LIMIT, judgeGroup, attainment, decodeBins, distribution, shareInterval, rateInterval };
})();
if (typeof module !== "undefined") module.exports = judge;
