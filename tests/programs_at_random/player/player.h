/* Plays a script: a program of several processes, threads, devices, contexts and streams.
 *
 * A script is text, one operation a line, in an order in which nothing waits for what comes later:
 *
 *   process 1 threads 2 first 0 last 3 end exit     (or kill: by a signal, giving nothing back)
 *   0.1 spin 3 500 1 32 0 #7                        process 0, thread 1: a kernel in stream 3
 *   quiet                                           all have come here and wait; the caller looks
 *
 * Things (contexts, streams, buffers, …) have numbers, each kind its own, each process its own. An
 * operation on a thing that is not there is skipped, so lines can be taken away. What stands behind
 * # says which lines can only go together.
 */
#pragma once
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  MOST_PROCESSES = 4,
  MOST_THREADS = 4,
  MOST_PHASES = 32,
  MOST_THINGS = 256, /* of a kind */
  MOST_ARGUMENTS = 8,
  MOST_SLOTS = 64, /* handles under way from process to process */
  MOST_FLAGS = 256,
  MOST_CHANNELS = 32,
  KINDS = 26,
  NOTE_BYTES = 512,
  CONTENT_BYTES = 1 << 16, /* of a buffer: what is written and looked at */
  SPINS = 4
};

/* Shared by all processes of a script; the caller reads `at` when they hang. */
typedef struct page {
  uint32_t phase;
  uint32_t arrived[MOST_PHASES][2];
  uint32_t at[MOST_PROCESSES][MOST_THREADS]; /* the line that the thread is at; 0: none */
  int32_t pids[MOST_PROCESSES];
  int32_t channels[MOST_CHANNELS][2];
  uint32_t flags[MOST_FLAGS];
  struct {
    uint32_t full;
    char bytes[sizeof(CUmemPoolPtrExportData) > 64 ? sizeof(CUmemPoolPtrExportData) : 64];
  } slots[MOST_SLOTS];
} page;

typedef struct script_process {
  int threads, first, last;
  bool killed;
} script_process;

struct operation;
typedef struct line {
  int number, process, thread, phase;
  const struct operation *operation;
  long arguments[MOST_ARGUMENTS];
} line;

typedef struct script {
  int processes, phases, line_count, channels;
  script_process process[MOST_PROCESSES];
  line *lines;
} script;

/* A handle and what must be known of it. */
typedef struct thing {
  bool there;
  int context; /* its number; -1: of none */
  int device;
  uint64_t handle, bytes; /* of a context: the number of its making */
  void *host;
} thing;

typedef struct call {
  const line *line;
  const long *n;            /* arguments as they stand in the script */
  thing *t[MOST_ARGUMENTS]; /* the things among them */
  char note[NOTE_BYTES];    /* goes into the results */
  bool skipped;
} call;

typedef struct operation {
  const char *name;
  /* A letter an argument: n a number; a lower-case one a thing of that kind that must be there, an
   * upper-case one a thing to be made, `!` before it: gone when the call has succeeded. */
  const char *arguments;
  CUresult (*run)(call *c);
} operation;

extern const operation context_operations[], stream_operations[], kernel_operations[],
    memory_operations[], pool_operations[], graph_operations[], share_operations[];

extern page *shared;
extern int own_process;
extern script played;

const operation *operation_named(const char *name);
int operation_argument_count(const operation *o);
void operation_run(const line *l, FILE *results);
thing *thing_at(char kind, long number);
bool context_enter(int context);
CUresult skip(call *c);
void script_read(const char *path, script *s);
void barrier_of_this_process(void);
void nap(void);
void stuck_prepare(void);

CUfunction spin_of(int context, long kind); /* NULL: not loaded */
CUfunction meet_of(int context);
void CUDA_CB append_to_order(void *what);
void *order_entry(long list, long id);

static inline CUdeviceptr word_of(const thing *words, long index) {
  return words->handle + 8 * (CUdeviceptr)index;
}
