/* A very small test harness. A test is TEST(a_sentence) { … }; tests/native/test_native.py finds it
 * by that line and runs it in a process of its own.
 *
 * CHECK ends the test. In a forked child use CHECK as well: the child ends with a failure status,
 * which wait_for reports. HELPER(name) is a function that a test runs in a fresh image of the same
 * program (exec): `argv` holds what follows the name.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct harness_entry {
  const char *name;
  void (*run)(char **argv);
  bool is_helper;
  struct harness_entry *next;
} harness_entry;

void harness_register(harness_entry *entry);
__attribute__((noreturn, format(printf, 3, 4))) void harness_fail(const char *file, int line,
                                                                  const char *format, ...);
/* Ends the test as skipped, with the reason. */
__attribute__((noreturn)) void harness_skip(const char *reason);

/* Waits for a child that must end with status 0. */
void wait_for(pid_t child);
/* Waits for a child that was killed by SIGKILL. */
void wait_for_killed(pid_t child);
/* Replaces this process by HELPER(name) with up to two arguments. */
__attribute__((noreturn)) void exec_helper(const char *name, const char *first, const char *second);

uint64_t monotonic_ns(void);

/* A small generator, so that a failure can be repeated from its seed. */
uint64_t random_next(uint64_t *state);

#define HARNESS_ENTRY(function, helper)                                \
  static void function(char **argv);                                   \
  __attribute__((constructor)) static void register_##function(void) { \
    static harness_entry entry = {#function, function, helper, 0};     \
    harness_register(&entry);                                          \
  }                                                                    \
  static void function(__attribute__((unused)) char **argv)

#define TEST(sentence) HARNESS_ENTRY(sentence, false)
#define HELPER(name) HARNESS_ENTRY(name, true)

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) harness_fail(__FILE__, __LINE__, "%s", #condition); \
  } while (0)

#define CHECK_EQUAL(left, right)                                                              \
  do {                                                                                        \
    long long left_ = (long long)(left), right_ = (long long)(right);                         \
    if (left_ != right_) {                                                                    \
      harness_fail(__FILE__, __LINE__, "%s is %lld, expected %s, %lld", #left, left_, #right, \
                   right_);                                                                   \
    }                                                                                         \
  } while (0)
