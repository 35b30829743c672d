/* The body of every gated hook. */
#pragma once

#include "hooks/launch.h"

#define PENSTOCK_GATED(stream_, per_thread_, overlapping_, key_, call_)                 \
  do {                                                                                  \
    penstock_pass pass_;                                                                \
    pass_.overlapping = (overlapping_);                                                 \
    CUresult refused_ = penstock_gate_enter(&pass_, (stream_), (per_thread_), &(key_)); \
    if (__builtin_expect(refused_ != CUDA_SUCCESS, 0)) return refused_;                 \
    return penstock_gate_leave(&pass_, (call_));                                        \
  } while (0)
