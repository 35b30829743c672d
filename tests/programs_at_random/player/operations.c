/* Operations: their names, their arguments, and one step of a thread. */
#include <ctype.h>

#include "player.h"

static thing things[KINDS][MOST_THINGS];

static const operation *const families[] = {
    context_operations, stream_operations, kernel_operations, memory_operations,
    pool_operations,    graph_operations,  share_operations};

const operation *operation_named(const char *name) {
  for (size_t f = 0; f < sizeof families / sizeof *families; f++)
    for (const operation *o = families[f]; o->name; o++)
      if (!strcmp(o->name, name)) return o;
  return NULL;
}

int operation_argument_count(const operation *o) {
  int count = 0;
  for (const char *letter = o->arguments; *letter; letter++) count += *letter != '!';
  return count;
}

thing *thing_at(char kind, long number) {
  if (number < 0 || number >= MOST_THINGS) {
    fprintf(stderr, "there is no thing %c%ld\n", kind, number);
    exit(2);
  }
  return &things[tolower(kind) - 'a'][number];
}

static bool alive(const thing *t) {
  return t->there && (t->context < 0 || things['c' - 'a'][t->context].there);
}

/* Makes the context the thread's, if it is not. A handle may be one that was another's before: what
 * was made current goes by the number of its making. */
bool context_enter(int context) {
  static __thread uint64_t current;
  const thing *wanted = &things['c' - 'a'][context];
  if (wanted->bytes == current) return true;
  if (cuCtxSetCurrent((CUcontext)wanted->handle) != CUDA_SUCCESS) return false;
  current = wanted->bytes;
  return true;
}

CUresult skip(call *c) {
  c->skipped = true;
  return CUDA_SUCCESS;
}

/* The things that the arguments name; false where one that must be there is not. */
static bool find_things(call *c) {
  int i = 0, context = -1;
  for (const char *letter = c->line->operation->arguments; *letter; letter++) {
    if (*letter == '!') continue;
    if (*letter != 'n') {
      thing *t = c->t[i] = thing_at(*letter, c->n[i]);
      if (islower(*letter) && !alive(t)) return false;
      if (islower(*letter) && context < 0) context = *letter == 'c' ? (int)c->n[i] : t->context;
    }
    i++;
  }
  return context < 0 || context_enter(context);
}

static void mark_ends(call *c) {
  int i = 0;
  bool ends = false;
  for (const char *letter = c->line->operation->arguments; *letter; letter++) {
    if (*letter == '!') {
      ends = true;
      continue;
    }
    if (ends) c->t[i]->there = false;
    if (isupper(*letter)) c->t[i]->there = true;
    ends = false;
    i++;
  }
}

void operation_run(const line *l, FILE *results) {
  call c = {.line = l, .n = l->arguments};
  if (!find_things(&c)) {
    fprintf(results, "%d skipped\n", l->number);
    return;
  }
  CUresult result = l->operation->run(&c);
  if (c.skipped) {
    fprintf(results, "%d skipped\n", l->number);
    return;
  }
  if (result == CUDA_SUCCESS) mark_ends(&c);
  fprintf(results, "%d %d%s%s\n", l->number, result, c.note[0] ? " " : "", c.note);
}
