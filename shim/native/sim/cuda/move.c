/* Copies and fills. The contents are moved during the call, and the device takes time for the copy
 * later. */
#include <string.h>

#include "sim/cuda/work.h"

static void move_row(uint64_t to, uint64_t from, uint64_t bytes, bool to_host, bool from_host) {
  sim_big_lock();
  uint64_t kept_to = to_host ? bytes : sim_kept_bytes(to, bytes);
  uint64_t kept_from = from_host ? bytes : sim_kept_bytes(from, bytes);
  sim_big_unlock();
  uint64_t both = kept_to < kept_from ? kept_to : kept_from;
  if (both) memmove((void *)to, (void *)from, both);
  if (kept_to > both) memset((void *)(to + both), 0, kept_to - both);
}

static void fill_row(uint64_t to, uint64_t bytes, uint32_t value, unsigned width) {
  sim_big_lock();
  bytes = sim_kept_bytes(to, bytes);
  sim_big_unlock();
  if (width == 1) {
    memset((void *)to, (int)value, bytes);
  } else if (width == 2) {
    for (uint64_t i = 0; i < bytes / 2; i++) ((uint16_t *)to)[i] = (uint16_t)value;
  } else {
    for (uint64_t i = 0; i < bytes / 4; i++) ((uint32_t *)to)[i] = value;
  }
}

void sim_move_contents(const struct sim_move *m) {
  bool whole =
      m->rows <= 1 || (m->to_pitch == m->bytes && (m->value_bytes || m->from_pitch == m->bytes));
  uint64_t rows = whole && m->layers <= 1 ? 1 : m->rows;
  uint64_t bytes = whole && m->layers <= 1 ? m->bytes * (m->rows ? m->rows : 1) : m->bytes;
  for (uint64_t layer = 0; layer < (m->layers ? m->layers : 1); layer++)
    for (uint64_t row = 0; row < (rows ? rows : 1); row++) {
      uint64_t to = m->to + layer * m->to_slice + row * m->to_pitch;
      if (m->value_bytes)
        fill_row(to, bytes, m->value, m->value_bytes);
      else
        move_row(to, m->from + layer * m->from_slice + row * m->from_pitch, bytes, m->to_host,
                 m->from_host);
    }
}

/* Describes a copy as an operation of the device: copies across the host link use a copy engine,
 * and those on the device are kernels that only move memory. */
void sim_move_op(sim_gpu *gpu, const struct sim_move *m, sim_op *op) {
  const sim_profile *p = gpu->profile;
  *op = (sim_op){.launches = 1};
  op->bytes = m->bytes * (m->rows ? m->rows : 1) * (m->layers ? m->layers : 1);
  bool host = m->to_host || m->from_host;
  if (host && !m->value_bytes) {
    double speed = p->host_bytes_per_ns / (m->pageable ? 2 : 1);
    op->kind = SIM_COPY;
    op->engine = m->to_host && p->copy_engines > 1 ? 1 : 0;
    op->duration_ns = (uint64_t)((double)op->bytes / speed);
    return;
  }
  double traffic = (double)op->bytes * (m->value_bytes ? 1 : 2);
  op->kind = SIM_KERNEL;
  op->flags = SIM_OP_MEMORY;
  op->duration_ns = p->kernel_floor_ns + (uint64_t)(traffic / p->memory_bytes_per_ns);
  op->width = op->bytes >= 1 << 20 ? 1000 : (uint16_t)(1 + op->bytes * 999 / (1 << 20));
}
