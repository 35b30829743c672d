/* Conversion of device times to the host's clock.
 *
 * A *base* event is recorded on a stream of the shim's own, which is always idle, so the device
 * passes the event within microseconds of the call, unless another process has the device. The base
 * is renewed every second, because the driver returns times between events as floats. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

#define RENEW_NS 1000000000
#define RIPE_NS 1000000 /* age at which a renewal is evaluated */
/* Age at which a base is too inaccurate, because floats are too coarse and the clocks have drifted
 * apart. */
#define FAR_NS 10000000000
/* Limits of the drift between the clocks. The drift is known to an accuracy of PROMPT_NS over the
 * time for which the clocks were compared. Until that time is long enough, bases are renewed more
 * often. */
#define MOST_PPM 50
#define LEAST_PPM 2
#define COMPARED_NS 1000000000
#define SOON_NS (RENEW_NS / 8)
/* Time after which the comparison starts again, because clock rates change with the temperature. */
#define ANEW_NS 60000000000
#define PROMPT_NS 20000 /* a prompt renewal is passed no later than this after its call */

void gate_clock_prepare(gate_context *context) {
  CUstream clock = NULL;
  CUstreamCaptureMode mode = gate_relax();
  if (REAL(cuStreamCreate)(&clock, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    __atomic_store_n(&context->clock, clock,
                     __ATOMIC_RELEASE); /* other threads may already read the clock */
  }
  gate_restore(mode);
}

/* Converts device time since a base to host time according to the drift of the clocks. */
static int64_t host_time_ns(const gate_base *base, int64_t device_ns) {
  return device_ns + (int64_t)((double)device_ns * base->drift);
}

/* Returns the possible error of times from a base of this age. */
static uint64_t error_ns(const gate_base *base, uint64_t age_ns) {
  uint64_t ppm = MOST_PPM;
  if (base->compared_ns) ppm = LEAST_PPM + PROMPT_NS * UINT64_C(1000000) / base->compared_ns;
  return age_ns / 1000000 * (ppm < MOST_PPM ? ppm : MOST_PPM);
}

/* Continues the comparison of the clocks with a renewal, which the device passed `between` of
 * device time after the base and received at `told_ns` on the host's clock. A late renewal says
 * nothing about the rate, but its device time counts. `anew` is true if the base was late, so that
 * the comparison starts again. The caller holds the context's lock. */
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

/* Makes the ripe renewal the base. If the renewal was passed late, or its call was held up, its
 * host time is computed from the old base, unless that is less exact. Its host time is never
 * earlier than its call. */
static void adopt(gate_context *context, const gate_base *base, gate_marker *renewal) {
  int64_t between = 0;
  uint64_t at = renewal->recorded_ns, told = gate_marker_told_ns(renewal), host_ns = told;
  uint64_t late_ns = told - at;
  bool elsewhere = base->marker && !gate_are_comparable(base->marker, renewal);
  bool old = !base->marker || elsewhere || at >= base->marker->recorded_ns + FAR_NS;
  bool prompt = false, anew = old;
  if (!old) {
    /* The device has not passed the renewal yet. */
    if (!gate_elapsed_ns(base->marker, renewal, &between)) return;
    uint64_t by_base = base->ns + (uint64_t)host_time_ns(base, between);
    uint64_t apart = by_base > told ? by_base - told : told - by_base;
    anew = by_base + PROMPT_NS < at; /* the base was passed late */
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
    if (elsewhere) { /* perhaps the clock of another device */
      context->base.drift = 0;
      context->base.compared_ns = 0;
    }
    context->base.marker = renewal; /* the base takes over the renewal's reference */
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

/* Copies the base and, if `renewal` is not NULL, the renewal, which is NULL if there is none. The
 * caller then holds a reference to each marker. */
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
  /* The device's clock is some parts in a million faster or slower than the host's. */
  bool near = base.marker && marker->recorded_ns < base.marker->recorded_ns + FAR_NS;
  bool known = near && gate_elapsed_ns(base.marker, marker, &since);
  if (known) {
    uint64_t now_ns = gate_now_ns();
    *ns = base.ns + (uint64_t)host_time_ns(&base, since);
    if (*ns > now_ns) *ns = now_ns; /* the device has already passed the marker */
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
  /* The clock is destroyed with its context. */
  __atomic_store_n(&context->clock, NULL, __ATOMIC_RELEASE);
}
