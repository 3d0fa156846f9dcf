// ---- memory ---------------------------------------------------------------------------------------------------------
//
// k3_ld<POLICY, BYTES>(address, words) and k3_st move 1, 2, 4, 8 or 16 bytes at an address that is a multiple of them.
// POLICY is gfx950's: 0 plain, 2 non-temporal, 16 for other workgroups, 17 for other GPUs, and 64 for LDS.

#define K3_IN_LDS 64

template <int POLICY, int BYTES, int ALIGN> struct K3Access {
  K3_DEV void load(u64 address, u8* to) {
    if (ALIGN >= BYTES || !(address & (BYTES - 1))) {
      k3_ld<POLICY, BYTES>(address, to);
    } else {
      K3Access<POLICY, BYTES / 2, ALIGN>::load(address, to);
      K3Access<POLICY, BYTES / 2, ALIGN>::load(address + BYTES / 2, to + BYTES / 2);
    }
  }
  K3_DEV void store(u64 address, const u8* from) {
    if (ALIGN >= BYTES || !(address & (BYTES - 1))) {
      k3_st<POLICY, BYTES>(address, from);
    } else {
      K3Access<POLICY, BYTES / 2, ALIGN>::store(address, from);
      K3Access<POLICY, BYTES / 2, ALIGN>::store(address + BYTES / 2, from + BYTES / 2);
    }
  }
};
template <int POLICY, int ALIGN> struct K3Access<POLICY, 1, ALIGN> {
  K3_DEV void load(u64 address, u8* to) { k3_ld<POLICY, 1>(address, to); }
  K3_DEV void store(u64 address, const u8* from) { k3_st<POLICY, 1>(address, from); }
};

template <class T, int ALIGN> K3_DEV T k3_load(u64 address) {
  T value;
  K3Access<0, sizeof(T), ALIGN>::load(address, (u8*)&value);
  return value;
}
template <class T, int ALIGN> K3_DEV void k3_store(T value, u64 address) {
  K3Access<0, sizeof(T), ALIGN>::store(address, (const u8*)&value);
}
template <class T, int ALIGN> K3_DEV T k3_load_lds(u32 offset) {
  T value;
  K3Access<K3_IN_LDS, sizeof(T), ALIGN>::load(offset, (u8*)&value);
  return value;
}
template <class T, int ALIGN> K3_DEV void k3_store_lds(T value, u32 offset) {
  K3Access<K3_IN_LDS, sizeof(T), ALIGN>::store(offset, (const u8*)&value);
}

// Buffers: bounds are those of each dword; what lies beyond reads as 0 and is not stored.
// ALIGN is what the address is known to be a multiple of; not BOUNDED is a buffer of 2^32 - 1 bytes.
template <class T, int POLICY, int ALIGN = sizeof(T) < 4 ? sizeof(T) : 4, bool BOUNDED = true>
K3_DEV T k3_buffer_load(K3Buffer buffer, int voffset, int soffset) {
  const int grain = sizeof(T) < 4 ? sizeof(T) : 4;
  u32 offset = (u32)voffset + (u32)soffset;
  T value;
  if (!BOUNDED || (u64)offset + sizeof(T) <= buffer.records) {
    K3Access<POLICY, sizeof(T), ALIGN>::load(buffer.base + offset, (u8*)&value);
  } else {
    for (int i = 0; i < (int)sizeof(T); i += grain) {
      u32 zero = 0;
      memcpy((u8*)&value + i, &zero, grain);
      if ((u64)offset + i + grain <= buffer.records)
        K3Access<POLICY, grain, grain>::load(buffer.base + offset + i, (u8*)&value + i);
    }
  }
  return value;
}
template <class T, int POLICY, int ALIGN = sizeof(T) < 4 ? sizeof(T) : 4, bool BOUNDED = true>
K3_DEV void k3_buffer_store(T value, K3Buffer buffer, int voffset, int soffset) {
  const int grain = sizeof(T) < 4 ? sizeof(T) : 4;
  u32 offset = (u32)voffset + (u32)soffset;
  if (!BOUNDED || (u64)offset + sizeof(T) <= buffer.records) {
    K3Access<POLICY, sizeof(T), ALIGN>::store(buffer.base + offset, (const u8*)&value);
  } else {
    for (int i = 0; i < (int)sizeof(T); i += grain)
      if ((u64)offset + i + grain <= buffer.records)
        K3Access<POLICY, grain, grain>::store(buffer.base + offset + i, (const u8*)&value + i);
  }
}
