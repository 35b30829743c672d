/* A page of a mapped file that is gone: its owner truncated the file, or its file system had no
 * room for it. Whoever touches it gets SIGBUS. The supervisor of a tenant must not end by that, for
 * it has its command's exit code to hand on: it goes on with an empty page in that place. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"
/* after the headers whose types it names */
#include "mechanism/binding.h"

static unsigned lost;
static uintptr_t page_bytes;

static void replace(int number, siginfo_t *info, void *context) {
  (void)context;
  int saved = errno;
  void *page = (void *)((uintptr_t)info->si_addr & ~(page_bytes - 1));
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  if (info->si_code == BUS_ADRERR &&
      mmap(page, page_bytes, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED) {
    __atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
  } else {
    signal(number, SIG_DFL); /* the access is made again, and ends the process */
  }
  errno = saved;
}

int penstock_survive_lost_pages(void) {
  page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
  struct sigaction action = {.sa_sigaction = replace, .sa_flags = SA_SIGINFO};
  sigfillset(&action.sa_mask);
  return sigaction(SIGBUS, &action, NULL);
}

unsigned penstock_lost_pages(void) { return __atomic_load_n(&lost, __ATOMIC_RELAXED); }
