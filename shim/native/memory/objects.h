/* The table of objects: the driver objects of this process that are charged, and how much.
 *
 * The table maps (kind, key) to the charge; the key is the pointer or handle that the driver
 * returned. A hook that frees an object takes the entry out first, calls the driver, and puts the
 * entry back if the driver refused, because as soon as the driver has freed the object, it may
 * return the same key to another thread. An object that is not in the table was not charged, so a
 * call that frees it is only forwarded.
 *
 * The child of a fork has an empty table, because it must not uncharge what its parent was
 * charged. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum penstock_kind {
  PENSTOCK_DEVICE_MEMORY = 1, /* cuMemAlloc…, cuMemAllocManaged; the key is the pointer */
  PENSTOCK_POOL_MEMORY,       /* cuMemAllocAsync, charged through its pool; `detail` is the pool */
  PENSTOCK_IPC_MEMORY, /* cuIpcOpenMemHandle; `detail` counts further calls for the same memory */
  PENSTOCK_POOL,       /* CUmemoryPool */
  PENSTOCK_ARRAY,      /* CUarray */
  PENSTOCK_MIPMAP,     /* CUmipmappedArray */
  PENSTOCK_EXTERNAL_MEMORY, /* CUexternalMemory */
  PENSTOCK_VMM_HANDLE,      /* CUmemGenericAllocationHandle; `detail` is the allocation's key */
  PENSTOCK_VMM_ALLOCATION,  /* the key is a number that the shim assigns */
  PENSTOCK_VMM_MAPPING, /* the key is the address, `bytes` the length and `detail` the allocation */
  PENSTOCK_CONTEXT_LIMIT, /* the key is the context's address plus the CUlimit (hooks/limit.c) */
  PENSTOCK_CONTEXT,       /* CUcontext */
  PENSTOCK_GREEN_CONTEXT, /* CUgreenCtx */
  PENSTOCK_MODULE,  /* variables of a CUmodule; `detail` is the size of the largest variable that is
                       charged */
  PENSTOCK_LIBRARY, /* CUlibrary on one device, charged only through its copies: `detail` is the
                       cost of a copy, `bytes` the size of the largest variable that is charged with
                       it */
  PENSTOCK_SHARE,   /* the key is the share; `bytes` counts its holders in this process */
  PENSTOCK_POOL_IMPORT,  /* CUmemoryPool of another process */
  PENSTOCK_POOL_POINTER, /* cuMemPoolImportPointer; the key is the pointer */
  PENSTOCK_LIBRARY_COPY, /* copy of a library in one context; `detail` is the library */
  PENSTOCK_GRAPH_EXEC,   /* CUgraphExec with memory nodes; `detail` is what a launch may need */
  PENSTOCK_KEPT_OPEN,    /* freed object whose memory an open descriptor keeps: the key is the
                            descriptor's mark, `detail` the key that the object had */
  PENSTOCK_GLOBAL, /* variable of a compressed image; the key is its address, `detail` the owner */
  PENSTOCK_MODULE_CODE,     /* code of a CUmodule; `detail` is 1 once the program has looked up a
                               function */
  PENSTOCK_MODULE_UNLOADED, /* code of a CUmodule that is not loaded yet; `bytes` is its cost once
                               it is loaded */
  PENSTOCK_KERNEL,          /* CUkernel; `detail` is the library */
  PENSTOCK_FUNCTION,        /* CUfunction with its context; `detail` is the module or library */
} penstock_kind;

typedef struct penstock_object {
  uint64_t key;
  uint64_t bytes;   /* bytes charged, unless the kind says otherwise */
  uint64_t detail;  /* meaning depends on the kind */
  uint64_t share;   /* share that is charged in place of the process (shares.h), 0 if none */
  uint64_t mark;    /* mark of the descriptors that keep the memory (mechanism/mark.h), 0 if none */
  uint64_t changes; /* number of changes of a limit (hooks/limit.c); a distinct number for each VMM
                       handle and mapping */
  CUcontext context; /* context with which the object is destroyed, NULL if none */
  int16_t grant;     /* index of the grant that was charged, -1 if none */
  uint8_t kind;
  uint8_t kept_kind; /* kind of a PENSTOCK_KEPT_OPEN object before it was freed */
  bool in_slab;      /* block in a slab, which is charged as a whole (slabs.h) */
  bool imported;     /* VMM allocation of another process; `bytes` grows as it is mapped */
} penstock_object;

/* Adds a copy of `object`, or overwrites the entry with its kind and key. Returns false if there is
 * no memory. */
bool penstock_object_put(const penstock_object *object);

/* Adds a copy of `object`. Returns false if an entry with its kind and key exists, or if there is
 * no memory. */
bool penstock_object_add(const penstock_object *object);

/* Compares and swaps: replaces the entry `seen` by `by`, or removes it if `by` is NULL. Returns
 * false if the entry is gone or its bytes, detail or changes differ. */
bool penstock_object_replace(const penstock_object *seen, const penstock_object *by);

/* Removes an entry and copies it to `out`. Returns false, with `out` unchanged, if there is no such
 * entry. */
bool penstock_object_take(penstock_kind kind, uint64_t key, penstock_object *out);

/* Copies an entry to `out`, which may be NULL. Returns false if there is no such entry. */
bool penstock_object_find(penstock_kind kind, uint64_t key, penstock_object *out);

/* Calls `visit` for every entry of a kind (0 means all kinds) and removes the entries for which it
 * returns true. `visit` runs under a lock, so it must not call the driver or use this table. */
void penstock_object_each(penstock_kind kind,
                          bool (*visit)(penstock_object *object, void *argument), void *argument);

/* Returns true for the start address of device memory that this process allocated, and false for an
 * address inside an allocation. */
bool penstock_pointer_is_known(CUdeviceptr pointer);
