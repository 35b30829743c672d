#include "slices/account.h"

#define FULL_PERMILLE 1000
/* A tenant that uses only part of its slices may get slices of up to this many times the full
 * length. */
#define LONGEST_SLICES 3

uint64_t penstock_account_slice_ns(uint32_t cores_permille) {
  uint64_t slice = (uint64_t)PENSTOCK_SLICE_ROUND_NS * cores_permille / FULL_PERMILLE;
  return slice > PENSTOCK_SLICE_SHORTEST_NS ? slice : PENSTOCK_SLICE_SHORTEST_NS;
}

static int64_t share_of(const penstock_account *account, uint64_t wall_ns) {
  return (int64_t)(wall_ns * account->cores_permille / FULL_PERMILLE);
}

static int64_t slice_of(const penstock_account *account) {
  return (int64_t)penstock_account_slice_ns(account->cores_permille);
}

void penstock_account_init(penstock_account *account, uint32_t cores_permille, uint32_t elastic) {
  uint32_t cores = cores_permille ? cores_permille : 1;
  *account = (penstock_account){
      .cores_permille = cores > FULL_PERMILLE ? FULL_PERMILLE : cores,
      .elastic = elastic != 0,
  };
}

static void keep_within(penstock_account *account, int64_t most) {
  if (account->credit_ns > most) account->credit_ns = most;
  if (account->held_ns > most) account->held_ns = most;
  int64_t least = -share_of(account, PENSTOCK_SLICE_LENT_NS) - slice_of(account);
  if (account->held_ns < least) account->held_ns = least;
  if (account->elastic && account->credit_ns < least) account->credit_ns = least;
}

void penstock_account_earn(penstock_account *account, uint64_t elapsed_ns, int at_work) {
  /* Longest time credited at once, for a machine that was asleep. */
  const uint64_t longest_ns = 1000000000;
  if (elapsed_ns > longest_ns) elapsed_ns = longest_ns;
  uint64_t grown = elapsed_ns * account->cores_permille + account->rest;
  account->rest = grown % FULL_PERMILLE;
  account->credit_ns += (int64_t)(grown / FULL_PERMILLE);
  account->held_ns += (int64_t)(grown / FULL_PERMILLE);
  int64_t saved = at_work ? share_of(account, PENSTOCK_SLICE_SAVED_NS) : 0;
  keep_within(account, slice_of(account) + saved);
}

void penstock_account_spend(penstock_account *account, uint64_t used_ns) {
  const uint64_t most_ns = 10000000000; /* a larger value is invalid */
  if (used_ns > most_ns) used_ns = most_ns;
  uint64_t paid = used_ns < account->prepaid_ns ? used_ns : account->prepaid_ns;
  account->prepaid_ns -= paid;
  account->credit_ns -= (int64_t)(used_ns - paid);
}

void penstock_account_finish(penstock_account *account, uint64_t length_ns, uint64_t overrun_ns,
                             uint64_t now_ns) {
  uint64_t least = (length_ns - overrun_ns) / PENSTOCK_SLICE_FLOOR + overrun_ns;
  if (overrun_ns > length_ns) least = length_ns;
  account->credit_ns -= (int64_t)least;
  account->held_ns -= (int64_t)length_ns;
  account->prepaid_ns = least;
  account->finished_ns = now_ns;
}

uint64_t penstock_account_ready_ns(const penstock_account *account) {
  int64_t lacking = slice_of(account) - account->credit_ns;
  if (account->elastic || lacking <= 0) return 0;
  return (uint64_t)lacking * FULL_PERMILLE / account->cores_permille + 1;
}

uint64_t penstock_account_length_ns(const penstock_account *account, uint32_t wanted_permille) {
  int64_t slice = slice_of(account), most = LONGEST_SLICES * slice;
  int64_t length = account->credit_ns;
  if (account->elastic) {
    uint32_t of =
        wanted_permille > account->cores_permille ? wanted_permille : account->cores_permille;
    return penstock_account_slice_ns(account->cores_permille * FULL_PERMILLE / of);
  }
  if (length < slice) length = slice;
  return (uint64_t)(length < most ? length : most);
}

/* Returns what the tenant is owed, as wall time at its share. */
static int64_t owed_ns(const penstock_account *account) {
  return account->credit_ns * FULL_PERMILLE / (int64_t)account->cores_permille;
}

static void forgive(penstock_account *const *accounts, const uint8_t *wants, int count) {
  int64_t most = INT64_MIN;
  for (int i = 0; i < count; i++) {
    if (!accounts[i]->elastic || !wants[i]) continue;
    int64_t owed = owed_ns(accounts[i]);
    if (owed > most) most = owed;
  }
  if (most >= 0 || most == INT64_MIN) return;
  for (int i = 0; i < count; i++) {
    if (accounts[i]->elastic) accounts[i]->credit_ns += share_of(accounts[i], (uint64_t)-most);
  }
}

/* Returns true if `one` gets a slice before `other`. */
static int is_before(const penstock_account *one, const penstock_account *other) {
  int within = one->held_ns >= 0, other_within = other->held_ns >= 0;
  if (within != other_within) return within;
  int64_t owed = owed_ns(one), other_owed = owed_ns(other);
  if (owed != other_owed) return owed > other_owed;
  return one->finished_ns < other->finished_ns;
}

int penstock_account_choose(penstock_account *const *accounts, const uint8_t *wants, int count) {
  int best = -1;
  forgive(accounts, wants, count);
  for (int i = 0; i < count; i++) {
    if (!wants[i] || penstock_account_ready_ns(accounts[i])) continue;
    if (best < 0 || is_before(accounts[i], accounts[best])) best = i;
  }
  return best;
}
