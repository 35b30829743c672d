/* Rules of PENSTOCK_SIM_KERNELS: an accepted rule matches something and reads within bounds. */
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/work.h"

const char *sim_function_name(const sim_function *function) { return function ? "spin" : NULL; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static sim_profile profile = {.kernel_floor_ns = 2000};
  static sim_gpu gpu = {.profile = &profile};
  static sim_context context = {.gpu = &gpu};
  static sim_function function = {.ctx = &context};
  char *text = malloc(size + 1);
  memcpy(text, data, size);
  text[size] = 0;
  sim_kernel_rule rule;
  if (sim_kernel_rule_parse(text, strcspn(text, ","), &rule)) {
    if (!rule.pattern[0] || !memchr(rule.pattern, 0, sizeof rule.pattern)) abort();
    profile.rules[0] = rule;
    uint64_t *params = calloc(3, 8);
    sim_work work = {.type = CU_GRAPH_NODE_TYPE_KERNEL,
                     .kernel = {.function = &function, .params = params, .param_bytes = 24}};
    if (sim_kernel_act_of(&work).duration_ns < profile.kernel_floor_ns) abort();
    free(params);
  }
  free(text);
  return 0;
}
