/* Where each thread stands, when a script does not end: SIGUSR1 makes every thread say so. */
#define _GNU_SOURCE
#include "player.h"

#include <dirent.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>

static void say_where(int signal) {
  (void)signal;
  void *frames[40];
  char head[96];
  int count = backtrace(frames, 40);
  snprintf(head, sizeof head, "-- process %d, thread %d:\n", own_process, (int)gettid());
  if (write(2, head, strlen(head)) < 0) return;
  backtrace_symbols_fd(frames, count, 2);
}

static void ask_all(int signal) {
  (void)signal;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *one; tasks && (one = readdir(tasks));) {
    if (one->d_name[0] == '.') continue;
    syscall(SYS_tgkill, getpid(), atoi(one->d_name), SIGUSR2);
    for (int i = 0; i < 20; i++) nap();
  }
  if (tasks) closedir(tasks);
}

void stuck_prepare(void) {
  void *frame;
  backtrace(&frame, 1); /* loads what it needs now, not inside a handler */
  struct sigaction all = {.sa_handler = ask_all, .sa_flags = SA_RESTART};
  struct sigaction one = {.sa_handler = say_where, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &all, NULL);
  sigaction(SIGUSR2, &one, NULL);
}
