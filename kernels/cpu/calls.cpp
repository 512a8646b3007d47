// Calls of kernels in a row, without a way through Python between them: a layer is six of them, and
// in a step of few tokens that way is a good part of the time. calls.py is the wrapper.

#include <chrono>
#include <cstdint>

namespace blendrun {

// Mirrored field by field by `KernelCall` in calls.py.
struct KernelCall {
  void (*function)(const void*);
  const void* argument;
  int64_t is_timed;
};

}  // namespace blendrun

extern "C" {
// Seconds that the timed ones took.
double blendrun_run_calls(const blendrun::KernelCall* calls, int64_t num_calls) {
  using Clock = std::chrono::steady_clock;
  Clock::duration timed{};
  for (int64_t i = 0; i < num_calls; ++i) {
    const Clock::time_point begin = Clock::now();
    calls[i].function(calls[i].argument);
    if (calls[i].is_timed) timed += Clock::now() - begin;
  }
  return std::chrono::duration<double>(timed).count();
}
}  // extern "C"
