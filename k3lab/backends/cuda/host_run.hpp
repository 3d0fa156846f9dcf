// Runs a translated kernel: all workgroups at once, each thread a fiber, the first that can go on next.

static const K3Launch* k3_launch_now;

static void k3_fiber() {
  K3Fiber* me = k3_self;
  k3_kernel(*k3_launch_now);
  for (K3Group* group : {me->warp, me->wave, me->group}) {
    --group->size;
    if (group->size && group->here == group->size) {  // the others wait for no one else now
      group->here = 0;
      for (K3Fiber* each : group->waiting) k3_ready.push_back(each);
      group->waiting.clear();
    }
  }
  _longjmp(k3_scheduler, 1);
}
__attribute__((noinline)) static void k3_resume(K3Fiber* fiber) {
  k3_self = fiber;
  if (_setjmp(k3_scheduler)) return;
  if (fiber->started) _longjmp(fiber->jump, 1);
  fiber->started = true;
  setcontext(&fiber->context);
}

// 0 when every thread has ended; 1 when none can go on, 2 when threads still run after `most` turns, 4 for a race.
extern "C" int k3_run(const K3Launch* launch, int blocks, int threads, u64 most, char* report, int room) {
  const size_t stack = K3_STACK;
  const int count = blocks * threads;
  k3_launch_now = launch;
#ifdef K3_RACES
  k3_races = 0;
#endif
  k3_ready.clear();
  k3_asleep.clear();
  k3_ticks = 0;
  std::vector<K3Fiber> fibers(count);
  std::vector<K3Group> groups(blocks), waves(count / 64), warps(count / 32);
  std::vector<std::vector<u8>> shared(blocks, std::vector<u8>(K3_SHARED + 16, 0xA5));
  u8* stacks = (u8*)mmap(0, stack * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == (u8*)-1) return 3;
  for (int i = 0; i < count; ++i) {
    K3Fiber& fiber = fibers[i];
    fiber.thread = i % threads;
    fiber.block = i / threads;
    fiber.group = &groups[fiber.block];
    fiber.wave = &waves[i / 64];
    fiber.warp = &warps[i / 32];
    fiber.shared = (u8*)(((u64)shared[fiber.block].data() + 15) & ~15ull);
    for (K3Group* group : {fiber.warp, fiber.wave, fiber.group}) ++group->size;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks + stack * i;
    fiber.context.uc_stack.ss_size = stack;
    fiber.context.uc_link = 0;
    makecontext(&fiber.context, k3_fiber, 0);
    k3_ready.push_back(&fiber);
  }
  u64 turns = 0;
  while (turns++ < most) {
    if (k3_ready.empty()) {
      k3_ready.swap(k3_asleep);
#ifdef K3_OTHERS
      usleep(50);  // what all threads wait for is another process's to put
#endif
    }
    if (k3_ready.empty()) break;
    K3Fiber* next = k3_ready.front();
    k3_ready.pop_front();
    k3_resume(next);
  }
  int left = 0;
  for (K3Group& group : groups) left += group.size;
  if (left) snprintf(report, room, "%d of %d threads have not ended", left, count);
  munmap(stacks, stack * count);
#ifdef K3_RACES
  decltype(k3_cells)().swap(k3_cells);  // hundreds of megabytes, which the loaded library would keep
  if (!left && k3_races) {
    snprintf(report, room, "%s", k3_race);
    return 4;
  }
#endif
  return !left ? 0 : k3_ready.empty() ? 1 : 2;
}
