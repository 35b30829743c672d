#include "killing.h"

#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static bool changed(const killing_range *ranges, unsigned count) {
  bool any = false;
  for (unsigned i = 0; i < count; i++) {
    if (memcmp(ranges[i].seen, ranges[i].at, ranges[i].bytes) == 0) continue;
    memcpy(ranges[i].seen, ranges[i].at, ranges[i].bytes);
    any = true;
  }
  return any;
}

static int stopped(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

bool killed_after_store(unsigned wanted, unsigned least, void (*act)(void *), void *data,
                        const killing_range *ranges, unsigned count) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(77);
    raise(SIGSTOP);
    act(data);
    _exit(0);
  }
  int status = stopped(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) harness_skip("ptrace is not allowed here");
  changed(ranges, count);
  for (unsigned stores = 0;;) {
    CHECK(WIFSTOPPED(status));
    int signal_ = WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
    CHECK(ptrace(PTRACE_SINGLESTEP, child, NULL, (void *)(long)signal_) == 0);
    status = stopped(child);
    if (WIFEXITED(status)) {
      CHECK_EQUAL(WEXITSTATUS(status), 0);
      CHECK(stores >= least);
      return false;
    }
    if (!changed(ranges, count) || ++stores < wanted) continue;
    kill(child, SIGKILL);
    wait_for_killed(child);
    return true;
  }
}
