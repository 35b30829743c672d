/* Statistics of timed calls, in nanoseconds, printed as a member of a JSON object. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline int compare_samples(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Returns the median. Sorts the samples. */
static inline uint64_t median_of(uint64_t *samples, size_t count) {
  qsort(samples, count, sizeof *samples, compare_samples);
  return count ? samples[count / 2] : 0;
}

static inline void report_samples(const char *name, uint64_t *samples, size_t count,
                                  const char *end) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += (double)samples[i];
  const uint64_t median = median_of(samples, count);
  printf(
      "  \"%s\": {\"calls\": %zu, \"median_ns\": %llu, \"p90_ns\": %llu, \"p99_ns\": %llu, "
      "\"mean_ns\": %.1f}%s\n",
      name, count, (unsigned long long)median, (unsigned long long)samples[count * 9 / 10],
      (unsigned long long)samples[count * 99 / 100], sum / (double)count, end);
}
