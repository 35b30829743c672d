/* Time slices of tenants. A launch is admitted in its tenant's slice if it is expected to end in
 * that slice.
 *
 * In its slice a tenant has the device to itself, so it measures only its own work. The time-slice
 * scheduler (slices/) keeps the accounts of shares. The tenant's own balance only follows, so that
 * the gate can continue from there if time slices end. */
#include "hooks/launch_state.h"
#include "mechanism/slice.h"

#define ASK_AGAIN_NS 20000000
/* A launch that is queued this long before the slice reaches the device when the slice starts. */
#define EARLY_NS 30000

bool gate_slices_on(const penstock_process *process, int grant) {
  return penstock_slice_any(process->region.quota, (unsigned)grant);
}

static bool is_live(const penstock_slice *slice, uint64_t now_ns) {
  return slice->begin_ns && now_ns < slice->alive_ns + PENSTOCK_SLICE_SILENT_NS;
}

static bool is_own(const penstock_slice *slice, uint64_t now_ns) {
  return now_ns + EARLY_NS >= slice->begin_ns && now_ns < slice->end_ns;
}

bool gate_slices_live(const penstock_process *process, int grant, uint64_t now_ns) {
  if (__builtin_expect(!gate_slices_on(process, grant), 1)) return false;
  penstock_slice slice;
  penstock_slice_read(process->region.quota, (unsigned)grant, &slice);
  return is_live(&slice, now_ns);
}

uint64_t gate_slice_own(const penstock_process *process, int grant, uint64_t now_ns) {
  if (__builtin_expect(!gate_slices_on(process, grant), 1)) return 0;
  penstock_slice slice;
  penstock_slice_read(process->region.quota, (unsigned)grant, &slice);
  bool alone = !(slice.flags & PENSTOCK_SLICE_SHARED);
  return alone && is_live(&slice, now_ns) && is_own(&slice, now_ns) ? slice.begin_ns : 0;
}

/* Returns true if most of the launch will be done when the slice ends, after the work in flight.
 * The rest is an overrun, which is charged to the tenant; without overruns the device would idle
 * for half a launch at the end of each slice. A launch longer than a whole slice is admitted alone,
 * early in a slice. */
static bool fits(const penstock_slice *slice, uint64_t now_ns, uint64_t in_flight_ns,
                 uint64_t cost_ns) {
  uint64_t length = slice->end_ns - slice->begin_ns, left = slice->end_ns - now_ns;
  if (in_flight_ns + cost_ns / 2 <= left) return true;
  return cost_ns > length && !in_flight_ns && left > length - length / 4;
}

gate_slice_answer gate_slice_ask(penstock_process *process, gate_state *state, int grant,
                                 uint64_t now_ns, uint64_t cost_ns, uint64_t *wait_ns) {
  penstock_slice slice;
  penstock_slice_read(process->region.quota, (unsigned)grant, &slice);
  if (!is_live(&slice, now_ns)) return GATE_NO_SLICES;
  uint64_t silent_ns = slice.alive_ns + PENSTOCK_SLICE_SILENT_NS;
  *wait_ns = silent_ns - now_ns < ASK_AGAIN_NS ? silent_ns - now_ns : ASK_AGAIN_NS;
  if (!is_own(&slice, now_ns)) {
    if (slice.begin_ns > now_ns && slice.begin_ns - now_ns < *wait_ns) {
      *wait_ns = slice.begin_ns - now_ns;
    }
    return GATE_NOT_NOW;
  }
  uint64_t in_flight = gate_in_flight_ns(process, state, grant, now_ns);
  if (fits(&slice, now_ns, in_flight, cost_ns)) return GATE_OWN_SLICE;
  if (slice.end_ns - now_ns < *wait_ns) *wait_ns = slice.end_ns - now_ns;
  return GATE_NOT_NOW;
}

void gate_slice_wanted(penstock_process *process, gate_state *state, int grant, uint64_t now_ns) {
  __atomic_store_n(&gate_device(process, grant)->wanted_ns, now_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&gate_slot(process, state, grant)->waiting_ns, now_ns, __ATOMIC_RELAXED);
}

void gate_slice_launched(penstock_process *process, int grant, uint64_t until_ns) {
  uint64_t *word = &gate_device(process, grant)->busy_until_ns;
  uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (seen < until_ns && !__atomic_compare_exchange_n(word, &seen, until_ns, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
