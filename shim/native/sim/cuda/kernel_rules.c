/* Kernel rules. Simulated kernels compute nothing. A kernel's name decides how long it runs and the
 * few things that it does, according to the rules in PENSTOCK_SIM_KERNELS and then those of the
 * device's profile. A rule has one of these forms:
 *
 *   pattern=200us       the kernel runs for that long
 *   pattern=param0      it runs for as many nanoseconds as its 8-byte parameter 0 says
 *   pattern=until0      it runs until the 8-byte word at parameter 0 is at least parameter 1; when
 *   it
 *                       starts, it stores parameter 3 at parameter 2 (unless that is 0)
 *   pattern=joins0      it adds one to the 8-byte word at parameter 0 when it starts, and runs
 *   until
 *                       that word is at least parameter 1 (several kernels meet)
 *   pattern=sets0       it sets the graph condition in parameter 0 to parameter 1
 *   pattern=launches0   it launches the device graph in parameter 0 behind itself, as many times as
 *                       parameter 1 says
 *
 * Any other number may take the place of the 0, and shifts the other parameters by as much. Without
 * a rule, a kernel takes a little time for each of its threads. The words may be in any memory that
 * the process can access, including that of another device or process.
 */
#include <fnmatch.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/work.h"

#define LONGEST_NS 1e18
#define MOST_PARAMETERS 4096

static sim_kernel_rule environment_rules[SIM_MAX_RULES];

static const struct {
  const char *word;
  uint32_t action;
} words[] = {{"param", SIM_LASTS},
             {"until", SIM_LASTS_UNTIL},
             {"sets", SIM_SETS_CONDITION},
             {"launches", SIM_LAUNCHES_GRAPH},
             {"joins", SIM_JOINS}};

bool sim_kernel_rule_parse(const char *text, size_t length, sim_kernel_rule *rule) {
  const char *equals = memchr(text, '=', length);
  if (!equals || equals == text || (size_t)(equals - text) >= SIM_NAME_BYTES) return false;
  memset(rule, 0, sizeof *rule);
  memcpy(rule->pattern, text, (size_t)(equals - text));
  rule->parameter = -1;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t letters = strlen(words[i].word);
    if (strncmp(equals + 1, words[i].word, letters)) continue;
    char *end;
    long number = strtol(equals + 1 + letters, &end, 10);
    rule->parameter = (int32_t)number;
    rule->action = words[i].action;
    return end > equals + 1 + letters && number >= 0 && number < MOST_PARAMETERS;
  }
  char *unit;
  double number = strtod(equals + 1, &unit);
  double scale = !strncmp(unit, "ns", 2)   ? 1
                 : !strncmp(unit, "us", 2) ? 1e3
                 : !strncmp(unit, "ms", 2) ? 1e6
                 : *unit == 's'            ? 1e9
                                           : 0;
  if (!(number >= 0 && number * scale < LONGEST_NS) || scale == 0) return false;
  rule->duration_ns = (uint64_t)(number * scale);
  return true;
}

static void read_environment_rules(void) {
  const char *text = getenv("PENSTOCK_SIM_KERNELS");
  for (int n = 0; text && *text && n < SIM_MAX_RULES;) {
    size_t length = strcspn(text, ",");
    sim_kernel_rule rule;
    if (sim_kernel_rule_parse(text, length, &rule)) environment_rules[n++] = rule;
    text += length;
    if (*text) text++;
  }
}

bool sim_kernels_launch_graphs(void) {
  for (int i = 0; i < SIM_MAX_RULES && environment_rules[i].pattern[0]; i++)
    if (environment_rules[i].action == SIM_LAUNCHES_GRAPH) return true;
  return false;
}

static const sim_kernel_rule *find_rule(const sim_kernel_rule *rules, const char *name) {
  for (int i = 0; i < SIM_MAX_RULES && rules[i].pattern[0]; i++)
    if (!fnmatch(rules[i].pattern, name, 0)) return &rules[i];
  return NULL;
}

static uint64_t parameter(const sim_work *work, int number) {
  uint64_t value = 0;
  size_t at = 8 * (size_t)number, bytes = work->kernel.param_bytes;
  /* If the image does not describe its parameters, only the first one is known. */
  if (number == 0 || at + 8 <= bytes) memcpy(&value, (const char *)work->kernel.params + at, 8);
  return value;
}

sim_kernel_act sim_kernel_act_of(const sim_work *work) {
  const sim_function *f = work->kernel.function;
  const sim_gpu *gpu = f->ctx->gpu;
  const sim_profile *p = gpu->profile;
  const unsigned *g = work->kernel.grid, *b = work->kernel.block;
  uint64_t threads = (uint64_t)g[0] * g[1] * g[2] * b[0] * b[1] * b[2];
  sim_kernel_act act = {.duration_ns = p->kernel_floor_ns + threads * p->thread_cost_ps / 1000};
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_environment_rules);
  const char *name = sim_function_name(f);
  const sim_kernel_rule *rule = find_rule(environment_rules, name);
  if (!rule) rule = find_rule(p->rules, name);
  if (!rule) return act;
  act.what = rule->action;
  act.by_rule = true;
  if (rule->action != SIM_LASTS) {
    for (int i = 0; i < 4; i++) act.words[i] = parameter(work, rule->parameter + i);
    return act;
  }
  uint64_t ns = rule->parameter >= 0 ? parameter(work, rule->parameter) : rule->duration_ns;
  act.duration_ns = ns > p->kernel_floor_ns ? ns : p->kernel_floor_ns;
  return act;
}
