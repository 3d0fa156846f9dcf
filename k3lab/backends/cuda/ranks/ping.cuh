// Two GPUs answer each other through peer memory: words of the log are when each stored and saw.
// Arguments: my word, the other's word, log [rounds][2], rounds, whether I ask, most that a wait takes (units of k3_now).

#ifdef K3_STACK
#define K3_PAUSE k3_sleep()
#else
#define K3_PAUSE
#endif

K3_DEV u64 k3_word(u64 address) { u64 word; k3_ld<17, 8>(address, (u8*)&word); return word; }
K3_DEV void k3_tell(u64 address, u64 word) { k3_st<17, 8>(address, (const u8*)&word); }

K3_KERNEL {
  const u64* args = launch.args;
  if (k3_raw_thread()) return;
  const u64 mine = args[0], theirs = args[1], rounds = args[3], asks = args[4], most = args[5];
  u64* log = (u64*)args[2];
  for (u64 i = 1; i <= rounds; ++i) {
    const u64 begun = k3_now();
    if (asks) k3_tell(theirs, i);
    while (k3_word(mine) != i) {
      if (k3_now() - begun > most) return;
      K3_PAUSE;
    }
    const u64 seen = k3_now();
    if (!asks) k3_tell(theirs, i);
    log[2 * i - 2] = begun;
    log[2 * i - 1] = seen;
  }
}
