/* Says of itself that its environment and its command line are gigabytes long, then waits. */
#include <linux/prctl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void) {
  const unsigned long size = 3UL << 29;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *block = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  unsigned long at = (unsigned long)block;
  struct prctl_mm_map map = {
      .start_code = at,
      .end_code = at + 1,
      .start_data = at,
      .end_data = at,
      .start_brk = at + 4096,
      .brk = at + 4096,
      .start_stack = at,
      .arg_start = at,
      .arg_end = at + size,
      .env_start = at,
      .env_end = at + size,
      .exe_fd = (unsigned)-1,
  };
  if (prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) != 0) {
    perror("PR_SET_MM_MAP");
    return 1;
  }
  if (write(1, "set\n", 4) != 4) return 2;
  pause();
  return 0;
}
