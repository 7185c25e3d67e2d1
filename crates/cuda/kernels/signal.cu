// Tells the host that all launches before this one are done (BatchMaker, section 5): a word in the
// host's memory, which it polls.
#include "machine.cuh"

struct Signal {
  unsigned* word;
  unsigned value;
  int unused;
};

extern "C" __global__ void signal_done(const __grid_constant__ Signal run) {
  if (threadIdx.x == 0) write_signal(run.word, run.value);
}
