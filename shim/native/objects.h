/* What this process holds on the devices: which driver object cost which grant how many bytes.
 *
 * A table from (kind, key) to what was charged; the key is the pointer or handle as the driver gave
 * it. Whoever frees takes the entry out first, calls the driver, and puts it back if the driver
 * refused: the driver may hand the same key to another thread at any time after that call. What is
 * not in the table was not charged: its free is the driver's business alone.
 *
 * The table of a fork's child is empty: what the parent holds is not the child's to give back.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum penstock_kind {
  PENSTOCK_DEVICE_MEMORY = 1, /* cuMemAlloc…, cuMemAllocManaged: key is the pointer */
  PENSTOCK_POOL_MEMORY,       /* cuMemAllocAsync: charged through its pool, `detail` is the pool */
  PENSTOCK_IPC_MEMORY,        /* cuIpcOpenMemHandle; `detail` counts openings beyond the first */
  PENSTOCK_POOL,              /* CUmemoryPool */
  PENSTOCK_ARRAY,             /* CUarray */
  PENSTOCK_MIPMAP,            /* CUmipmappedArray */
  PENSTOCK_EXTERNAL_MEMORY,   /* CUexternalMemory */
  PENSTOCK_VMM_HANDLE,     /* CUmemGenericAllocationHandle; `detail` is the allocation's number */
  PENSTOCK_VMM_ALLOCATION, /* key is a number of our own */
  PENSTOCK_VMM_MAPPING,    /* key is the address; `bytes` its length, `detail` the allocation */
  PENSTOCK_CONTEXT_LIMIT,  /* key is the context's address plus the CUlimit; hooks/limit.c */
  PENSTOCK_CONTEXT,        /* CUcontext */
  PENSTOCK_GREEN_CONTEXT,  /* CUgreenCtx */
  PENSTOCK_MODULE,         /* CUmodule: its variables; `detail` the largest that is paid for */
  PENSTOCK_LIBRARY,      /* CUlibrary on one device: `detail` what a copy costs, `bytes` the largest
                            variable that this pays for; charged as copies only */
  PENSTOCK_SHARE,        /* key is the share; `bytes` counts who of this process holds it */
  PENSTOCK_POOL_IMPORT,  /* CUmemoryPool of another process */
  PENSTOCK_POOL_POINTER, /* cuMemPoolImportPointer: key is the pointer */
  PENSTOCK_LIBRARY_COPY, /* in one context; `detail` is the library */
  PENSTOCK_GRAPH_EXEC,   /* CUgraphExec with memory nodes; `detail` what a launch may need */
  PENSTOCK_LINGERING,   /* given back but for a descriptor: key is its mark, `detail` the key it had
                         */
  PENSTOCK_GLOBAL,      /* a variable of a hidden image: key is its address, `detail` the owner */
  PENSTOCK_MODULE_CODE, /* of a CUmodule; `detail` 1 once a function of it was got */
  PENSTOCK_MODULE_UNLOADED, /* of a CUmodule: what its code will cost when it is loaded */
  PENSTOCK_KERNEL,          /* CUkernel; `detail` is the library */
  PENSTOCK_FUNCTION,        /* CUfunction: its context; `detail` is the module or library */
} penstock_kind;

typedef struct penstock_object {
  uint64_t key;
  uint64_t bytes;    /* charged, unless the kind says otherwise */
  uint64_t detail;   /* by kind */
  uint64_t share;    /* not 0: what is charged lies in this share (shares.h), not here */
  uint64_t mark;     /* not 0: of descriptors that keep the memory (mechanism/mark.h) */
  uint64_t changes;  /* of a limit (hooks/limit.c); VMM handles and mappings: each has its own */
  CUcontext context; /* dies with this context; NULL: does not */
  int16_t grant;     /* index of the grant that was charged; -1: none */
  uint8_t kind;
  uint8_t lingers_as; /* kind of a lingering one before */
  bool in_slab;       /* `bytes` of a slab that is charged as a whole (slabs.h) */
  bool imported;      /* VMM allocations: of another process; `bytes` grows as it is mapped */
} penstock_object;

/* Adds a copy of `object`; an entry of that kind and key is overwritten. False: no memory. */
bool penstock_object_put(const penstock_object *object);

/* The same, but an entry that is there stays. False then, too. */
bool penstock_object_add(const penstock_object *object);

/* Puts `by` in place of an entry that is still as it was seen; NULL: takes it out. False when its
 * bytes, detail or changes are others by now, or it is gone. */
bool penstock_object_replace(const penstock_object *seen, const penstock_object *by);

/* Takes an entry out. False when there is none; `out` is untouched then. */
bool penstock_object_take(penstock_kind kind, uint64_t key, penstock_object *out);

/* Copies an entry. `out` may be NULL. */
bool penstock_object_find(penstock_kind kind, uint64_t key, penstock_object *out);

/* Calls `visit` for every entry of a kind (0: of all). An entry is taken out when it says so. It
 * runs under a lock: it must not call the driver or this table. */
void penstock_object_each(penstock_kind kind,
                          bool (*visit)(penstock_object *object, void *argument), void *argument);

/* True when this very pointer is device memory that this process allocated; an address inside of an
 * allocation is not found: ask the driver then. */
bool penstock_pointer_is_known(CUdeviceptr pointer);
