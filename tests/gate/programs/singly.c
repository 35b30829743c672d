/* Single launches. On request of the parent, one cuEventRecord of the driver takes very long, and
 * so does the program's call in which the gate recorded that event. */
#include "gate.h"

enum { LEARNING = 200, COUNTED = 300, LONG_MS = 250 };

static void pause_ns(uint64_t ns) {
  for (uint64_t until = now_ns() + ns; now_ns() < until;) continue;
}

static void wait_for_parent(const char *told) {
  char line[8];
  puts(told);
  fflush(stdout);
  CHECK(fgets(line, sizeof line, stdin));
}

/* A microsecond's kernel after a pause. */
static bool launch_takes_long(CUstream stream) {
  pause_ns(500000);
  uint64_t begun_ns = now_ns();
  busy(stream, 1000);
  return ms_since(begun_ns) > LONG_MS;
}

CASE(launches_come_singly) {
  begin();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  int count = 0;
  for (int i = 0; i < LEARNING; i++) launch_takes_long(stream);
  wait_for_parent("learned");
  for (int i = 0; i < COUNTED; i++) count += launch_takes_long(stream);
  printf("%d\n", count);
}

/* Of a kernel whose launches do not take alike, and nobody waits for. */
CASE(launches_that_come_singly_grow_longer) {
  begin();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 2000; i++) {
    pause_ns(1000000);
    busy(stream, i < 1000 ? 20000 : 600000);
    if (i == 1000) wait_for_parent("longer");
    if (i == 1200) wait_for_parent("from here");
  }
  OK(cuCtxSynchronize());
  wait_for_parent("done");
}
