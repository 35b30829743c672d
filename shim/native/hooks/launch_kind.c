/* Tables of kinds of launches and of the functions that they launch.
 *
 * Both tables have a fixed size and are set-associative, with WAYS places in each set. In a full
 * set, a new entry takes the place of one that was not used since the last search for a place
 * there. A kind that lost its place is learned again when it recurs. Holders of the kind's address
 * see from `generation` that it was replaced.
 *
 * Finding a kind takes no lock. A writer makes the generation odd, changes the entry and makes the
 * generation even again. A reader that finds the same even generation before and after has read the
 * key of a single entry.
 *
 * If a function has many kinds, further kinds are distinguished only by size, to an eighth, so that
 * variable shapes share their learned costs. A new kind starts with an estimate from the costs and
 * sizes of the function's other launches. */
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "memory/objects.h"

#define WAYS GATE_KIND_WAYS
#define KIND_SETS (GATE_KINDS / WAYS)
#define FUNCTION_SETS (GATE_FUNCTIONS / WAYS)
#define EXACT_KINDS 32 /* kinds of a function; further kinds are size classes */
#define OF_A_CLASS \
  ((uint64_t)1 << 63) /* marks a size class in `block`, whose third number is at most 64 */
/* Usual number of threads that a device runs at once. A launch with fewer threads takes as long. */
#define FILLING_THREADS 131072
#define LONGEST_ESTIMATE_NS 20000000 /* unless the function's launches take longer */

static uint64_t get(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

static uint64_t kind_hash(const penstock_kind_key *key) {
  uint64_t hash = mix(0, (uint64_t)(uintptr_t)key->what);
  hash = mix(hash, key->grid ^ key->block << 40 ^ key->shape << 20);
  return mix(hash, key->shape + key->block);
}

static uint32_t tag_of(uint64_t hash) {
  return (uint32_t)(hash >> 32) | 1; /* never 0, because 0 marks a free place */
}

static bool has_key(const gate_kind *kind, const penstock_kind_key *key) {
  return __atomic_load_n(&kind->key.what, __ATOMIC_ACQUIRE) == key->what &&
         get(&kind->key.grid) == key->grid && get(&kind->key.block) == key->block &&
         get(&kind->key.shape) == key->shape;
}

static gate_kind *find(gate_state *state, const penstock_kind_key *key, uint32_t *generation) {
  uint64_t hash = kind_hash(key);
  unsigned first = hash % KIND_SETS * WAYS;
  for (unsigned i = first; i < first + WAYS; i++) {
    if (__atomic_load_n(&state->kind_tags[i], __ATOMIC_ACQUIRE) != tag_of(hash)) continue;
    gate_kind *kind = &state->kinds[i];
    *generation = __atomic_load_n(&kind->generation, __ATOMIC_ACQUIRE);
    if (*generation & 1 || !has_key(kind, key) || gate_kind_is_gone(kind, *generation)) continue;
    if (!__atomic_load_n(&kind->used, __ATOMIC_RELAXED)) {
      __atomic_store_n(&kind->used, true, __ATOMIC_RELAXED);
    }
    return kind;
  }
  return NULL;
}

/* ---- the functions below run under state->kinds_lock ---- */

static void set_key(gate_state *state, gate_kind *kind, const penstock_kind_key *key,
                    uint32_t tag) {
  __atomic_store_n(&kind->generation, kind->generation + 1, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->key.what, key->what, __ATOMIC_RELEASE);
  put(&kind->key.grid, key->grid);
  put(&kind->key.block, key->block);
  put(&kind->key.shape, key->shape);
  __atomic_store_n(&kind->unmeasured, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->changed, false, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->estimated, false, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->doubted, false, __ATOMIC_RELAXED);
  penstock_cost_clear(&kind->cost);
  __atomic_store_n(&kind->generation, kind->generation + 1, __ATOMIC_RELEASE);
  __atomic_store_n(&state->kind_tags[kind - state->kinds], tag, __ATOMIC_RELEASE);
}

static void forget(gate_state *state, gate_kind *kind) {
  gate_kind **link = kind->function ? &kind->function->kinds : NULL;
  while (link && *link && *link != kind) link = &(*link)->next;
  if (link && *link) *link = kind->next;
  kind->function = NULL;
  kind->next = NULL;
  set_key(state, kind, &(penstock_kind_key){0}, 0);
}

/* Returns a place in the key's set: a free one, or one that was not used recently. */
static gate_kind *place_for(gate_state *state, uint64_t hash) {
  unsigned first = hash % KIND_SETS * WAYS, way = state->next_way++ % WAYS;
  for (unsigned i = first; i < first + WAYS; i++) {
    if (!state->kind_tags[i]) return &state->kinds[i];
  }
  for (unsigned tries = 0; tries < WAYS; tries++, way++) {
    if (!__atomic_exchange_n(&state->kinds[first + way % WAYS].used, false, __ATOMIC_RELAXED))
      break;
  }
  gate_kind *kind = &state->kinds[first + way % WAYS];
  forget(state, kind);
  return kind;
}

/* Sets an estimate, which applies until the kind is measured. */
static void estimate(gate_kind *kind, uint64_t ns) {
  penstock_cost_forget(&kind->cost);
  __atomic_store_n(&kind->unmeasured, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->estimated, true, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->changed, true, __ATOMIC_RELAXED);
  __atomic_store_n(&kind->cost.mean_ns, ns, __ATOMIC_RELEASE);
}

/* Returns the number of threads, but no more than fill a device. */
static uint64_t product(uint64_t three) {
  return (three & UINT32_MAX) * (three >> 32 & 0xffff) * (three >> 48);
}
static uint64_t size_of(const penstock_kind_key *key) {
  uint64_t blocks = product(key->grid), each = product(key->block), threads;
  if (!each) each = 1; /* in the first launch API the block shape is the function's own state */
  if (__builtin_mul_overflow(blocks, each, &threads)) threads = UINT64_MAX;
  return threads > FILLING_THREADS ? threads : FILLING_THREADS;
}

static uint64_t estimate_ns(const gate_function *function, uint64_t size) {
  if (function->size <= 0) return 0;
  double ns = function->ns / function->size * (double)size;
  double most = (double)function->longest_ns;
  if (most < LONGEST_ESTIMATE_NS) most = LONGEST_ESTIMATE_NS;
  return ns < 1 ? 1 : ns > most ? (uint64_t)most : (uint64_t)ns;
}

/* Makes a kind. `function` is NULL for a graph, a memset or a copy. */
static gate_kind *kind_make(gate_state *state, gate_function *function,
                            const penstock_kind_key *key, uint64_t size) {
  uint64_t hash = kind_hash(key);
  gate_kind *kind = place_for(state, hash);
  __atomic_store_n(&kind->used, true, __ATOMIC_RELAXED);
  kind->size = size;
  set_key(state, kind, key, tag_of(hash));
  if (!function) return kind;
  kind->function = function;
  kind->next = function->kinds;
  function->kinds = kind;
  function->count++;
  uint64_t ns = estimate_ns(function, size);
  if (ns) estimate(kind, ns);
  return kind;
}

static unsigned function_set(const void *what) {
  return mix(0, (uint64_t)(uintptr_t)what) % FUNCTION_SETS * WAYS;
}

static gate_function *function_find(gate_state *state, const void *what) {
  unsigned first = function_set(what);
  for (unsigned i = first; i < first + WAYS; i++) {
    if (state->functions[i].what == what) return &state->functions[i];
  }
  return NULL;
}

/* Returns true if the function or one of its kinds was used since the last call. */
static bool was_used(gate_function *function) {
  bool used = function->used;
  function->used = false;
  for (gate_kind *kind = function->kinds; kind; kind = kind->next) {
    used |= __atomic_exchange_n(&kind->used, false, __ATOMIC_RELAXED);
  }
  return used;
}

static void function_forget(gate_state *state, gate_function *function) {
  while (function->kinds) forget(state, function->kinds);
  *function = (gate_function){0};
}

static gate_function *function_make(gate_state *state, const void *what) {
  unsigned first = function_set(what), way = state->next_way++ % WAYS;
  gate_function *function = NULL;
  for (unsigned i = first; i < first + WAYS && !function; i++) {
    if (!state->functions[i].what) function = &state->functions[i];
  }
  for (unsigned tries = 0; !function; tries++, way++) {
    gate_function *one = &state->functions[first + way % WAYS];
    if (!was_used(one) || tries == WAYS) function = one;
  }
  function_forget(state, function);
  function->what = what;
  return function;
}

/* ---- the functions below run without state->kinds_lock ---- */

typedef struct origin {
  const void *owner;
  bool sure;
} origin;

static bool came_with(penstock_kind kind, const void *what, origin *from) {
  penstock_object entry;
  if (!penstock_object_find(kind, (uint64_t)(uintptr_t)what, &entry)) return false;
  *from = (origin){(const void *)(uintptr_t)entry.detail, true};
  return true;
}

/* Finds the origin of a launched function that is not in the table. Queries the driver if
 * necessary, with no lock held. The driver is not queried about kernels, because that can load a
 * kernel into the context before it is charged. */
static origin first_sight(const void *what) {
  CUmodule module = NULL;
  origin from;
  if (came_with(PENSTOCK_KERNEL, what, &from) || came_with(PENSTOCK_FUNCTION, what, &from)) {
    return from;
  }
  if (REAL(cuFuncGetModule)(&module, (CUfunction)what) != CUDA_SUCCESS) module = NULL;
  /* The origin is not certain for a library's module, which is not unloaded itself, nor for a
   * module whose loading the shim did not see. */
  bool sure = module && penstock_object_find(PENSTOCK_MODULE, (uint64_t)(uintptr_t)module, NULL);
  return (origin){module, sure};
}

static void introduce(gate_state *state, const void *what, origin from) {
  penstock_lock_acquire(&state->kinds_lock);
  gate_function *function = function_find(state, what);
  if (!function) function = function_make(state, what);
  if (from.sure && function->sure && function->owner != from.owner) { /* the handle was reused */
    function_forget(state, function);
    function->what = what;
  }
  if (from.sure || !function->sure) {
    function->owner = from.owner;
    function->sure = from.sure;
  }
  penstock_lock_release(&state->kinds_lock);
}

static bool is_kernel(const penstock_kind_key *key) {
  return key->what > PENSTOCK_KIND_COPY && (key->grid || key->block || key->shape);
}

static penstock_kind_key class_of(const penstock_kind_key *key) {
  uint64_t blocks = product(key->grid);
  return (penstock_kind_key){key->what, penstock_size_class(blocks), key->block | OF_A_CLASS,
                             key->shape};
}

static gate_kind *make(gate_state *state, const penstock_kind_key *key,
                       const penstock_kind_key *class_key, uint32_t *generation) {
  gate_function *function = NULL;
  uint64_t size = class_key ? size_of(key) : 0;
  penstock_lock_acquire(&state->kinds_lock);
  if (class_key) {
    function = function_find(state, key->what);
    if (!function) function = function_make(state, key->what);
    function->used = true;
    if (function->count >= EXACT_KINDS) key = class_key;
  }
  gate_kind *kind = find(state, key, generation); /* another thread may have made the kind */
  if (!kind) {
    kind = kind_make(state, function, key, size);
    *generation = kind->generation;
  }
  penstock_lock_release(&state->kinds_lock);
  return kind;
}

static gate_kind *look_up(gate_state *state, const penstock_kind_key *key, uint32_t *generation) {
  gate_kind *kind = find(state, key, generation);
  if (kind) return kind;
  if (!is_kernel(key)) return make(state, key, NULL, generation);
  penstock_kind_key class_key = class_of(key);
  kind = find(state, &class_key, generation);
  if (kind) return kind;
  penstock_lock_acquire(&state->kinds_lock);
  bool known = function_find(state, key->what) != NULL;
  penstock_lock_release(&state->kinds_lock);
  if (!known) introduce(state, key->what, first_sight(key->what));
  return make(state, key, &class_key, generation);
}

/* Returns the places of a key in the thread's cache, which is two-way set-associative. The later
 * entry of a set comes first. */
static gate_recent_kind *recent_places(gate_thread *thread, const penstock_kind_key *key) {
  uint64_t hash = mix((uint64_t)(uintptr_t)key->what, key->grid + (key->block ^ key->shape << 7));
  return &thread->kinds[(hash >> 32) % (GATE_RECENT_KINDS / 2) * 2];
}

static bool is_current(const gate_recent_kind *recent, const penstock_kind_key *key) {
  return recent->kind && recent->key.what == key->what && recent->key.grid == key->grid &&
         recent->key.block == key->block && recent->key.shape == key->shape &&
         !gate_kind_is_gone(recent->kind, recent->generation);
}

gate_kind *gate_kind_get(gate_state *state, const penstock_kind_key *key, uint32_t *generation) {
  gate_thread *thread = gate_thread_get(state);
  if (__builtin_expect(!thread, 0)) return look_up(state, key, generation);
  gate_recent_kind *recent = recent_places(thread, key);
  for (unsigned i = 0; i < 2; i++) {
    if (!is_current(&recent[i], key)) continue;
    gate_kind *kind = recent[i].kind;
    if (!__atomic_load_n(&kind->used, __ATOMIC_RELAXED)) {
      __atomic_store_n(&kind->used, true, __ATOMIC_RELAXED);
    }
    *generation = recent[i].generation;
    return kind;
  }
  gate_kind *kind = look_up(state, key, generation);
  recent[1] = recent[0];
  recent[0] = (gate_recent_kind){*key, kind, *generation};
  return kind;
}

void gate_kind_learned(gate_kind *kind) {
  const double kept = 15.0 / 16.0;
  gate_function *function = kind->function;
  uint64_t mean_ns = penstock_cost_ns(&kind->cost, 0);
  __atomic_store_n(&kind->estimated, false, __ATOMIC_RELAXED);
  if (!function || !mean_ns) return;
  function->ns = function->ns * kept + (double)mean_ns;
  function->size = function->size * kept + (double)kind->size;
  uint64_t longest_ns = function->longest_ns - function->longest_ns / 64;
  function->longest_ns = mean_ns > longest_ns ? mean_ns : longest_ns;
}

/* Turns the costs of all the function's kinds into estimates. */
static void doubt(gate_function *function) {
  for (gate_kind *kind = function->kinds; kind; kind = kind->next) {
    uint64_t mean_ns = penstock_cost_ns(&kind->cost, 0);
    __atomic_fetch_add(&kind->version, 1, __ATOMIC_RELAXED);
    if (mean_ns) estimate(kind, mean_ns);
  }
}

void penstock_gate_forget_functions(const void *owner) {
  gate_state *state = gate_state_get();
  if (!state) return;
  penstock_lock_acquire(&state->kinds_lock);
  for (unsigned i = 0; i < GATE_FUNCTIONS; i++) {
    gate_function *function = &state->functions[i];
    if (!function->what) continue;
    if (function->owner == owner) {
      function_forget(state, function);
    } else if (!function->sure) {
      doubt(function);
    }
  }
  penstock_lock_release(&state->kinds_lock);
}

/* A function that was never launched takes no place, because programs list thousands of functions.
 * The function's origin is searched when the function is launched. */
void penstock_gate_function_of(const void *what, const void *owner) {
  gate_state *state = what ? gate_state_get() : NULL;
  if (!state) return;
  penstock_lock_acquire(&state->kinds_lock);
  bool known = function_find(state, what) != NULL;
  penstock_lock_release(&state->kinds_lock);
  if (known) introduce(state, what, (origin){owner, true});
}

void penstock_gate_forget_kind(const void *what) {
  gate_state *state = gate_state_get();
  penstock_kind_key key = {what, 0, 0, 0};
  uint32_t generation;
  if (!state) return;
  penstock_lock_acquire(&state->kinds_lock);
  gate_kind *kind = find(state, &key, &generation);
  if (kind) forget(state, kind);
  penstock_lock_release(&state->kinds_lock);
}

void penstock_gate_relearn_kind(const void *what) {
  gate_state *state = gate_state_get();
  penstock_kind_key key = {what, 0, 0, 0};
  uint32_t generation;
  if (!state) return;
  penstock_lock_acquire(&state->kinds_lock);
  gate_kind *kind = find(state, &key, &generation);
  if (kind) {
    bool known = penstock_cost_ns(&kind->cost, 0) != 0;
    penstock_cost_forget(&kind->cost);
    __atomic_fetch_add(&kind->version, 1,
                       __ATOMIC_RELAXED); /* launches that are still unfinished have the old cost */
    __atomic_store_n(&kind->changed, known, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->unmeasured, 0, __ATOMIC_RELAXED);
  }
  penstock_lock_release(&state->kinds_lock);
}
