/* Stopped holders of a device's lock. A kernel driver completes its work for a stopped process.
 * Here the process does that work itself, so that a process that is stopped while it holds the lock
 * would block all others. A process that has waited too long lets the holder continue, and stops it
 * again when it has the lock itself. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "sim/machine/model.h"

/* mask of the tid in a robust mutex's word, as the kernel defines it (FUTEX_TID_MASK) */
#define TID_BITS 0x3fffffff

/* Returns the holder's tid in its own pid namespace, 0 if there is no holder. */
static uint32_t holder_of(const sim_device *d) {
  return (uint32_t)__atomic_load_n(&d->lock.__data.__lock, __ATOMIC_RELAXED) & TID_BITS;
}

static bool is_stopped(const char *pid) {
  char path[300], line[512];
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return false;
  size_t got = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[got] = 0;
  const char *name_end = strrchr(line, ')');
  return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

static bool maps(const char *pid, const sim_machine *m) {
  char path[300], *line = NULL;
  size_t size = 0;
  bool found = false;
  snprintf(path, sizeof path, "/proc/%s/maps", pid);
  FILE *file = fopen(path, "re");
  if (!file) return false;
  while (!found && getline(&line, &size, file) > 0) {
    unsigned major, minor;
    uint64_t inode;
    found = sscanf(line, "%*s %*s %*s %x:%x %" SCNu64, &major, &minor, &inode) == 3 &&
            inode == m->inode && makedev(major, minor) == m->device;
  }
  free(line);
  fclose(file);
  return found;
}

/* Returns a task's tid in its innermost pid namespace: the last word of NSpid. */
static uint32_t inner_number(const char *pid, const char *task) {
  char path[600], line[256];
  uint32_t number = 0;
  snprintf(path, sizeof path, "/proc/%s/task/%s/status", pid, task);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  while (!number && fgets(line, sizeof line, file)) {
    if (strncmp(line, "NSpid:", 6)) continue;
    char *last = strrchr(line, '\t');
    number = last ? (uint32_t)strtoul(last, NULL, 10) : 0;
  }
  fclose(file);
  return number;
}

static bool has_task(const char *pid, uint32_t number) {
  char path[300];
  bool found = false;
  snprintf(path, sizeof path, "/proc/%s/task", pid);
  DIR *tasks = opendir(path);
  if (!tasks) return false;
  for (struct dirent *task; !found && (task = readdir(tasks));)
    found = isdigit((unsigned char)task->d_name[0]) && inner_number(pid, task->d_name) == number;
  closedir(tasks);
  return found;
}

pid_t sim_let_finish(const sim_machine *m, const sim_device *d) {
  uint32_t holder = holder_of(d);
  DIR *processes = holder ? opendir("/proc") : NULL;
  pid_t found = 0;
  if (!processes) return 0;
  for (struct dirent *process; !found && (process = readdir(processes));) {
    const char *pid = process->d_name;
    if (isdigit((unsigned char)pid[0]) && is_stopped(pid) && maps(pid, m) && has_task(pid, holder))
      found = (pid_t)atoi(pid);
  }
  closedir(processes);
  return found && kill(found, SIGCONT) == 0 ? found : 0;
}
