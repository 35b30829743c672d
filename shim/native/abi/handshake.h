/* The message that a process sends to its tenant's handshake socket once for each slot that it
 * claims, after which it closes the connection. The receiver does not trust the content: the kernel
 * identifies the sender (SO_PEERCRED).
 */
#pragma once
#define PENSTOCK_HANDSHAKE_MAGIC 0x444e41484e4550 /* "PENHAND", little-endian */
#define PENSTOCK_HANDSHAKE_VERSION 1
#define PENSTOCK_LIBRARY_BYTES 32

typedef struct penstock_handshake {
  uint64_t magic;       /* PENSTOCK_HANDSHAKE_MAGIC */
  uint32_t version;     /* PENSTOCK_HANDSHAKE_VERSION: version of this message */
  uint32_t abi_version; /* PENSTOCK_ABI_VERSION: version of the pages that the process reads */
  uint64_t owner;       /* the slot's owner word (abi/usage.h) */
  uint64_t start_ticks; /* field 22 of /proc/self/stat as the process sees it, 0 without /proc */
  uint32_t slot;        /* the slot's index in the usage page */
  uint32_t pid;         /* process ID as the process itself sees it */
  char library[PENSTOCK_LIBRARY_BYTES]; /* release number of the shim, NUL-terminated */
} penstock_handshake;
