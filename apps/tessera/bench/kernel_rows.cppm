module tessera.app.bench:kernel_rows;

import tessera.app.base;

namespace tessera::app {

/// The best that the machine can do for a kernel; `tessera bench kernels` measures it beside the
/// kernel, with the same number of threads.
enum class KernelBound : std::uint8_t {
  stream,    // reading and writing as many bytes, in adjacent order, or computing as much
  products,  // the rate of matrix products
  sort,      // std::sort of the same values, the lines shared out
  partial,   // std::partial_sort of the same values, the lines shared out
};

/// Time of a bound, and which it is.
struct BoundTime {
  double seconds;
  const char* name;
};

/// One operator on plain tensors that are larger than a core's caches.
struct KernelRow {
  std::string name;
  KernelBound bound = KernelBound::stream;
  double read = 0;     // bytes
  double written = 0;  // bytes
  double flops = 0;    // of a kernel that computes
  // Further work of a kernel with the bound stream. The bound is the longer of the two times.
  double exponentials = 0;  // and logarithms, which are polynomials of the same length
  double random_words = 0;
  // For a sort: the values as lines, and how many of each are wanted.
  std::vector<float> values = {};
  std::int64_t line = 0;
  std::int64_t wanted = 0;
  std::function<void()> run;
};

/// The rows for tensors of about `elements` elements.
std::vector<KernelRow> kernel_rows(std::int64_t elements);

/// How long `threads` threads take to do what a row's bound says (not for products): the best time
/// of any implementation that we know, independent of the kernels and of their thread pool. Only
/// exponentials and random words are computed by the functions that the kernels use.
BoundTime time_of_bound(const KernelRow& row, int threads);

}  // namespace tessera::app
