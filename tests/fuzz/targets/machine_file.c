/* A simulated machine's file with a damaged header is refused with a reason, or has no more devices
 * than it has room for. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/machine/model.h"

static char path[64];
static sim_file sound;

static void make(void) {
  static sim_profile profile = {
      .name = "fuzzed", .memory_bytes = 1 << 30, .compute_major = 9, .sm_count = 4};
  char error[SIM_ERROR_BYTES];
  snprintf(path, sizeof path, "/dev/shm/penstock-fuzz-machine-%d", (int)getpid());
  if (sim_machine_create(path, &profile, 1, error)) abort();
  int fd = open(path, O_RDONLY);
  if (pread(fd, &sound, sizeof sound, 0) != sizeof sound) abort();
  close(fd);
}
static void remove_machine(void) { unlink(path); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!path[0]) {
    make();
    atexit(remove_machine);
  }
  sim_file head = sound;
  for (size_t i = 0; i + 1 < size; i += 2) ((uint8_t *)&head)[data[i] % sizeof head] = data[i + 1];
  int fd = open(path, O_WRONLY);
  if (fd < 0 || pwrite(fd, &head, sizeof head, 0) != sizeof head) abort();
  close(fd);
  char error[SIM_ERROR_BYTES] = {0};
  sim_machine *machine = sim_machine_open(path, error);
  if (machine ? sim_machine_device_count(machine) != 1 : !error[0]) abort();
  sim_machine_close(machine);
  return 0;
}
