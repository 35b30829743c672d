/* Releases of the tenant's device memory, and what they mean for measured time.
 *
 * While a tenant is suspended, the driver can move its device memory to the host and back, perhaps
 * to another device (ADR 53). All work ended before the release, so a window that was opened before
 * it ended by then, however late its events are read or a wait returns. Events from before and
 * after it may have the times of different clocks. A launch whose call the driver held during the
 * release runs after it. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "process/release.h"

uint64_t gate_release_after(uint64_t since_ns) {
  const penstock_process *process = penstock_process_get();
  uint64_t ns = process ? penstock_released_after(process, since_ns) : 0;
  /* a time that lies ahead is of an earlier boot of the machine */
  return __builtin_expect(ns != 0, 0) && ns <= gate_now_ns() ? ns : 0;
}

/* Returns true if the device got the marker before the release, certainly or possibly. */
static bool may_be_before(const gate_marker *marker, uint64_t released_ns) {
  return marker->recorded_ns < released_ns;
}

static bool may_be_after(const gate_marker *marker, uint64_t released_ns) {
  return marker->recorded_ns + marker->took_ns >= released_ns;
}

bool gate_are_comparable(const gate_marker *a, const gate_marker *b) {
  uint64_t first = a->recorded_ns < b->recorded_ns ? a->recorded_ns : b->recorded_ns;
  uint64_t released = gate_release_after(first);
  if (!released) return true;
  return !(may_be_before(a, released) && may_be_after(b, released)) &&
         !(may_be_before(b, released) && may_be_after(a, released));
}

void gate_release_held(const penstock_pass *pass) {
  gate_stream *stream = pass->stream;
  if (!gate_stream_claim(stream)) return;
  gate_marker *start = NULL, *end = NULL;
  penstock_lock_acquire(&stream->lock);
  gate_window *open = stream->open;
  if (open && open->number == pass->place) {
    start = open->start;
    end = open->end;
    open->start = open->end = NULL;
    open->sample = open->rolling = open->watched = false;
    open->ended = 0;
    open->held_ns = open->counted_ns = 0;
    open->opened_ns = gate_now_ns() - GATE_START_NS;
  }
  penstock_lock_release(&stream->lock);
  gate_marker_put(stream->context, start);
  gate_marker_put(stream->context, end);
  gate_stream_release(stream);
}
