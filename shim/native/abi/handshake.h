/* The message that a process sends to its tenant's handshake socket, once for each slot that it
 * claims; then the connection is closed. The content is untrusted: the kernel identifies the sender
 * (SO_PEERCRED).
 */
#pragma once
#define PENSTOCK_HANDSHAKE_MAGIC 0x444e41484e4550 /* "PENHAND", little-endian */
#define PENSTOCK_HANDSHAKE_VERSION 1
#define PENSTOCK_LIBRARY_BYTES 32

typedef struct penstock_handshake {
  uint64_t magic;       /* PENSTOCK_HANDSHAKE_MAGIC */
  uint32_t version;     /* PENSTOCK_HANDSHAKE_VERSION, of this message */
  uint32_t abi_version; /* PENSTOCK_ABI_VERSION, of the pages that the process reads */
  uint64_t owner;       /* the slot's owner word */
  uint64_t start_ticks; /* field 22 of /proc/self/stat as the process sees it; 0: no /proc */
  uint32_t slot;        /* its index in the usage page */
  uint32_t pid;         /* as the process sees it */
  char library[PENSTOCK_LIBRARY_BYTES]; /* release of the shim, NUL-terminated */
} penstock_handshake;
