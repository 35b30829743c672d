/* One process of a script: its threads, and where all of them wait for each other. */
#define _GNU_SOURCE
#include "player.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

page *shared;
int own_process;
script played;

static pthread_barrier_t within;
static FILE *results[MOST_THREADS];
static char *written[MOST_THREADS];
static size_t written_bytes[MOST_THREADS];

void nap(void) {
  struct timespec t = {.tv_nsec = 200000};
  nanosleep(&t, NULL);
}

void barrier_of_this_process(void) { pthread_barrier_wait(&within); }

static void fail(const char *what) {
  perror(what);
  exit(2);
}

/* ---- all processes ---- */

static bool takes_part(int process, int phase) {
  return played.process[process].first <= phase && phase <= played.process[process].last;
}

static uint32_t threads_in(int phase) {
  uint32_t count = 0;
  for (int p = 0; p < played.processes; p++)
    if (takes_part(p, phase)) count += (uint32_t)played.process[p].threads;
  return count;
}

static void arrive(int phase, int stage) {
  __atomic_add_fetch(&shared->arrived[phase][stage], 1, __ATOMIC_ACQ_REL);
}

static void wait_for_all(int phase, int stage) {
  while (__atomic_load_n(&shared->arrived[phase][stage], __ATOMIC_ACQUIRE) < threads_in(phase))
    nap();
}

static void wait_for_phase(int phase) {
  while (__atomic_load_n(&shared->phase, __ATOMIC_ACQUIRE) < (uint32_t)phase) nap();
}

/* Those that have ended by now are gone, charges and all, before anybody looks. */
static void see_ends(int before) {
  for (int p = 1; p < played.processes; p++) {
    int status;
    if (played.process[p].last >= before || !shared->pids[p]) continue;
    if (waitpid(shared->pids[p], &status, 0) < 0) fail("waitpid");
    bool well = played.process[p].killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                         : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    shared->pids[p] = 0;
    if (well) continue;
    fprintf(stderr, "process %d ended with status %#x\n", p, status);
    exit(3);
  }
}

/* No work is left: the caller of the player may compare. */
static void report_quiet(int phase) {
  see_ends(phase);
  printf("quiet %d\n", phase);
  fflush(stdout);
  char answer[8];
  if (!fgets(answer, sizeof answer, stdin)) exit(3);
  __atomic_store_n(&shared->phase, (uint32_t)phase + 1, __ATOMIC_RELEASE);
}

/* Unused memory of pools goes back as a program waits; the ledger hears of it as it asks. */
static void settle(void) {
  for (int i = 0; i < MOST_THINGS; i++) {
    if (!thing_at('c', i)->there || !context_enter(i)) continue;
    size_t free_bytes, total_bytes;
    cuCtxSynchronize();
    cuMemGetInfo(&free_bytes, &total_bytes);
  }
}

static void *play(void *argument) {
  int thread = (int)(intptr_t)argument;
  const script_process *self = &played.process[own_process];
  const line *next = played.lines, *end = next + played.line_count;
  for (int phase = self->first; phase <= self->last; phase++) {
    wait_for_phase(phase);
    for (; next < end && next->phase <= phase; next++) {
      if (next->process != own_process || next->thread != thread) continue;
      __atomic_store_n(&shared->at[own_process][thread], (uint32_t)next->number, __ATOMIC_RELEASE);
      operation_run(next, results[thread]);
    }
    __atomic_store_n(&shared->at[own_process][thread], 0, __ATOMIC_RELEASE);
    arrive(phase, 0);
    wait_for_all(phase, 0);
    if (!thread) settle();
    arrive(phase, 1);
    wait_for_all(phase, 1);
    if (!own_process && !thread) report_quiet(phase);
  }
  wait_for_phase(self->last + 1);
  return NULL;
}

/* ---- this one ---- */

static void open_page(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || (!own_process && ftruncate(fd, sizeof *shared))) fail(path);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (shared == MAP_FAILED) fail(path);
  close(fd);
}

static void start_others(char **words) {
  for (int i = 0; i < played.channels; i++)
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, shared->channels[i]))
      fail("socketpair");
  shared->pids[0] = getpid();
  for (int p = 1; p < played.processes; p++) {
    pid_t pid = fork();
    if (pid < 0) fail("fork");
    if (pid) {
      shared->pids[p] = pid;
      continue;
    }
    char number[4];
    snprintf(number, sizeof number, "%d", p);
    execv("/proc/self/exe", (char *[]){words[0], words[1], words[2], words[3], number, NULL});
    _exit(2);
  }
}

static void write_results(const char *folder) {
  char path[512];
  snprintf(path, sizeof path, "%s/results.%d", folder, own_process);
  FILE *file = fopen(path, "we");
  if (!file) fail(path);
  for (int t = 0; t < played.process[own_process].threads; t++) {
    fclose(results[t]);
    fwrite(written[t], 1, written_bytes[t], file);
  }
  fclose(file);
}

int main(int count, char **words) {
  if (count < 4) {
    fprintf(stderr, "usage: %s SCRIPT PAGE FOLDER-FOR-RESULTS\n", words[0]);
    return 2;
  }
  own_process = count > 4 ? atoi(words[4]) : 0;
  stuck_prepare();
  script_read(words[1], &played);
  open_page(words[2]);
  if (!own_process) start_others(words);
  const script_process *self = &played.process[own_process];
  pthread_barrier_init(&within, NULL, (unsigned)self->threads);
  wait_for_phase(self->first);
  if (cuInit(0)) return 4;
  pthread_t threads[MOST_THREADS];
  for (int t = 0; t < self->threads; t++) {
    results[t] = open_memstream(&written[t], &written_bytes[t]);
    if (!results[t] || pthread_create(&threads[t], NULL, play, (void *)(intptr_t)t)) fail("thread");
  }
  for (int t = 0; t < self->threads; t++) pthread_join(threads[t], NULL);
  write_results(words[3]);
  if (self->killed) raise(SIGKILL);
  if (!own_process) see_ends(MOST_PHASES);
  return 0;
}
