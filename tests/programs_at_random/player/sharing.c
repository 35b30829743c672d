/* Handles that go from process to process: bytes in the shared page, descriptors by sockets. */
#define _GNU_SOURCE
#include <sys/socket.h>

#include "player.h"

static const CUmemAllocationHandleType BY_FD = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

static void put_slot(long slot, const void *bytes, size_t count) {
  memcpy(shared->slots[slot].bytes, bytes, count);
  __atomic_store_n(&shared->slots[slot].full, 1, __ATOMIC_RELEASE);
}

static bool get_slot(long slot, void *bytes, size_t count) {
  if (!__atomic_load_n(&shared->slots[slot].full, __ATOMIC_ACQUIRE)) return false;
  memcpy(bytes, shared->slots[slot].bytes, count);
  return true;
}

/* buffer, slot */
static CUresult give_memory(call *c) {
  CUipcMemHandle handle;
  CUresult result = cuIpcGetMemHandle(&handle, c->t[0]->handle);
  if (result == CUDA_SUCCESS) put_slot(c->n[1], &handle, sizeof handle);
  return result;
}

/* The size is known to both: KiB. */
static CUresult open_memory(call *c) {
  CUipcMemHandle handle;
  CUdeviceptr pointer = 0;
  if (!get_slot(c->n[2], &handle, sizeof handle)) return skip(c);
  CUresult result = cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = pointer, .bytes = (uint64_t)c->n[3] << 10};
  return result;
}

static CUresult close_memory(call *c) { return cuIpcCloseMemHandle(c->t[0]->handle); }

static CUresult give_event(call *c) {
  CUipcEventHandle handle;
  CUresult result = cuIpcGetEventHandle(&handle, (CUevent)c->t[0]->handle);
  if (result == CUDA_SUCCESS) put_slot(c->n[1], &handle, sizeof handle);
  return result;
}

static CUresult open_event(call *c) {
  CUipcEventHandle handle;
  CUevent event = NULL;
  if (!get_slot(c->n[2], &handle, sizeof handle)) return skip(c);
  CUresult result = cuIpcOpenEventHandle(&event, handle);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)event};
  return result;
}

/* ---- descriptors ---- */

typedef union control {
  struct cmsghdr head;
  char room[CMSG_SPACE(sizeof(int))];
} control;

static bool send_descriptor(long channel, int descriptor, uint64_t bytes) {
  control room = {0};
  struct iovec part = {&bytes, sizeof bytes};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  return sendmsg(shared->channels[channel][0], &message, 0) == sizeof bytes;
}

/* -1: nobody sent one. */
static int take_descriptor(long channel, uint64_t *bytes) {
  control room = {0};
  struct iovec part = {bytes, sizeof *bytes};
  struct msghdr message = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  if (recvmsg(shared->channels[channel][1], &message, MSG_CMSG_CLOEXEC) != sizeof *bytes) return -1;
  struct cmsghdr *head = CMSG_FIRSTHDR(&message);
  int descriptor = -1;
  if (head) memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
  return descriptor;
}

static CUresult send_physical(call *c) {
  int descriptor = -1;
  CUresult result = cuMemExportToShareableHandle(&descriptor, c->t[0]->handle, BY_FD, 0);
  if (result != CUDA_SUCCESS) return result;
  bool sent = send_descriptor(c->n[1], descriptor, c->t[0]->bytes);
  close(descriptor);
  return sent ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

/* physical, context, channel, device */
static CUresult receive_physical(call *c) {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t bytes = 0;
  int descriptor = take_descriptor(c->n[2], &bytes);
  if (descriptor < 0) return skip(c);
  CUresult result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, BY_FD);
  close(descriptor);
  *c->t[0] =
      (thing){.context = (int)c->n[1], .device = (int)c->n[3], .handle = handle, .bytes = bytes};
  return result;
}

/* A descriptor that this process keeps: it alone may hold the memory. */
static CUresult keep_descriptor(call *c) {
  int descriptor = -1;
  CUresult result = cuMemExportToShareableHandle(&descriptor, c->t[1]->handle, BY_FD, 0);
  *c->t[0] = (thing){.context = c->t[1]->context,
                     .device = c->t[1]->device,
                     .handle = (uint64_t)descriptor,
                     .bytes = c->t[1]->bytes};
  return result;
}

static CUresult close_descriptor(call *c) {
  close((int)c->t[0]->handle);
  return CUDA_SUCCESS;
}

static CUresult import_kept(call *c) {
  CUmemGenericAllocationHandle handle = 0;
  CUresult result =
      cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)c->t[1]->handle, BY_FD);
  *c->t[0] = (thing){.context = c->t[1]->context,
                     .device = c->t[1]->device,
                     .handle = handle,
                     .bytes = c->t[1]->bytes};
  return result;
}

static CUresult send_pool(call *c) {
  int descriptor = -1;
  CUresult result =
      cuMemPoolExportToShareableHandle(&descriptor, (CUmemoryPool)c->t[0]->handle, BY_FD, 0);
  if (result != CUDA_SUCCESS) return result;
  bool sent = send_descriptor(c->n[1], descriptor, 0);
  close(descriptor);
  return sent ? result : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult receive_pool(call *c) {
  CUmemoryPool pool = NULL;
  uint64_t bytes = 0;
  int descriptor = take_descriptor(c->n[2], &bytes);
  if (descriptor < 0) return skip(c);
  CUresult result =
      cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor, BY_FD, 0);
  close(descriptor);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)pool};
  return result;
}

static CUresult give_pointer(call *c) {
  CUmemPoolPtrExportData data;
  CUresult result = cuMemPoolExportPointer(&data, c->t[0]->handle);
  if (result == CUDA_SUCCESS) put_slot(c->n[1], &data, sizeof data);
  return result;
}

/* buffer, pool, slot, KiB */
static CUresult take_pointer(call *c) {
  CUmemPoolPtrExportData data;
  CUdeviceptr pointer = 0;
  if (!get_slot(c->n[2], &data, sizeof data)) return skip(c);
  CUresult result = cuMemPoolImportPointer(&pointer, (CUmemoryPool)c->t[1]->handle, &data);
  *c->t[0] =
      (thing){.context = c->t[1]->context, .handle = pointer, .bytes = (uint64_t)c->n[3] << 10};
  return result;
}

const operation share_operations[] = {{"give", "bn", give_memory},
                                      {"open", "Bcnn", open_memory},
                                      {"close", "!b", close_memory},
                                      {"egive", "en", give_event},
                                      {"eopen", "Ecn", open_event},
                                      {"vsend", "vn", send_physical},
                                      {"vreceive", "Vcnn", receive_physical},
                                      {"fdkeep", "Fv", keep_descriptor},
                                      {"fdclose", "!f", close_descriptor},
                                      {"fdimport", "Vf", import_kept},
                                      {"psend", "pn", send_pool},
                                      {"preceive", "Pcn", receive_pool},
                                      {"pgive", "bn", give_pointer},
                                      {"ptake", "Bpnn", take_pointer},
                                      {0}};
