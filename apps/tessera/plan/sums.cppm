export module tessera.app.plan:sums;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :simulate;

// A rank's step in time, summed up by operator and by kind of collective.

export namespace tessera::app {

/// Calls of one operator.
struct KernelSum {
  std::string name;
  double calls = 0;
  double seconds = 0;
};

/// Collectives of one kind along the same axes of the mesh.
struct CollectiveSum {
  std::string name;
  std::string axes;  // "shard", "shard+tensor"
  double calls = 0;
  double received = 0;  // bytes
  double seconds = 0;
  double waited = 0;  // of the rank
};

struct StepTimes {
  double seconds = 0;
  double computing = 0;
  double calling = 0;  // of an eager step: the host, which makes the calls; 0 where it runs ahead
  double communicating = 0;
  double waiting = 0;                           // for collectives
  double keeping = 0;                           // the state of the step in memory
  std::vector<KernelSum> kernels = {};          // the longest first
  std::vector<CollectiveSum> collectives = {};  // likewise

  /// What passes while the rank computes.
  double hidden() const { return communicating - waiting; }
};

StepTimes sums_of(const Program& program, const SimulatedStep& step, const DeviceMesh& mesh);

/// Adds the time of the host to an eager step whose kernels wait for it.
void add_host(StepTimes& step, double seconds);

/// The sums of a step with `more` micro-batches beyond those of `last`, if each one more adds what
/// it adds from `first` to `last`, which has one more than `first`.
StepTimes continued(const StepTimes& first, const StepTimes& last, double more);

/// The name of what a kernel computes.
std::string kernel_name(const Instruction& i);
/// The axes of the mesh along which the ranks of a group differ.
std::string axes_of(const DeviceMesh& mesh, const CallGroup& group);

}  // namespace tessera::app
