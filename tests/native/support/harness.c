#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SKIPPED 77

static harness_entry *entries;
static const char *program;

void harness_register(harness_entry *entry) {
  entry->next = entries;
  entries = entry;
}

void harness_fail(const char *file, int line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s:%d: in process %d: ", file, line, (int)getpid());
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  fflush(stderr);
  _exit(1);
}

void harness_skip(const char *reason) {
  printf("%s\n", reason);
  fflush(stdout);
  _exit(SKIPPED);
}

static int wait_status(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) harness_fail(__FILE__, __LINE__, "waitpid: %s", strerror(errno));
  }
  return status;
}

void wait_for(pid_t child) {
  CHECK(child > 0);
  int status = wait_status(child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    harness_fail(__FILE__, __LINE__, "child %d ended with status %#x", (int)child, status);
  }
}

void wait_for_killed(pid_t child) {
  CHECK(child > 0);
  int status = wait_status(child);
  if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
    harness_fail(__FILE__, __LINE__, "child %d ended with status %#x", (int)child, status);
  }
}

void exec_helper(const char *name, const char *first, const char *second) {
  execl(program, program, "--helper", name, first, second, (char *)0);
  harness_fail(__FILE__, __LINE__, "exec %s: %s", program, strerror(errno));
}

uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t random_next(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

int main(int argc, char **argv) {
  program = realpath("/proc/self/exe", NULL);
  bool helper = argc > 2 && strcmp(argv[1], "--helper") == 0;
  const char *wanted = argc > 1 ? argv[helper ? 2 : 1] : "";
  for (harness_entry *entry = entries; entry; entry = entry->next) {
    if (strcmp(entry->name, wanted) == 0 && entry->is_helper == helper) {
      entry->run(argv + (helper ? 3 : 2));
      fflush(NULL);
      return 0;
    }
  }
  fprintf(stderr, "usage: %s TEST\n", argv[0]);
  for (harness_entry *entry = entries; entry; entry = entry->next) {
    if (!entry->is_helper) fprintf(stderr, "  %s\n", entry->name);
  }
  return 2;
}
