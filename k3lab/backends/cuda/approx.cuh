// ---- exp2, rsq and quotients, rounded right -------------------------------------------------------------------------
//
// In double, and where that lies within 16 of its ulps of a float midpoint the side is decided exactly: by the error of
// a fused product, or for 2^x by a sum in pairs of doubles, good to about 2^-98. (No 2^x of a float x comes closer to a
// midpoint than 2^-60 of it.)

struct K3Pair { double hi, lo; };

K3_DEV K3Pair k3_normal(double a, double b) {
  double s = a + b;
  return K3Pair{s, b - (s - a)};
}
K3_DEV K3Pair k3_pair_product(K3Pair a, K3Pair b) {
  double p = a.hi * b.hi;
  return k3_normal(p, fma(a.hi, b.hi, -p) + (a.hi * b.lo + a.lo * b.hi));
}
K3_DEV K3Pair k3_pair_over(K3Pair a, double n) {
  double q = a.hi / n;
  return k3_normal(q, (fma(-q, n, a.hi) + a.lo) / n);
}
K3_DEV K3Pair k3_one_plus(K3Pair a) {
  double s = 1.0 + a.hi, z = s - 1.0;
  return k3_normal(s, ((1.0 - (s - z)) + (a.hi - z)) + a.lo);
}

K3_SLOW bool k3_exp2_above(float x, double midpoint) {
  double n = rint((double)x), f = (double)x - n;
  K3Pair ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  K3Pair r = k3_pair_product(K3Pair{f, 0.0}, ln2), sum = {1.0, 0.0};
  for (int k = 30; k; --k) sum = k3_one_plus(k3_pair_product(k3_pair_over(r, k), sum));
  return (sum.hi - ldexp(midpoint, -(int)n)) + sum.lo > 0.0;
}
K3_DEV bool k3_rsq_above(float x, double midpoint) {
  double square = midpoint * midpoint, p = square * x;  // the square of 25 bits is exact
  return p < 1.0 || (p == 1.0 && fma(square, (double)x, -p) < 0.0);
}
K3_DEV bool k3_undecided(u64 bits) {
  i64 off = (i64)(bits & 0x1FFFFFFFull) - 0x10000000ll;
  return off >= -16 && off <= 16;
}
K3_DEV float k3_beside(u64 bits, bool above) {
  u64 middle = (bits & ~0x1FFFFFFFull) | 0x10000000ull;
  return (float)k3_f64(above ? middle + 1 : middle - 1);
}
#ifdef K3_FAST
// The GPU's own approximations, subnormals flushed as the models do.
K3_DEV float k3_exp2(float x) { return k3_approx_exp2(x); }
K3_DEV float k3_rsq(float x) { return k3_approx_rsq(x); }
K3_DEV float k3_quotient(float a, float b) { return k3_approx_quotient(a, b); }
#else
K3_SLOW float k3_exp2(float x) {
  double wide = x == rintf(x) && fabsf(x) < 300.0f ? ldexp(1.0, (int)x) : exp2((double)x);
  if (wide < 0x1p-126) wide = 0.0;
  u64 bits = k3_cast<u64>(wide);
  return k3_undecided(bits) ? k3_beside(bits, k3_exp2_above(x, k3_f64((bits & ~0x1FFFFFFFull) | 0x10000000ull)))
                            : (float)wide;
}
K3_SLOW float k3_rsq(float x) {
  double wide = fabsf(x) < 0x1p-126f ? copysign(0.0, (double)x) : (double)x;
  wide = 1.0 / sqrt(wide);
  u64 bits = k3_cast<u64>(wide);
  return k3_undecided(bits) ? k3_beside(bits, k3_rsq_above(x, k3_f64((bits & ~0x1FFFFFFFull) | 0x10000000ull)))
                            : (float)wide;
}
K3_DEV float k3_quotient(float a, float b) { return a / b; }
#endif
K3_DEV double k3_quotient(double a, double b) { return a / b; }
