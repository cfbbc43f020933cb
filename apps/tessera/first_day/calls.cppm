module tessera.app.first_day:calls;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.checkpoint;
import tessera.conformance;
import tessera.app.base;

// Calls of operators with what the CPU has made of them, in a file of safetensors.

namespace tessera::app::first_day {

/// Writes calls of every operator: some that follow from its schema, and those of steps of these
/// configs (with overrides). Errors: those of a run.
void record_calls(const std::string& path, const std::vector<std::vector<std::string>>& runs);

/// The calls of a file.
class StoredCalls {
 public:
  /// Error (input): the file cannot be read, or has other contents.
  StoredCalls(const std::string& path, DeviceType type);
  /// Names of the operators that the kind of device has a kernel for, those of training first.
  const std::vector<std::string>& operators() const { return operators_; }
  /// Repeats the operator's calls on the device.
  conformance::DeviceAccount compare(const std::string& name, Device device) const;

 private:
  /// A call's place in the list, which begins the names of its tensors, and its entry there (JSON).
  struct Entry {
    std::size_t place;
    std::string json;
  };
  std::vector<Tensor> tensors(const std::string& name, const std::vector<bool>& there) const;

  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, std::vector<Entry>> entries_;  // of each operator in operators_
  std::vector<std::string> operators_;
};

}  // namespace tessera::app::first_day
