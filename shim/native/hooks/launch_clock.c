/* Device times on the host's clock.
 *
 * A *base* event is recorded on a stream of the shim's own, which is always idle: the device passes
 * it within microseconds of the call, unless another process has the device. It is renewed every
 * second, for the driver tells times between events as floats. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

#define RENEW_NS 1000000000
#define RIPE_NS 1000000 /* a renewal is looked at when it is this old */
/* A base this old tells the time too coarsely, and by another clock than the host's. */
#define FAR_NS 10000000000
/* Clocks run apart by up to so much; by how much, is known to PROMPT_NS over the time that they
 * were compared for. Until that is long enough, bases are renewed soon. */
#define MOST_PPM 50
#define LEAST_PPM 2
#define COMPARED_NS 1000000000
#define SOON_NS (RENEW_NS / 8)
/* Rates change with the temperature: after so long they are compared anew. */
#define ANEW_NS 60000000000
#define PROMPT_NS 20000 /* a renewal that was passed no later than this after its call */

void gate_clock_prepare(gate_context *context) {
  CUstream clock = NULL;
  CUstreamCaptureMode mode = gate_relax();
  if (REAL(cuStreamCreate)(&clock, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    __atomic_store_n(&context->clock, clock, __ATOMIC_RELEASE); /* others may look for it already */
  }
  gate_restore(mode);
}

/* Device time since a base on the host's clock, which the device's runs beside at its own rate. */
static int64_t host_time_ns(const gate_base *base, int64_t device_ns) {
  return device_ns + (int64_t)((double)device_ns * base->drift);
}

/* By how much what a base this old tells may be wrong. */
static uint64_t error_ns(const gate_base *base, uint64_t age_ns) {
  uint64_t ppm = MOST_PPM;
  if (base->compared_ns) ppm = LEAST_PPM + PROMPT_NS * UINT64_C(1000000) / base->compared_ns;
  return age_ns / 1000000 * (ppm < MOST_PPM ? ppm : MOST_PPM);
}

/* A renewal: `between` of device time after the base, on the host at `told_ns`. One that was passed
 * late says nothing of the rate, but its device time counts; if the base was, all begins anew.
 * Under the context's lock. */
static void compare_clocks(gate_context *context, uint64_t told_ns, int64_t between, bool prompt,
                           bool anew) {
  context->device_ns += (uint64_t)between;
  if (!context->host_ns || anew || context->device_ns > ANEW_NS) {
    context->host_ns = told_ns;
    context->device_ns = 0;
  } else if (prompt && context->device_ns >= COMPARED_NS) {
    double passed = (double)(int64_t)(told_ns - context->host_ns);
    context->base.drift = passed / (double)context->device_ns - 1;
    context->base.compared_ns = context->device_ns;
  }
}

/* Puts the ripe renewal in the base's place. When it was passed late, or its call was held up, its
 * time follows from the old base, unless that is less exact; never is it earlier than its call. */
static void adopt(gate_context *context, const gate_base *base, gate_marker *renewal) {
  int64_t between = 0;
  uint64_t at = renewal->recorded_ns, told = gate_marker_told_ns(renewal), host_ns = told;
  uint64_t late_ns = told - at;
  bool old = !base->marker || at >= base->marker->recorded_ns + FAR_NS, prompt = false, anew = old;
  if (!old) {
    if (!gate_elapsed_ns(base->marker, renewal, &between)) return; /* not passed yet */
    uint64_t by_base = base->ns + (uint64_t)host_time_ns(base, between);
    uint64_t apart = by_base > told ? by_base - told : told - by_base;
    anew = by_base + PROMPT_NS < at; /* so the base was passed late */
    prompt = apart <= PROMPT_NS + error_ns(base, told - base->ns) + base->late_ns;
    if (!prompt || late_ns > base->late_ns) {
      host_ns = by_base > at ? by_base : at;
      late_ns = base->late_ns;
      prompt = false;
    }
  }
  penstock_lock_acquire(&context->lock);
  bool ours = context->renewal == renewal && context->base.marker == base->marker;
  if (ours) {
    if (base->marker) compare_clocks(context, told, between, prompt, anew);
    context->base.marker = renewal; /* its reference goes with it */
    context->base.ns = host_ns;
    context->base.late_ns = late_ns;
    context->renewal = NULL;
  }
  penstock_lock_release(&context->lock);
  if (ours) gate_marker_put(context, base->marker);
}

static gate_marker *hold(gate_marker *marker) {
  if (marker) __atomic_fetch_add(&marker->references, 1, __ATOMIC_RELAXED);
  return marker;
}

/* Copies the base, and its renewal if asked for (NULL: there is none). The caller then holds a
 * reference to each marker. */
static gate_base hold_base(gate_context *context, gate_marker **renewal) {
  penstock_lock_acquire(&context->lock);
  gate_base base = context->base;
  hold(base.marker);
  if (renewal) *renewal = hold(context->renewal);
  penstock_lock_release(&context->lock);
  return base;
}

void gate_clock_renew(gate_stream *stream, uint64_t now_ns) {
  gate_context *context = stream->context;
  CUstream clock = __atomic_load_n(&context->clock, __ATOMIC_ACQUIRE);
  if (!clock) return;
  gate_marker *renewal;
  gate_base base = hold_base(context, &renewal);
  uint64_t renew_ns = base.compared_ns ? RENEW_NS : SOON_NS;
  if (renewal && (!base.marker || now_ns > renewal->recorded_ns + RIPE_NS)) {
    CUstreamCaptureMode mode = gate_relax();
    adopt(context, &base, renewal);
    gate_restore(mode);
    gate_called(stream, 1);
  } else if (!renewal && (!base.marker || now_ns > base.marker->recorded_ns + renew_ns)) {
    gate_marker *fresh = gate_marker_record_promptly(stream, clock);
    penstock_lock_acquire(&context->lock);
    if (!context->renewal) {
      context->renewal = fresh;
      fresh = NULL;
    }
    bool ripens = context->renewal != NULL;
    penstock_lock_release(&context->lock);
    gate_marker_put(context, fresh);
    if (!base.marker && ripens) gate_clock_renew(stream, now_ns);
  }
  gate_marker_put(context, base.marker);
  gate_marker_put(context, renewal);
}

bool gate_clock_place(gate_stream *stream, const gate_marker *marker, uint64_t *ns,
                      uint64_t *wrong_ns) {
  gate_context *context = stream->context;
  gate_base base = hold_base(context, NULL);
  int64_t since;
  /* The device's clock runs some parts in a million faster or slower than the host's. */
  bool near = base.marker && marker->recorded_ns < base.marker->recorded_ns + FAR_NS;
  bool known = near && gate_elapsed_ns(base.marker, marker, &since);
  if (known) {
    uint64_t now_ns = gate_now_ns();
    *ns = base.ns + (uint64_t)host_time_ns(&base, since);
    if (*ns > now_ns) *ns = now_ns; /* it has been passed */
    *wrong_ns = *ns > base.ns ? error_ns(&base, *ns - base.ns) : 0;
  }
  gate_marker_put(context, base.marker);
  return known;
}

uint64_t gate_clock_passed_ns(gate_stream *stream, uint64_t device_ns, uint64_t *wrong_ns) {
  gate_context *context = stream->context;
  penstock_lock_acquire(&context->lock);
  gate_base base = context->base;
  penstock_lock_release(&context->lock);
  *wrong_ns = error_ns(&base, device_ns);
  return (uint64_t)host_time_ns(&base, (int64_t)device_ns);
}

void gate_clock_clear(gate_context *context) {
  gate_marker_put(context, context->base.marker);
  gate_marker_put(context, context->renewal);
  context->base = (gate_base){0};
  context->renewal = NULL;
  context->host_ns = context->device_ns = 0;
  __atomic_store_n(&context->clock, NULL, __ATOMIC_RELEASE); /* it goes with its context */
}
