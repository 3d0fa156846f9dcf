// The primitives of runtime.cuh on a CPU: a fiber a thread, so that a translation can be checked without a GPU.
// One fiber runs at a time, until it meets others or sleeps; memory is plain memory.
#include <setjmp.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#define K3_DEV static inline
#define K3_SLOW static
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct K3Fiber;
struct K3Group {  // threads that meet: a warp, a wave or a workgroup
  int size = 0, here = 0;
  std::vector<K3Fiber*> waiting;
  u64 values[64];  // of a warp, what its threads exchange, in two turns
  int turn = 0;
};
struct K3Fiber {
  ucontext_t context;  // where it starts; from then on it goes on at `jump`, which costs no system call
  jmp_buf jump;
  bool started = false;
  u32 meetings[3] = {};  // how often its warp, its wave and its workgroup have met
  int thread, block;
  K3Group *warp, *wave, *group;
  u8* shared;
};

static K3Fiber* k3_self;
static jmp_buf k3_scheduler;
static std::deque<K3Fiber*> k3_ready, k3_asleep;
static u64 k3_ticks;

__attribute__((noinline)) static void k3_away() {
  if (!_setjmp(k3_self->jump)) _longjmp(k3_scheduler, 1);
}
static inline void k3_meet(K3Group* group) {
  if (++group->here == group->size) {
    group->here = 0;
    for (K3Fiber* each : group->waiting) k3_ready.push_back(each);
    group->waiting.clear();
    return;
  }
  group->waiting.push_back(k3_self);
  k3_away();
}
static inline int k3_raw_thread() { return k3_self->thread; }
static inline int k3_raw_block() { return k3_self->block; }
static inline u8* k3_shared() { return k3_self->shared; }
static inline void k3_wave_sync() { ++k3_self->meetings[1]; k3_meet(k3_self->wave); }
static inline bool k3_wave_any(bool mine) {
  K3Group* wave = k3_self->wave;
  ++k3_self->meetings[1];
  int turn = wave->turn;  // the same in all threads: it changes when the last one comes
  wave->values[turn] = (wave->here ? wave->values[turn] : 0) | mine;
  if (wave->here == wave->size - 1) wave->turn ^= 1;
  k3_meet(wave);
  return wave->values[turn];
}
static inline void k3_block_sync() { ++k3_self->meetings[2]; k3_meet(k3_self->group); }
static inline void k3_sleep() { k3_asleep.push_back(k3_self); k3_away(); }  // until no other can go on
#ifdef K3_OTHERS  // microseconds: time passes for other processes too
static inline u64 k3_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}
#else
static inline u64 k3_now() { return ++k3_ticks; }
#endif
static inline void k3_fence_block() {}
static inline void k3_fence_device() {}
static inline void k3_fence_system() {}

template <class T> static inline T k3_shfl(T x, int from) {
  K3Group* warp = k3_self->warp;
  ++k3_self->meetings[0];
  int turn = warp->turn;  // the same in all threads: it changes when the last one comes
  memcpy(&warp->values[32 * turn + (k3_self->thread & 31)], &x, sizeof(T));
  if (warp->here == warp->size - 1) warp->turn ^= 1;
  k3_meet(warp);
  memcpy(&x, &warp->values[32 * turn + from], sizeof(T));
  return x;
}
static inline u32 k3_warp_ballot(bool condition) {
  u32 all = 0;
  K3Group* warp = k3_self->warp;
  ++k3_self->meetings[0];
  int turn = warp->turn;
  warp->values[32 * turn + (k3_self->thread & 31)] = condition;
  if (warp->here == warp->size - 1) warp->turn ^= 1;
  k3_meet(warp);
  for (int i = 0; i < 32; ++i) all |= (u32)(warp->values[32 * turn + i] & 1) << i;
  return all;
}


#ifdef K3_FAST
static inline float k3_approx_exp2(float x) { return exp2f(x); }
static inline float k3_approx_rsq(float x) { return 1.0f / sqrtf(x); }
static inline float k3_approx_quotient(float a, float b) { return a / b; }
static inline u32 k3_bytes(u32 low, u32 high, u32 which) {
  u64 all = (u64)high << 32 | low;
  u32 picked = 0;
  for (int i = 0; i < 4; ++i) picked |= (u32)(all >> 8 * (which >> 4 * i & 7) & 0xFF) << 8 * i;
  return picked;
}
static inline float k3_half_value(u32 word, int half) {
  u32 bits = half ? word & 0xFFFF0000u : word << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline unsigned short k3_narrow_bf16(float x) {
  u32 w;
  memcpy(&w, &x, 4);
  return x != x ? 0x7FFF : (unsigned short)((w + 0x7FFFu + (w >> 16 & 1u)) >> 16);
}
static inline u32 k3_narrow_bf16(float low, float high) { return k3_narrow_bf16(low) | (u32)k3_narrow_bf16(high) << 16; }
static inline u32 k3_scaled(u32 pair, u32 scale) {  // a power of two: the product is exact, or nearly 0
  return k3_narrow_bf16(k3_half_value(pair, 0) * k3_half_value(scale, 0), k3_half_value(pair, 1) * k3_half_value(scale, 1));
}
static inline u32 k3_plus(u32 pair, u32 other) {  // a sum in fp32 is exact where it matters: 256 and less, beside 8 bits
  return k3_narrow_bf16(k3_half_value(pair, 0) + k3_half_value(other, 0), k3_half_value(pair, 1) + k3_half_value(other, 1));
}
static inline u32 k3_lesser(u32 pair, u32 other) {
  u32 low = pair & 0xFFFF, high = pair >> 16, low_other = other & 0xFFFF, high_other = other >> 16;
  return (low < low_other ? low : low_other) | (high < high_other ? high : high_other) << 16;
}
static inline u32 k3_e4m3_bits(float x) {
  if (x != x) return 0x7F;
  float a = fabsf(x);
  if (a > 448.0f) a = 448.0f;
  int exponent = a < 0x1p-6f ? -6 : ilogbf(a);
  float steps = rintf(ldexpf(a, 3 - exponent));  // of an eighth of the power of two
  u32 code = exponent == -6 && steps < 8.0f ? (u32)steps : (u32)(exponent + 7) * 8 + (u32)steps - 8;
  return code | (std::signbit(x) ? 0x80 : 0);
}
static inline u32 k3_narrow_e4m3(float low, float high) { return k3_e4m3_bits(low) | k3_e4m3_bits(high) << 8; }

// A tensor core's instruction, each sum taken in double and rounded once: what each thread has goes to all of its warp.
static inline void k3_tensor_core(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  const u32 mine[6] = {a0, a1, a2, a3, b0, b1};
  u32 all[6][32];
  for (int i = 0; i < 6; ++i) {
    K3Group* warp = k3_self->warp;
    int turn = warp->turn;
    k3_shfl(mine[i], 0);
    for (int t = 0; t < 32; ++t) memcpy(&all[i][t], &warp->values[32 * turn + t], 4);
  }
  int t = k3_self->thread & 31, g = t >> 2, q = t & 3;
  for (int i = 0; i < 4; ++i) {
    int up = i >> 1, column = 2 * q + (i & 1);
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      int from = k >> 1 & 3, far = k >> 3;
      double a = k3_half_value(all[up + 2 * far][4 * g + from], k & 1);
        sum += a * k3_half_value(all[4 + far][4 * column + from], k & 1);
    }
    c[i] = (float)sum;
  }
}
#endif
static inline u8* k3_place(int policy, u64 address) { return policy == 64 ? k3_self->shared + address : (u8*)address; }
static void k3_touch(u64 address, int bytes, bool store);
template <int POLICY, int BYTES> static inline void k3_ld(u64 address, u8* to) {
#ifdef K3_RACES
  if (POLICY == 64) k3_touch(address, BYTES, false);
#endif
  memcpy(to, k3_place(POLICY, address), BYTES);
}
template <int POLICY, int BYTES> static inline void k3_st(u64 address, const u8* from) {
#ifdef K3_RACES
  if (POLICY == 64) k3_touch(address, BYTES, true);
#endif
  memcpy(k3_place(POLICY, address), from, BYTES);
}
template <int OP, class T, class Combine> static inline T k3_atomic_with(u8* place, T value, Combine combine) {
  T old, made;
  memcpy(&old, place, sizeof(T));
  made = combine(old, value);
  memcpy(place, &made, sizeof(T));
  return old;
}
#define K3_ATOMIC(NAME, EXPRESSION)                                                     \
  template <int POLICY, class T> static inline T NAME(u64 address, T value) {           \
    return k3_atomic_with<0>(k3_place(POLICY, address), value, [](T a, T b) -> T { return EXPRESSION; }); \
  }
K3_ATOMIC(k3_atomic_xchg, b)
K3_ATOMIC(k3_atomic_add, (T)((u64)a + (u64)b))
K3_ATOMIC(k3_atomic_and, a & b)
K3_ATOMIC(k3_atomic_or, a | b)
K3_ATOMIC(k3_atomic_xor, a ^ b)
K3_ATOMIC(k3_atomic_max, a > b ? a : b)
K3_ATOMIC(k3_atomic_min, a < b ? a : b)
