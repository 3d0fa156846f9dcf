// ---- matrix products on tensor cores --------------------------------------------------------------------------------
//
// An instruction has 16 rows, 8 columns and 16 slots; a warp does two for a product's 32 slots. Thread 4 g + q of warp h
// is lane 16 q + 8 h + g, which has row or column 8 h + g of an operand, 8 slots of it: what the instruction takes of
// its second operand. Of its first it takes rows g and g + 8, of which this lane has one and lane xor 8 the other.
//
// Turned, the product's second operand is the instruction's first, made for both lanes (lane & ~8 and lane | 8), and its
// rows are columns: nothing is exchanged. Otherwise the product's first operand is exchanged. Along a chain the sums
// stay as the instruction has them: rows g and g + 8, columns 2 q and 2 q + 1 of the warp's 8.

#ifdef K3_FAST
struct K3Fragment { float v[4]; };
struct K3Turned { float v[4]; };

K3_DEV K3Fragment k3_to_fragment(K3Vec<float, 4> c, u32& side) {
  int t = k3_raw_thread(), g = t >> 2 & 7, q = t & 3;
  float* tile = k3_next<float>(side) + 128 * (t >> 5 & 1);  // [8 columns][16 rows] of each warp
  for (int i = 0; i < 4; ++i) tile[16 * g + 4 * q + i] = c.v[i];
  k3_wave_sync();
  const float* at = tile + 32 * q + g;
  return K3Fragment{{at[0], at[16], at[8], at[24]}};
}
K3_DEV K3Vec<float, 4> k3_from_fragment(K3Fragment c, u32& side) {
  int t = k3_raw_thread(), g = t >> 2 & 7, q = t & 3;
  float* tile = k3_next<float>(side) + 128 * (t >> 5 & 1);
  float* at = tile + 32 * q + g;
  at[0] = c.v[0];
  at[16] = c.v[1];
  at[8] = c.v[2];
  at[24] = c.v[3];
  k3_wave_sync();
  const float* mine = tile + 16 * g + 4 * q;
  return K3Vec<float, 4>{{mine[0], mine[1], mine[2], mine[3]}};
}
K3_DEV float* k3_turned_at(float* tile) {  // in [16 columns][16 rows]: column g, row 8 h + 2 q
  int t = k3_raw_thread();
  return tile + (t >> 2 & 7) * 16 + (t >> 5 & 1) * 8 + (t & 3) * 2;
}
K3_DEV float* k3_plain_at(float* tile) {  // the lane's column, 4 rows from 4 q on
  int t = k3_raw_thread();
  return tile + ((t >> 5 & 1) * 8 + (t >> 2 & 7)) * 16 + (t & 3) * 4;
}
K3_DEV K3Turned k3_to_turned(K3Vec<float, 4> c) {  // both sides of the row, so meet before and after
  float* tile = k3_row<float>();
  k3_wave_sync();
  memcpy(k3_plain_at(tile), &c, 16);
  k3_wave_sync();
  const float* at = k3_turned_at(tile);
  K3Turned turned = {{at[0], at[1], at[128], at[129]}};
  k3_wave_sync();
  return turned;
}
K3_DEV K3Vec<float, 4> k3_from_turned(K3Turned c) {
  float* tile = k3_row<float>();
  k3_wave_sync();
  float* at = k3_turned_at(tile);
  memcpy(at, &c.v[0], 8);
  memcpy(at + 128, &c.v[2], 8);
  k3_wave_sync();
  K3Vec<float, 4> mine;
  memcpy(&mine, k3_plain_at(tile), 16);
  k3_wave_sync();
  return mine;
}
K3_DEV void k3_multiply(float* c, K3Vec<u32, 4> low, K3Vec<u32, 4> up, K3Vec<u32, 4> b) {
  k3_tensor_core(c, low.v[0], up.v[0], low.v[1], up.v[1], b.v[0], b.v[1]);
  k3_tensor_core(c, low.v[2], up.v[2], low.v[3], up.v[3], b.v[2], b.v[3]);
}
K3_DEV K3Turned k3_turned_bf16(K3Vec<u16, 8> a, K3Vec<u16, 8> low, K3Vec<u16, 8> up, K3Turned c) {
  k3_multiply(c.v, k3_cast<K3Vec<u32, 4>>(low), k3_cast<K3Vec<u32, 4>>(up), k3_cast<K3Vec<u32, 4>>(a));
  return c;
}
K3_DEV K3Fragment k3_step(K3Vec<u32, 4> a, K3Vec<u32, 4> b, K3Fragment c, u32& side) {
  bool high = k3_raw_thread() >> 5 & 1;  // this lane has row g + 8
  K3Vec<u32, 4> other = k3_from(a, k3_lane() ^ 8, side);
  k3_multiply(c.v, high ? other : a, high ? a : other, b);
  return c;
}
K3_DEV K3Fragment k3_step_bf16(K3Vec<u16, 8> a, K3Vec<u16, 8> b, K3Fragment c, u32& side) {
  return k3_step(k3_cast<K3Vec<u32, 4>>(a), k3_cast<K3Vec<u32, 4>>(b), c, side);
}
K3_DEV u32 k3_twice(u16 half) { return half * 0x10001u; }
// Four E2M1 codes as bf16 pairs: a code's low three bits choose the bytes of 0, .5, 1, 1.5, 2, 3, 4, 6, its highest is
// the sign; a scale is a power of two, and the product exact.
K3_DEV void k3_e2m1_four(u32 codes, u32 scale, u32* pairs) {
  u32 which = codes & 0x7777u, upper = k3_bytes(0x3F3F3F00u, 0x40404040u, which), lower = k3_bytes(0xC0800000u, 0xC0804000u, which);
  u32 signs = k3_bytes(codes << 4 & 0x8080u, codes & 0x8080u, 0x5140u);  // a code's sign on top of its byte
  upper |= signs;
  pairs[0] = k3_scaled(k3_bytes(lower, upper, 0x5140u), scale);
  pairs[1] = k3_scaled(k3_bytes(lower, upper, 0x7362u), scale);
}
K3_DEV K3Fragment k3_step_e2m1(K3Vec<int, 4> a, K3Vec<int, 4> b, K3Fragment c, u32 scale_a, u32 scale_b, u32& side) {
  u32 x = k3_twice(k3_to_bf16(k3_e8m0_value(scale_a & 0xFFu))), y = k3_twice(k3_to_bf16(k3_e8m0_value(scale_b & 0xFFu)));
  for (int i = 0; i < 4; ++i) {
    K3Vec<u32, 4> left, right;
    for (int j = 0; j < 2; ++j) {
      k3_e2m1_four((u32)a.v[i] >> 16 * j, x, left.v + 2 * j);
      k3_e2m1_four((u32)b.v[i] >> 16 * j, y, right.v + 2 * j);
    }
    c = k3_step(left, right, c, side);
  }
  return c;
}
#endif
