/* The clock and the histogram that server and yardstick client share. Times are CLOCK_MONOTONIC nanoseconds, one clock
 * for every process of the machine, so that client and server records can be subtracted from each other. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static inline int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Log-linear: 1,024 buckets per power of two, so a percentile is right within 0.1 %; mean and maximum are exact. */
#define HIST_BITS 10
#define HIST_BUCKETS ((44 - HIST_BITS) << HIST_BITS)

struct hist {
  uint64_t count;
  int64_t sum, max;
  uint32_t buckets[HIST_BUCKETS];
};

static inline void hist_add(struct hist *h, int64_t value) {
  if (value < 0) value = 0;
  h->count++;
  h->sum += value;
  if (value > h->max) h->max = value;
  int shift = value < (2 << HIST_BITS) ? 0 : 63 - __builtin_clzll((uint64_t)value) - HIST_BITS;
  uint64_t index = ((uint64_t)shift << HIST_BITS) + ((uint64_t)value >> shift);
  h->buckets[index < HIST_BUCKETS ? index : HIST_BUCKETS - 1]++;
}

static inline double hist_percentile(const struct hist *h, double share) {
  uint64_t want = (uint64_t)(share * (double)h->count), seen = 0;
  if (want >= h->count) want = h->count ? h->count - 1 : 0;
  for (uint64_t i = 0; i < HIST_BUCKETS; i++) {
    seen += h->buckets[i];
    if (seen > want) {
      if (i < (2u << HIST_BITS)) return (double)i;
      uint64_t shift = (i >> HIST_BITS) - 1;
      return (double)((i - (shift << HIST_BITS)) << shift) + (double)(1ull << shift) / 2;
    }
  }
  return 0;
}

/* One JSON member, in milliseconds: "name": {"count", "mean", "p50", "p90", "p99", "max"}. */
static inline int hist_json(const struct hist *h, const char *name, char *to, size_t size) {
  return snprintf(to, size,
                  "\"%s\": {\"count\": %llu, \"mean\": %.6f, \"p50\": %.6f, \"p90\": %.6f, \"p99\": %.6f, \"max\": %.6f}",
                  name, (unsigned long long)h->count, h->count ? (double)h->sum / (double)h->count / 1e6 : 0.0,
                  hist_percentile(h, 0.50) / 1e6, hist_percentile(h, 0.90) / 1e6, hist_percentile(h, 0.99) / 1e6,
                  (double)h->max / 1e6);
}
