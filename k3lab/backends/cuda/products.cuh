// ---- matrix products ------------------------------------------------------------------------------------------------
//
// The model `fused`: the exact sum of all products and C, rounded once. Products of two bf16 (or scaled E2M1) values
// are exact in double, and between 2^-266 and 2^257 where they are not 0. The sum is taken in double; where every
// addition was exact (its error, by Knuth's two-sum, is 0), rounding it is all there is to do. Otherwise the terms are
// added up once more in fixed point. A sum is -0 only if C and all products are, in double too.

#define K3_LIMBS 20  // of 32 bits, the first one's lowest of weight 2^-320

template <class Term> K3_SLOW float k3_fixed_sum(float c, int count, Term term) {
  i64 limbs[K3_LIMBS];
  for (int i = 0; i < K3_LIMBS; ++i) limbs[i] = 0;
  for (int k = -1; k < count; ++k) {
    u64 bits = k3_cast<u64>(k < 0 ? (double)c : term(k));
    int field = (int)(bits >> 52 & 0x7FF);
    if (!field) continue;  // a zero: no term is subnormal in double
    u64 m = (bits & 0xFFFFFFFFFFFFFull) | 1ull << 52;
    int at = field - 1075 + 320, limb = at >> 5, off = at & 31;
    u64 low = m << off, high = off ? m >> (64 - off) : 0;
    i64 sign = (i64)bits < 0 ? -1 : 1;
    limbs[limb] += sign * (i64)(low & 0xFFFFFFFFu);
    limbs[limb + 1] += sign * (i64)(low >> 32);
    limbs[limb + 2] += sign * (i64)high;
  }
  for (int pass = 0; pass < 2; ++pass) {  // carry; a negative sum is turned round and carried again
    for (int i = 0; i + 1 < K3_LIMBS; ++i) {
      limbs[i + 1] += limbs[i] >> 32;
      limbs[i] &= 0xFFFFFFFFll;
    }
    if (pass || limbs[K3_LIMBS - 1] >= 0) {
      int top = K3_LIMBS - 1;
      while (top >= 0 && limbs[top] == 0) --top;
      if (top < 0) return 0.0f;
      int lead = 31;
      while (!(limbs[top] >> lead & 1)) --lead;
      u64 window = (u64)limbs[top] << (63 - lead);  // the 64 bits from the leading one down
      if (top > 0) window |= lead < 31 ? (u64)limbs[top - 1] << (31 - lead) : (u64)limbs[top - 1];
      bool more = false;
      if (top > 1) {
        window |= (u64)limbs[top - 2] >> (lead + 1);
        more = ((u64)limbs[top - 2] & ((1ull << (lead + 1)) - 1)) != 0;
      }
      for (int i = 0; i < top - 2; ++i) more |= limbs[i] != 0;
      int exponent = 32 * top + lead - 320;
      int drop = 40 + (exponent < -126 ? -126 - exponent : 0);
      u64 kept = drop < 64 ? window >> drop : 0;
      u64 half = drop <= 64 ? window >> (drop - 1) & 1 : 0;
      if (drop <= 64) more |= (window & ((1ull << (drop - 1)) - 1)) != 0;
      if (half && (more || (kept & 1))) ++kept;
      float sum = (float)ldexp((double)kept, exponent - 63 + drop);
      return pass ? -sum : sum;
    }
    for (int i = 0; i < K3_LIMBS; ++i) limbs[i] = -limbs[i];
  }
  return 0.0f;
}

template <class Term> K3_DEV float k3_sum(float c, int count, Term term) {
  double sum = c;
  bool exact = true;
  for (int k = 0; k < count; ++k) {
    double t = term(k), s = sum + t, z = s - sum;
    exact &= ((sum - (s - z)) + (t - z)) == 0.0;
    sum = s;
  }
  if (exact || !(fabs(sum) < 1e300)) return (float)sum;  // or an infinity or a NaN
  return k3_fixed_sum(c, count, term);
}

#ifndef K3_FAST
K3_SLOW K3Vec<float, 4> k3_mfma_bf16(K3Vec<u16, 8> a, K3Vec<u16, 8> b, K3Vec<float, 4> c) {
  K3Vec<u16, 8>* held = k3_row<K3Vec<u16, 8>>();
  int lane = k3_lane();
  k3_wave_sync();
  held[lane] = a;
  held[64 + lane] = b;
  k3_wave_sync();
  const u16* columns = (const u16*)(held + 64 + (lane & 15));
  for (int i = 0; i < 4; ++i) {
    const u16* rows = (const u16*)(held + 4 * (lane >> 4) + i);
    c.v[i] = k3_sum(c.v[i], 32, [=](int k) {
      int at = (k >> 3) * 128 + (k & 7);
      return (double)k3_bf16_value(rows[at]) * (double)k3_bf16_value(columns[at]);
    });
  }
  return c;
}

struct K3Scaled { u8 codes[16]; float scale; };  // a lane's 32 E2M1 values, the first in the low nibble

K3_SLOW K3Vec<float, 4> k3_mfma_e2m1(K3Vec<int, 4> a, K3Vec<int, 4> b, K3Vec<float, 4> c, u32 scale_a, u32 scale_b) {
  K3Scaled* held = k3_row<K3Scaled>();
  int lane = k3_lane();
  k3_wave_sync();
  memcpy(held[lane].codes, &a, 16);
  held[lane].scale = k3_e8m0_value(scale_a & 0xFFu);
  memcpy(held[64 + lane].codes, &b, 16);
  held[64 + lane].scale = k3_e8m0_value(scale_b & 0xFFu);
  k3_wave_sync();
  const K3Scaled* column = held + 64 + (lane & 15);
  for (int i = 0; i < 4; ++i) {
    const K3Scaled* row = held + 4 * (lane >> 4) + i;
    c.v[i] = k3_sum(c.v[i], 128, [=](int k) {
      int block = k >> 5 << 4, byte = k >> 1 & 15, shift = 4 * (k & 1);
      float x = k3_e2m1_value(row[block].codes[byte] >> shift & 15u) * row[block].scale;
      float y = k3_e2m1_value(column[block].codes[byte] >> shift & 15u) * column[block].scale;
      return (double)x * (double)y;
    });
  }
  return c;
}
#endif
