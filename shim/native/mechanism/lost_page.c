/* Survival of lost pages. A page of a mapped file is lost if the file's owner truncates the file or
 * its file system is full. An access to it raises SIGBUS. This must not end a tenant's supervisor,
 * which has to return the command's exit code, so the handler replaces the lost page with an empty
 * one. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mechanism/publish.h"
#include "mechanism/reap.h"
/* included last, because it uses the types of the headers above */
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
    signal(number, SIG_DFL); /* without the handler, the repeated access ends the process */
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
