// The primitives of runtime.cuh on a GPU.

#define K3_DEV static __device__ __forceinline__
#define K3_SLOW static __device__ __noinline__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern __shared__ __align__(16) u8 k3_memory[];

K3_DEV int k3_raw_thread() { return (int)threadIdx.x; }
K3_DEV int k3_raw_block() { return (int)blockIdx.x; }
K3_DEV u8* k3_shared() { return k3_memory; }

#ifdef K3_FAST
K3_DEV void k3_fence_block() { asm volatile("" ::: "memory"); }  // it stands beside a barrier, which is one
#else
K3_DEV void k3_fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
#endif
K3_DEV void k3_fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
K3_DEV void k3_fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Barrier 0 is the workgroup's, 1 + w that of wave w. Whole warps come to them, which the compiler is told: a barrier for
// threads that come one by one takes much more code. In the exact build what others published before a workgroup meets is
// there after; the fast build has fences where the translation puts them.
K3_DEV int k3_wave_barrier() { return 1 + (k3_raw_thread() >> 6); }
K3_DEV void k3_wave_sync() { asm volatile("bar.sync %0, 64;" ::"r"(k3_wave_barrier()) : "memory"); }
K3_DEV bool k3_wave_any(bool mine) {
  u32 any;
  asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tbar.red.or.pred q, %2, 64, p;\n\tselp.u32 %0, 1, 0, q;\n\t}"
               : "=r"(any)
               : "r"((u32)mine), "r"(k3_wave_barrier())
               : "memory");
  return any;
}
K3_DEV void k3_block_sync() {
#ifndef K3_FAST
  k3_fence_device();
#endif
  __syncthreads();
#ifdef K3_RACECHECK
  __syncthreads();
#endif
#ifndef K3_FAST
  k3_fence_device();
#endif
}
K3_DEV void k3_sleep() { __nanosleep(40); }
K3_DEV u64 k3_now() {  // nanoseconds
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
template <class T> K3_DEV T k3_shfl(T x, int from) { return __shfl_sync(0xFFFFFFFFu, x, from); }
K3_DEV u32 k3_warp_ballot(bool condition) { return __ballot_sync(0xFFFFFFFFu, condition); }

template <int BYTES> struct K3Words;
template <> struct K3Words<1> { typedef u8 type; };
template <> struct K3Words<2> { typedef u16 type; };
template <> struct K3Words<4> { typedef u32 type; };
template <> struct K3Words<8> { typedef u64 type; };
template <> struct K3Words<16> { typedef uint4 type; };

K3_DEV u32 k3_ld_gpu(const u32* p) { u32 x; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory"); return x; }
K3_DEV u64 k3_ld_gpu(const u64* p) { u64 x; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory"); return x; }
K3_DEV u32 k3_ld_sys(const u32* p) { u32 x; asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory"); return x; }
K3_DEV u64 k3_ld_sys(const u64* p) { u64 x; asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory"); return x; }
K3_DEV void k3_st_gpu(u32* p, u32 x) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
K3_DEV void k3_st_gpu(u64* p, u64 x) { asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory"); }
K3_DEV void k3_st_sys(u32* p, u32 x) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory"); }
K3_DEV void k3_st_sys(u64* p, u64 x) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory"); }

K3_DEV void k3_ld_global(const u8* p, u8& x) { u32 w; asm volatile("ld.global.u8 %0, [%1];" : "=r"(w) : "l"(p)); x = (u8)w; }
K3_DEV void k3_ld_global(const u16* p, u16& x) { asm volatile("ld.global.u16 %0, [%1];" : "=h"(x) : "l"(p)); }
K3_DEV void k3_ld_global(const u32* p, u32& x) { asm volatile("ld.global.u32 %0, [%1];" : "=r"(x) : "l"(p)); }
K3_DEV void k3_ld_global(const u64* p, u64& x) { asm volatile("ld.global.u64 %0, [%1];" : "=l"(x) : "l"(p)); }
K3_DEV void k3_ld_global(const uint4* p, uint4& x) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
}
K3_DEV void k3_ld_weights(const uint4* p, uint4& x) {  // which nothing else asks for: past the first cache
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
}
K3_DEV void k3_st_global(u8* p, u8 x) { asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"((u32)x)); }
K3_DEV void k3_st_global(u16* p, u16 x) { asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(x)); }
K3_DEV void k3_st_global(u32* p, u32 x) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(x)); }
K3_DEV void k3_st_global(u64* p, u64 x) { asm volatile("st.global.u64 [%0], %1;" ::"l"(p), "l"(x)); }
K3_DEV void k3_st_global(uint4* p, uint4 x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
}

// Accesses to global memory are volatile assembly, which the compiler keeps in order.
// A scoped access of 16 bytes is two of 8 to the memory model, each whole: a tagged pair is never torn.
template <int POLICY, int BYTES> struct K3Move {
  typedef typename K3Words<BYTES>::type W;
  K3_DEV void load(u64 address, u8* to) {
    W w;
    if (POLICY == 64)
      w = *(const W*)(k3_memory + address);
    else
      k3_ld_global((const W*)address, w);
    memcpy(to, &w, BYTES);
  }
  K3_DEV void store(u64 address, const u8* from) {
    W w;
    memcpy(&w, from, BYTES);
    if (POLICY == 64)
      *(W*)(k3_memory + address) = w;
    else
      k3_st_global((W*)address, w);
  }
};
#ifdef K3_FAST
// LDS by 32-bit address, which the run-time compiler would widen.
K3_DEV u32 k3_lds(u64 offset) { return (u32)__cvta_generic_to_shared(k3_memory) + (u32)offset; }
template <> struct K3Move<64, 2> {
  K3_DEV void load(u64 at, u8* to) { u16 w; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(w) : "r"(k3_lds(at))); memcpy(to, &w, 2); }
  K3_DEV void store(u64 at, const u8* from) { u16 w; memcpy(&w, from, 2); asm volatile("st.shared.u16 [%0], %1;" ::"r"(k3_lds(at)), "h"(w)); }
};
template <> struct K3Move<64, 4> {
  K3_DEV void load(u64 at, u8* to) { u32 w; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(k3_lds(at))); memcpy(to, &w, 4); }
  K3_DEV void store(u64 at, const u8* from) { u32 w; memcpy(&w, from, 4); asm volatile("st.shared.u32 [%0], %1;" ::"r"(k3_lds(at)), "r"(w)); }
};
template <> struct K3Move<64, 8> {
  K3_DEV void load(u64 at, u8* to) {
    u32 w[2];
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(k3_lds(at)));
    memcpy(to, w, 8);
  }
  K3_DEV void store(u64 at, const u8* from) {
    u32 w[2];
    memcpy(w, from, 8);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(k3_lds(at)), "r"(w[0]), "r"(w[1]));
  }
};
template <> struct K3Move<64, 16> {
  K3_DEV void load(u64 at, u8* to) {
    u32 w[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(k3_lds(at)));
    memcpy(to, w, 16);
  }
  K3_DEV void store(u64 at, const u8* from) {
    u32 w[4];
    memcpy(w, from, 16);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(k3_lds(at)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
  }
};
#endif
template <> struct K3Move<2, 16> {
  K3_DEV void load(u64 address, u8* to) {
    uint4 w;
    k3_ld_weights((const uint4*)address, w);
    memcpy(to, &w, 16);
  }
  K3_DEV void store(u64 address, const u8* from) { K3Move<0, 16>::store(address, from); }
};
#define K3_SCOPED(POLICY, BYTES, LD, ST)                                                                    \
  template <> struct K3Move<POLICY, BYTES> {                                                                \
    typedef K3Words<BYTES>::type W;                                                                         \
    K3_DEV void load(u64 address, u8* to) { W w = LD((const W*)address); memcpy(to, &w, BYTES); }    \
    K3_DEV void store(u64 address, const u8* from) { W w; memcpy(&w, from, BYTES); ST((W*)address, w); } \
  };
K3_SCOPED(16, 4, k3_ld_gpu, k3_st_gpu)
K3_SCOPED(16, 8, k3_ld_gpu, k3_st_gpu)
K3_SCOPED(17, 4, k3_ld_sys, k3_st_sys)
K3_SCOPED(17, 8, k3_ld_sys, k3_st_sys)
#define K3_TWICE(POLICY, REACH)                                                                           \
  template <> struct K3Move<POLICY, 16> {                                                                  \
    K3_DEV void load(u64 address, u8* to) {                                                                \
      u64 w[2];                                                                                            \
      asm volatile("ld.relaxed." REACH ".global.v2.u64 {%0, %1}, [%2];"                                    \
                   : "=l"(w[0]), "=l"(w[1]) : "l"(address) : "memory");                                    \
      memcpy(to, w, 16);                                                                                   \
    }                                                                                                      \
    K3_DEV void store(u64 address, const u8* from) {                                                       \
      u64 w[2];                                                                                            \
      memcpy(w, from, 16);                                                                                 \
      asm volatile("st.relaxed." REACH ".global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(w[0]), "l"(w[1]) : "memory"); \
    }                                                                                                      \
  };
K3_TWICE(16, "gpu")
K3_TWICE(17, "sys")

template <int POLICY, int BYTES> K3_DEV void k3_ld(u64 address, u8* to) { K3Move<POLICY, BYTES>::load(address, to); }
template <int POLICY, int BYTES> K3_DEV void k3_st(u64 address, const u8* from) { K3Move<POLICY, BYTES>::store(address, from); }

template <int POLICY, class T> K3_DEV T* k3_cell(u64 address) { return (T*)(POLICY == 64 ? (u64)(k3_memory + address) : address); }
#define K3_ATOMIC(NAME, FUNCTION) \
  template <int POLICY, class T> K3_DEV T NAME(u64 address, T value) { return FUNCTION(k3_cell<POLICY, T>(address), value); }
K3_ATOMIC(k3_atomic_xchg, atomicExch)
K3_ATOMIC(k3_atomic_add, atomicAdd)
K3_ATOMIC(k3_atomic_and, atomicAnd)
K3_ATOMIC(k3_atomic_or, atomicOr)
K3_ATOMIC(k3_atomic_xor, atomicXor)
K3_ATOMIC(k3_atomic_max, atomicMax)
K3_ATOMIC(k3_atomic_min, atomicMin)

#ifdef K3_FAST
K3_DEV float k3_approx_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
K3_DEV float k3_approx_rsq(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
K3_DEV float k3_approx_quotient(float a, float b) {  // within 2 ulps for all floats, says the PTX ISA
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
// Nearest, ties to even; a NaN is the one that the instruction gives. Two at once: the first in the low half.
K3_DEV u16 k3_narrow_bf16(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
K3_DEV u32 k3_narrow_bf16(float low, float high) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
K3_DEV u32 k3_narrow_e4m3(float low, float high) {  // saturating
  u16 y;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(high), "f"(low));
  return y;
}
K3_DEV u32 k3_bytes(u32 low, u32 high, u32 which) { return __byte_perm(low, high, which); }
K3_DEV u32 k3_scaled(u32 pair, u32 scale) {
  asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(scale));
  return pair;
}
K3_DEV u32 k3_plus(u32 pair, u32 other) {  // of bf16
  asm("add.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(other));
  return pair;
}
K3_DEV u32 k3_lesser(u32 pair, u32 other) {  // of 16-bit numbers
  asm("min.u16x2 %0, %0, %1;" : "+r"(pair) : "r"(other));
  return pair;
}
K3_DEV void k3_tensor_core(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif
