/* Placeholder until the model lands: every call says so. */
#include <stdio.h>

#include "sim/machine/binding.h"

static int missing(char *error) {
  if (error) snprintf(error, SIM_ERROR_BYTES, "the simulated machine is not built in yet");
  return -1;
}
int sim_machine_create(const char *path, const sim_profile *profiles, uint32_t count, char *error) {
  (void)path, (void)profiles, (void)count;
  return missing(error);
}
sim_machine *sim_machine_open(const char *path, char *error) {
  (void)path, missing(error);
  return 0;
}
void sim_machine_close(sim_machine *machine) { (void)machine; }
uint32_t sim_machine_device_count(const sim_machine *machine) { return (void)machine, 0; }
int sim_machine_device(sim_machine *machine, uint32_t device, sim_device_info *info) {
  return (void)machine, (void)device, (void)info, -1;
}
int sim_machine_usage(sim_machine *machine, uint32_t device, sim_device_usage *usage) {
  return (void)machine, (void)device, (void)usage, -1;
}
int sim_machine_record(sim_machine *machine, uint32_t device, sim_process_record *records,
                       uint32_t capacity, uint64_t *at_ns) {
  return (void)machine, (void)device, (void)records, (void)capacity, (void)at_ns, -1;
}
int sim_machine_samples(sim_machine *machine, uint32_t device, int32_t pid, sim_sample *samples,
                        uint32_t capacity) {
  return (void)machine, (void)device, (void)pid, (void)samples, (void)capacity, -1;
}
int sim_machine_inject(sim_machine *machine, uint32_t device, const sim_fault *fault) {
  return (void)machine, (void)device, (void)fault, -1;
}
