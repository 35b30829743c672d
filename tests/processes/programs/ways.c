/* Ways in which processes come, use the driver, and go: ways WAY [WORD]
 *
 * Every process prints what its driver calls answered; a test compares that with the same program
 * without the shim. What each way does is in the table at the end.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB (1 << 10)
#define MIB (1 << 20)

extern char **environ;
static const char *self;

#define SAY(call) say(#call, call)

static int say(const char *call, int code) {
  printf("%s %d\n", call, code);
  fflush(stdout);
  return code;
}

/* Everything that an ordinary program does, once. */
static int use(void) {
  int count = -1;
  CUcontext context = NULL;
  CUdeviceptr pointer = 0;
  CUstream stream = NULL;
  CUevent event = NULL;
  char bytes[64];
  int failed = SAY(cuInit(0));
  failed += SAY(cuDeviceGetCount(&count));
  printf("devices %d\n", count);
  failed += SAY(cuDevicePrimaryCtxRetain(&context, 0));
  failed += SAY(cuCtxSetCurrent(context));
  failed += SAY(cuMemAlloc(&pointer, 3 * MIB));
  failed += SAY(cuMemsetD8(pointer, 7, sizeof bytes));
  failed += SAY(cuMemcpyDtoH(bytes, pointer, sizeof bytes));
  failed += SAY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  failed += SAY(cuEventCreate(&event, 0));
  failed += SAY(cuMemsetD8Async(pointer, 8, sizeof bytes, stream));
  failed += SAY(cuEventRecord(event, stream));
  failed += SAY(cuStreamSynchronize(stream));
  failed += SAY(cuEventDestroy(event));
  failed += SAY(cuStreamDestroy(stream));
  failed += SAY(cuMemFree(pointer));
  return failed ? 1 : 0;
}

static void keep(void) {
  CUcontext context;
  CUdeviceptr pointer;
  SAY(cuInit(0));
  SAY(cuDevicePrimaryCtxRetain(&context, 0));
  SAY(cuCtxSetCurrent(context));
  SAY(cuMemAlloc(&pointer, 6 * MIB));
}

static int wait_for(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child) return say("waitpid", -1);
  return say(WIFSIGNALED(status) ? "signal" : "exit",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static pid_t fork_by_number(void) {
  fflush(stdout);
  return (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); /* no atfork handlers */
}

static int fork_before(void) {
  pid_t child = fork();
  if (child == 0) _exit(use());
  return wait_for(child) + use();
}

static int fork_after(void) {
  keep();
  pid_t child = fork();
  if (child == 0) _exit(use());
  return wait_for(child) * 0 + use();
}

static int fork_number_before(void) {
  pid_t child = fork_by_number();
  if (child == 0) _exit(use());
  return wait_for(child) + use();
}

static int fork_number_after(void) {
  keep();
  pid_t child = fork_by_number();
  if (child == 0) _exit(use());
  return wait_for(child) * 0 + use();
}

static int in_clone(void *unused) {
  (void)unused;
  _exit(use()); /* returning would end this thread alone, and not the driver's */
}

static int by_clone(void) {
  static char stack[256 * KIB] __attribute__((aligned(16)));
  pid_t child = clone(in_clone, stack + sizeof stack, SIGCHLD, NULL);
  return wait_for(child) + use();
}

/* Threads use the driver while another forks: no child may hang in a lock that somebody held. */
static bool over;

static void *busy(void *argument) {
  CUcontext context = argument;
  CUdeviceptr pointer;
  cuCtxSetCurrent(context);
  while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
    if (cuMemAlloc(&pointer, MIB) == CUDA_SUCCESS) cuMemFree(pointer);
  }
  return NULL;
}

static int fork_among_threads(void) {
  enum { THREADS = 4, FORKS = 100 };
  pthread_t threads[THREADS];
  CUcontext context;
  CUdeviceptr pointer;
  SAY(cuInit(0));
  SAY(cuDevicePrimaryCtxRetain(&context, 0));
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, busy, context);
  int codes[4] = {0};
  for (int i = 0; i < FORKS; i++) {
    pid_t child = i % 2 ? fork() : fork_by_number();
    if (child == 0) {
      int init = cuInit(0), set = cuCtxSetCurrent(context);
      int allocated = cuMemAlloc(&pointer, MIB);
      _exit(init == 3 && set == 3 && allocated == 3 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    codes[WIFEXITED(status) ? WEXITSTATUS(status) & 1 : 2]++;
  }
  __atomic_store_n(&over, true, __ATOMIC_RELAXED);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("%d failed as after a fork, %d otherwise, %d by a signal\n", codes[0], codes[1], codes[2]);
  return codes[1] + codes[2];
}

static int by_vfork(void) {
  keep();
  fflush(stdout);
  pid_t child = vfork();
  if (child == 0) {
    execl(self, self, "use", (char *)NULL);
    _exit(127);
  }
  return wait_for(child) + use();
}

static int by_spawn(void) {
  keep();
  pid_t child;
  char *const words[] = {(char *)self, "use", NULL};
  if (posix_spawn(&child, self, NULL, NULL, words, environ)) return 1;
  return wait_for(child) + use();
}

static int by_exec(void) {
  keep();
  fflush(stdout);
  execl(self, self, "hold", (char *)NULL);
  return 127;
}

static int hold(void) {
  keep();
  printf("held\n");
  fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  return 0;
}

static int at_once(void) {
  keep();
  _exit(40);
}

static void late(void) {
  CUdeviceptr pointer;
  SAY(cuMemAlloc(&pointer, MIB));
  SAY(cuMemFree(pointer));
}

static int at_exit(void) {
  keep();
  atexit(late);
  exit(41);
}

static int at_quick_exit_(void) {
  keep();
  at_quick_exit(late);
  quick_exit(42);
}

static int crash(void) {
  keep();
  raise(SIGSEGV);
  return 0;
}

static int stop(void) {
  keep();
  abort();
}

/* daemon() forks: what comes before it is lost to the child, as without the shim. */
static int daemon_before(void) {
  if (daemon(1, 1)) return 1;
  return use();
}

static int daemon_after(void) {
  keep();
  if (daemon(1, 1)) return 1;
  return use();
}

static void *use_in_thread(void *failed) {
  CUdeviceptr pointer;
  CUcontext context;
  int result = cuInit(0);
  if (!result) result = cuDevicePrimaryCtxRetain(&context, 0);
  if (!result) result = cuCtxSetCurrent(context);
  for (int i = 0; i < 200 && !result; i++) {
    result = cuMemAlloc(&pointer, MIB);
    /* CU_STREAM_PER_THREAD, when this file is compiled so */
    if (!result) result = cuMemsetD8Async(pointer, 1, 64, NULL);
    if (!result) result = cuStreamSynchronize(NULL);
    if (!result) result = cuMemFree(pointer);
  }
  if (result) __atomic_store_n((int *)failed, result, __ATOMIC_RELAXED);
  return NULL;
}

static int in_threads(void) {
  enum { THREADS = 16 };
  pthread_t threads[THREADS];
  int failed = 0;
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, use_in_thread, &failed);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  return say("threads", failed);
}

static const struct way {
  const char *name;
  int (*go)(void);
} ways[] = {
    {"use", use},
    {"hold", hold},
    {"fork-before", fork_before},
    {"fork-after", fork_after},
    {"raw-fork-before", fork_number_before},
    {"raw-fork-after", fork_number_after},
    {"clone", by_clone},
    {"fork-among-threads", fork_among_threads},
    {"vfork", by_vfork},
    {"spawn", by_spawn},
    {"exec", by_exec},
    {"_exit", at_once},
    {"exit", at_exit},
    {"quick_exit", at_quick_exit_},
    {"crash", crash},
    {"abort", stop},
    {"daemon-before", daemon_before},
    {"daemon-after", daemon_after},
    {"threads", in_threads},
};

int main(int words, char **word) {
  self = word[0];
  for (size_t i = 0; words == 2 && i < sizeof ways / sizeof *ways; i++) {
    if (strcmp(ways[i].name, word[1]) == 0) return ways[i].go();
  }
  fprintf(stderr, "no such way\n");
  return 2;
}
