module tessera.app.first_day:gpu_facts;

import tessera.base;
import tessera.app.base;

// What NVIDIA's driver says of this machine, without the plugin.

namespace tessera::app::first_day {

struct GpuFact {
  std::string name;
  std::string capability;  // "90"
  std::uint64_t memory = 0;
};

/// A library that is not there.
struct LibraryProblem {
  std::string text;          // what is done without it, and how to get it
  bool other_major = false;  // one of another major version is there
};

struct GpuFacts {
  int driver = 0;  // the version of CUDA that it has, 13000 for 13.0
  std::vector<GpuFact> gpus;
  std::vector<std::string> libraries;  // files: "FOLDER/libcublasLt.so.13"
  std::vector<LibraryProblem> problems;

  /// Whether there is a library "libnccl.so" that can be used.
  bool has_library(std::string_view name) const;
};

/// Asks the driver in a child process. Errors (input): there is no driver, it is older than 12.8,
/// there is no GPU.
GpuFacts look_at_gpus();

/// Errors (input): the pack has no machine code for the first GPU. `architectures`: such as "90a".
void check_architectures(const GpuFacts& facts, const std::vector<std::string>& architectures);

/// "13.0" for 13000.
std::string cuda_version(int version);

}  // namespace tessera::app::first_day
