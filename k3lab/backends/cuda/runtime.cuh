// What translated kernels are written in: types, arithmetic to the bit, memory, and operations across a wave.
//
// A wave of 64 lanes is two warps. Warp h of the pair, thread 4 g + q, is lane 16 q + 8 h + g: lanes that differ by 16
// or 32 are in one warp, lanes that differ by 8 in both. The file that includes this one gives the primitives:
//   k3_raw_thread, k3_raw_block, k3_wave_sync, k3_wave_any, k3_block_sync, k3_shfl, k3_warp_ballot, k3_shared, k3_sleep, k3_now,
//   k3_fence_block, k3_fence_device, k3_fence_system, k3_ld, k3_st, k3_atomic.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

template <class T, int N> struct K3Vec { T v[N]; };
template <class A, class B> struct K3Two { A a; B b; };
struct K3Buffer { u64 base; u32 records; };
struct K3Launch {
  u32 blocks;
  u64 args[K3_ARGS];
#ifdef K3_PLACES
  u16 places[K3_PLACES];  // by the device's number of a workgroup, the number it takes on
#endif
};

template <class T> struct K3Unsigned;
template <> struct K3Unsigned<signed char> { typedef u8 type; };
template <> struct K3Unsigned<short> { typedef u16 type; };
template <> struct K3Unsigned<int> { typedef u32 type; };
template <> struct K3Unsigned<i64> { typedef u64 type; };

template <class To, class From> K3_DEV To k3_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

K3_DEV float k3_f32(u32 bits) { return k3_cast<float>(bits); }
K3_DEV float k3_bf16_value(u16 bits) { return k3_f32((u32)bits << 16); }
K3_DEV double k3_f64(u64 bits) { return k3_cast<double>(bits); }

#ifdef K3_PLACES
K3_DEV int k3_number(const K3Launch& launch) { return launch.places[k3_raw_block()]; }
#else
K3_DEV int k3_number(const K3Launch& launch) { return k3_raw_block(); }
#endif

// ---- who a thread is ------------------------------------------------------------------------------------------------

K3_DEV int k3_lane() {
  int t = k3_raw_thread();
  return (t & 3) << 4 | (t >> 5 & 1) << 3 | (t >> 2 & 7);
}
K3_DEV int k3_wave() { return k3_raw_thread() >> 6; }
K3_DEV int k3_thread() { return k3_wave() << 6 | k3_lane(); }
K3_DEV int k3_thread_low() { return k3_thread() & ~8; }
K3_DEV int k3_thread_high() { return k3_thread() | 8; }
K3_DEV int k3_thread_of(int lane) { return (lane & 7) << 2 | lane >> 4; }  // within the lane's warp

// ---- integers -------------------------------------------------------------------------------------------------------

template <class T> K3_DEV T k3_add(T a, T b) { typedef typename K3Unsigned<T>::type U; return (T)((U)a + (U)b); }
template <class T> K3_DEV T k3_sub(T a, T b) { typedef typename K3Unsigned<T>::type U; return (T)((U)a - (U)b); }
template <class T> K3_DEV T k3_mul(T a, T b) { return (T)((u64)a * (u64)b); }
template <class T> K3_DEV T k3_sdiv(T a, T b) { return b == 0 ? 0 : b == -1 ? k3_sub<T>(0, a) : (T)(a / b); }
template <class T> K3_DEV T k3_srem(T a, T b) { return b == 0 || b == -1 ? 0 : (T)(a % b); }
template <class T> K3_DEV T k3_udiv(T a, T b) {
  typedef typename K3Unsigned<T>::type U;
  return b == 0 ? 0 : (T)((U)a / (U)b);
}
template <class T> K3_DEV T k3_urem(T a, T b) {
  typedef typename K3Unsigned<T>::type U;
  return b == 0 ? 0 : (T)((U)a % (U)b);
}
template <class T> K3_DEV T k3_shl(T a, T b) {
  typedef typename K3Unsigned<T>::type U;
  return (T)((U)a << (b & (T)(8 * sizeof(T) - 1)));
}
template <class T> K3_DEV T k3_ashr(T a, T b) { return (T)(a >> (b & (T)(8 * sizeof(T) - 1))); }
template <class T> K3_DEV T k3_lshr(T a, T b) {
  typedef typename K3Unsigned<T>::type U;
  return (T)((U)a >> (b & (T)(8 * sizeof(T) - 1)));
}
template <class T> K3_DEV T k3_least(T a, T b) { return a < b ? a : b; }
template <class T> K3_DEV T k3_most(T a, T b) { return a > b ? a : b; }
template <class T> K3_DEV bool k3_below(T a, T b) {
  typedef typename K3Unsigned<T>::type U;
  return (U)a < (U)b;
}
template <class To, class From> K3_DEV To k3_zext(From a) {
  typedef typename K3Unsigned<From>::type U;
  return (To)(U)a;
}

// ---- floats ---------------------------------------------------------------------------------------------------------

K3_DEV float k3_maximum(float a, float b) {  // keeps a NaN; -0 is below +0
  if (a == b) return k3_f32(k3_cast<u32>(a) & k3_cast<u32>(b));
  return a > b ? a : a < b ? b : a + b;
}
K3_DEV float k3_minimum(float a, float b) {
  if (a == b) return k3_f32(k3_cast<u32>(a) | k3_cast<u32>(b));
  return a < b ? a : a > b ? b : a + b;
}
#ifdef K3_FAST
K3_DEV u16 k3_to_bf16(float x) { return k3_narrow_bf16(x); }
template <int N> K3_DEV K3Vec<u16, N> k3_to_bf16(K3Vec<float, N> x) {
  K3Vec<u16, N> y;
  for (int i = 0; i + 1 < N; i += 2) {
    u32 both = k3_narrow_bf16(x.v[i], x.v[i + 1]);
    y.v[i] = (u16)both;
    y.v[i + 1] = (u16)(both >> 16);
  }
  if (N % 2) y.v[N - 1] = k3_narrow_bf16(x.v[N - 1]);
  return y;
}
#else
K3_DEV u16 k3_to_bf16(float x) {
  u32 w = k3_cast<u32>(x);
  if (x != x) return (u16)((w >> 16 & 0x8000u) | 0x7FC0u);
  return (u16)((w + 0x7FFFu + (w >> 16 & 1u)) >> 16);
}
template <int N> K3_DEV K3Vec<u16, N> k3_to_bf16(K3Vec<float, N> x) {
  K3Vec<u16, N> y;
  for (int i = 0; i < N; ++i) y.v[i] = k3_to_bf16(x.v[i]);
  return y;
}
#endif
template <int N> K3_DEV K3Vec<float, N> k3_bf16_value(K3Vec<u16, N> x) {
  K3Vec<float, N> y;
  for (int i = 0; i < N; ++i) y.v[i] = k3_bf16_value(x.v[i]);
  return y;
}

// e4m3 as the hardware gives it: nearest even, NaN above 464 (the tie at 464 itself goes down to 448).
K3_DEV u32 k3_to_e4m3(float x) {
  u32 w = k3_cast<u32>(x), sign = w >> 24 & 0x80u, a = w & 0x7FFFFFFFu;
  if (a > 0x43E80000u) return sign | 0x7Fu;
  if (a >= 0x3C800000u) return sign | (((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3));
  return sign | (u32)rintf(k3_f32(a) * 512.0f);  // subnormals are multiples of 2^-9
}
// E2M1: nearest, ties to the even code, saturating; NaN is +0.
K3_DEV u32 k3_to_e2m1(float x) {
  if (x != x) return 0;
  float a = fabsf(x);
  u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return code | (k3_cast<u32>(x) >> 28 & 8u);
}
K3_DEV float k3_e2m1_value(u32 code) {
  u32 m = code & 7u;
  float a = m < 2 ? 0.5f * m : k3_f32((126u + (m >> 1)) << 23 | (m & 1u) << 22);
  return code & 8u ? -a : a;
}
K3_DEV float k3_e8m0_value(u32 code) {
  return code == 255 ? k3_f32(0x7FC00000u) : code == 0 ? k3_f32(0x00400000u) : k3_f32(code << 23);
}
#ifdef K3_FAST
K3_DEV u32 k3_two_e4m3(float a, float b) {  // the instruction saturates instead
  u32 both = k3_narrow_e4m3(a, b);
  return both | (fabsf(a) <= 464.0f ? 0 : 0x7Fu) | (fabsf(b) <= 464.0f ? 0 : 0x7F00u);
}
// Of two bf16 at once: adding 64, 128 or 256 rounds one to halves, to ones or to twos, each right from 0, 2 or 4 on; the
// least code of the three is the value's, for the others round to finer steps than its own.
K3_DEV u32 k3_two_e2m1(K3Vec<u16, 2> pair, float scale) {
  u32 inverse = k3_cast<u32>(k3_e8m0_value((254u - (k3_cast<u32>(scale) >> 23)) & 0xFFu)) >> 16;  // a power of two
  u32 x = k3_scaled(k3_cast<u32>(pair), inverse * 0x10001u), a = x & 0x7FFF7FFFu, nan = (a + 0x007F007Fu) >> 15 & 0x10001u;
  u32 halves = k3_plus(a, 0x42804280u) - 0x42804280u, ones = k3_plus(a, 0x43004300u) - 0x42FE42FEu;
  u32 twos = k3_plus(a, 0x43804380u) - 0x437C437Cu;
  u32 codes = k3_lesser(k3_lesser(halves, ones), k3_lesser(twos, 0x00070007u));
  codes = (codes & ~(nan * 7u)) | (nan * 8u ^ 0x00080008u) & x >> 12;
  return (codes & 15u) | (codes >> 12 & 0xF0u);
}
#else
K3_DEV u32 k3_two_e4m3(float a, float b) { return k3_to_e4m3(a) | k3_to_e4m3(b) << 8; }
K3_DEV u32 k3_two_e2m1(K3Vec<u16, 2> pair, float scale) {
  float by = k3_e8m0_value(k3_cast<u32>(scale) >> 23 & 0xFFu);
  return k3_to_e2m1(k3_bf16_value(pair.v[0]) / by) | k3_to_e2m1(k3_bf16_value(pair.v[1]) / by) << 4;
}
#endif
K3_DEV int k3_pack_e4m3(float a, float b, int old, bool high) {
  u32 both = k3_two_e4m3(a, b);
  return high ? (int)(((u32)old & 0xFFFFu) | both << 16) : (int)(((u32)old & 0xFFFF0000u) | both);
}
K3_DEV int k3_pack_e2m1(int old, K3Vec<u16, 2> pair, float scale, int place) {
  return (int)(((u32)old & ~(0xFFu << 8 * place)) | k3_two_e2m1(pair, scale) << 8 * place);
}

// ---- across a wave --------------------------------------------------------------------------------------------------
//
// Each wave has memory of its own behind the workgroup's LDS: a row to exchange values through, and a row for every
// value that lanes read where not all lanes of the wave are.

template <class T> K3_DEV T* k3_row() { return (T*)(k3_shared() + K3_LDS + k3_wave() * K3_WAVE_BYTES); }
K3_DEV int* k3_slot(int slot) { return (int*)(k3_shared() + K3_LDS + k3_wave() * K3_WAVE_BYTES + K3_ROW + 256 * slot); }

#ifdef K3_FAST
// A row has two sides, and exchanges take turns: whoever writes one again has met the others since they read it, in
// the exchange between. `side` counts along; the wave's threads agree on it, as they make all exchanges together.
#define K3_SIDE , u32& side
#define K3_SIDE_ONLY u32& side
#define K3_ON_SIDE , side
template <class T> K3_DEV T* k3_next(u32& side) {
  side ^= K3_ROW / 2;
  return (T*)((u8*)k3_row<T>() + side);
}
K3_DEV int k3_seat(int lane) { return (lane & 8) << 2 | k3_thread_of(lane & 63 & ~8); }
template <class T> K3_DEV T k3_from(T x, int lane, u32& side) {
  T* row = k3_next<T>(side);
  row[k3_raw_thread() & 63] = x;
  k3_wave_sync();
  return row[k3_seat(lane)];
}
#else
#define K3_SIDE
#define K3_SIDE_ONLY
#define K3_ON_SIDE
template <class T> K3_DEV T k3_from(T x, int lane) {
  T* row = k3_row<T>();
  k3_wave_sync();
  row[k3_lane()] = x;
  k3_wave_sync();
  return row[lane & 63];
}
#endif
K3_DEV void k3_publish(int slot, int x) {
  k3_wave_sync();
  k3_slot(slot)[k3_lane()] = x;
  k3_wave_sync();
}
K3_DEV int k3_published(int slot, int lane) { return ((volatile int*)k3_slot(slot))[lane & 63]; }

template <int N> K3_DEV K3Two<int, int> k3_swap(int a, int b) {  // N = 16 or 32: the partner is in this warp
  bool odd = (k3_lane() & N) != 0;
  int other = k3_shfl(odd ? a : b, (k3_raw_thread() & 31) ^ (N >> 4));
  return odd ? K3Two<int, int>{other, b} : K3Two<int, int>{a, other};
}
template <int N> K3_DEV K3Two<int, int> k3_swap_same(int a) {
  int other = k3_shfl(a, (k3_raw_thread() & 31) ^ (N >> 4));
  return k3_lane() & N ? K3Two<int, int>{other, a} : K3Two<int, int>{a, other};
}
template <int ORDER, class T> K3_DEV T k3_quad(T x) {  // quad_perm
  int lane = k3_lane();
  return k3_shfl(x, k3_thread_of((lane & ~3) | (ORDER >> 2 * (lane & 3) & 3)));
}
template <int N, class T> K3_DEV T k3_turn(T x K3_SIDE) {  // row_ror
  int lane = k3_lane();
  return k3_from(x, (lane & 48) | ((lane - N) & 15) K3_ON_SIDE);
}
template <class T> K3_DEV T k3_turn_half(T x) {  // row_ror by 4 of what repeats after 8 lanes: lane xor 4
  return k3_shfl(x, (k3_raw_thread() & 31) ^ 16);
}
K3_DEV u64 k3_spread_bits(u32 warp) {  // thread 4 g + q of a warp to bit 16 q + g
  u64 all = 0;
  for (int q = 0; q < 4; ++q) {
    u32 m = warp >> q & 0x11111111u;
    m = (m | m >> 3) & 0x03030303u;
    m = (m | m >> 6) & 0x000F000Fu;
    all |= (u64)((m | m >> 12) & 0xFFu) << 16 * q;
  }
  return all;
}
K3_DEV i64 k3_ballot(bool condition K3_SIDE) {
  u32 mine = k3_warp_ballot(condition);
#ifdef K3_FAST
  u32* row = k3_next<u32>(side);
#else
  u32* row = k3_row<u32>();
  k3_wave_sync();
#endif
  if ((k3_raw_thread() & 31) == 0) row[k3_raw_thread() >> 5 & 1] = mine;
  k3_wave_sync();
  return (i64)(k3_spread_bits(row[0]) | k3_spread_bits(row[1]) << 8);
}
K3_DEV i64 k3_clock() { return (i64)k3_now(); }
K3_DEV i64 k3_clock_of_wave(K3_SIDE_ONLY) { return k3_from((i64)k3_now(), 0 K3_ON_SIDE); }
