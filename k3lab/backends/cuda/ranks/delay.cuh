// Keeps a stream busy: one thread looks at the clock until `args[0]` nanoseconds have passed.

K3_KERNEL {
  const u64 begun = k3_now();
  while (k3_now() - begun < launch.args[0]) k3_sleep();
}
