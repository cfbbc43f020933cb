export module tessera.app.plan:measure;

import tessera.base;
import tessera.device;
import tessera.program;
import tessera.app.base;
import :hardware;

// Rates of this machine, and the time of each kernel of a program on it, or on a device.

export namespace tessera::app {

/// The rates of this machine's CPU, and of what is between ranks on it, with as many ranks as it
/// has cores for and `ranks` at the most, each with `threads` threads. Before any thread exists.
Hardware measure_hardware(int ranks, int threads);

/// Kernels measured on this machine, by what they do: programs that share kernels share their
/// times. As many ranks as above execute a program at the same time, without each other, as they
/// share memory and caches: values are arbitrary, and no collective is made.
class MeasuredKernels {
 public:
  /// `threads` of each rank.
  MeasuredKernels(int ranks, int threads);

  /// Seconds of each kernel of a rank's program; 0 of what is none. Kernels of a kind that was not
  /// measured before are executed now, in the program: the mean of all of the kind, of which each
  /// counts with its median round. It needs the memory of the step. Before any thread exists.
  /// Errors: those of the operators.
  ByPlace<double> seconds_of(const Program& program);
  /// From now on kernels are measured anew as they are needed. The shorter time counts: other
  /// programs on the machine only add to it.
  void measure_again() { ++round_; }

 private:
  void measure(const Program& program, const ByPlace<std::string>& kinds,
               const ByPlace<bool>& wanted);

  int ranks_;  // at the same time
  int threads_;
  struct Measurement {
    double seconds = std::numeric_limits<double>::infinity();
    int round = -1;  // in which it was measured last
  };
  std::map<std::string, Measurement> kinds_ = {};
  int round_ = 0;
};

/// Seconds of each kernel of a rank's program on a device, one after the other; 0 of what is none.
/// Of kernels that do the same, up to three are executed five times, after a first time; the host
/// waits for all five. Values are arbitrary; ids of rows are spread over their table. It needs the
/// memory of the step. Errors: those of the operators (one has no kernel); OutOfMemory.
ByPlace<double> kernel_seconds_on(Device device, const Program& program);

}  // namespace tessera::app
