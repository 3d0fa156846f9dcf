// Looks for accesses to LDS that nothing orders: two threads touch the same bytes, one of them stores, and neither a
// workgroup, a wave nor a warp that both are of has met in between. Whatever the fibers' order, it finds the same.

struct K3Seen { int thread = -1; u32 warp = 0, wave = 0, group = 0; };  // and how often each had met by then
struct K3Cell { K3Seen stored, loaded[K3_THREADS / 32]; };  // two bytes; of each warp its last load

static std::vector<std::vector<K3Cell>> k3_cells;  // of every workgroup
static u64 k3_races;
static char k3_race[160];

static bool k3_ordered(const K3Seen& seen) {
  const K3Fiber& me = *k3_self;
  if (seen.thread < 0 || seen.thread == me.thread || me.meetings[2] > seen.group) return true;
  if (seen.thread >> 6 != me.thread >> 6) return false;
  return me.meetings[1] > seen.wave || (seen.thread >> 5 == me.thread >> 5 && me.meetings[0] > seen.warp);
}
static void k3_check(const K3Seen& seen, u64 byte, const char* what) {
  if (k3_ordered(seen)) return;
  if (!k3_races++)
    snprintf(k3_race, sizeof(k3_race), "LDS byte %llu of workgroup %d: a %s by threads %d and %d that nothing orders",
             byte, k3_self->block, what, seen.thread, k3_self->thread);
}
static void k3_touch(u64 address, int bytes, bool store) {
  if (k3_cells.size() <= (size_t)k3_self->block) k3_cells.resize(k3_self->block + 1);
  std::vector<K3Cell>& cells = k3_cells[k3_self->block];
  if (cells.empty()) cells.resize(K3_SHARED / 2 + 1);
  const K3Seen now = {k3_self->thread, k3_self->meetings[0], k3_self->meetings[1], k3_self->meetings[2]};
  for (u64 byte = address; byte < address + bytes; byte += 2) {
    K3Cell& cell = cells[byte / 2];
    k3_check(cell.stored, byte, store ? "store and a store" : "store and a load");
    if (!store) {
      cell.loaded[k3_self->thread >> 5] = now;
      continue;
    }
    for (K3Seen& seen : cell.loaded) {
      k3_check(seen, byte, "load and a store");
      seen.thread = -1;
    }
    cell.stored = now;
  }
}
