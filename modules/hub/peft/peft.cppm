export module tessera.hub:peft;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;
import :updates;

// The low-rank updates of a model alone, as a folder in the format of the library PEFT:
// adapter_config.json and adapter_model.safetensors.

export namespace tessera::hub {

/// The tensors of another source by other names; tensors that have no name here are not there.
class RenamedTensors : public TensorSource {
 public:
  /// `names`: name here -> name there. The source must outlive this. Error (input): the source has
  /// no such tensor.
  RenamedTensors(const TensorSource& from, std::map<std::string, std::string> names);
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  const TensorSource& from_;
  std::map<std::string, std::string> names_;
};

/// A folder that PEFT wrote, compared with the updates of a model.
class PeftFolder {
 public:
  /// Error (input): a file that is missing or damaged; another kind of adapter. And one that lists
  /// all differences: settings that change what is computed and that no update has; another rank,
  /// alpha or scale, with or without dora; layers that have an update on one side only; tensors
  /// that are missing or have another shape.
  PeftFolder(const std::string& folder, nn::Module& model);

  /// The parameters of the updates by their names in the model, without those of absent modules.
  const TensorSource& tensors() const { return *renamed_; }
  /// PEFT may save weights of the model beside the updates. Error (input): one of them is not equal
  /// to that of `base`, the model's folder; null: there is none.
  void check_copies(const TensorSource* base) const;

 private:
  std::string folder_;
  std::unique_ptr<SafetensorsFile> file_;
  std::unique_ptr<RenamedTensors> renamed_;
  std::map<std::string, std::string> copies_;  // the file's tensor -> the model's weight
};

/// Fills the parameters of a model's updates from the folder, in whatever layout they are. Errors
/// (input): those of PeftFolder, values that are NaN or infinite.
void load_peft(const std::string& folder, nn::Module& model);
/// The comparison of load_peft and PeftFolder::check_copies, before ranks start; `values` also
/// reads all values. The model may be on the meta device.
void check_peft(const std::string& folder, nn::Module& model, const TensorSource* base,
                bool values);

/// Writes adapter_model.safetensors and adapter_config.json from a checkpoint whose tensors have
/// `prefix` before their names, as `dtype`. `base` is what adapter_config.json says of the model
/// that the updates belong to; it may be empty. Returns the number of tensors. Error (input):
/// updates that PEFT's format cannot describe together.
std::size_t write_peft(const TensorSource& from, const Updates& updates, const std::string& prefix,
                       const std::string& base, DType dtype, const std::string& folder);

}  // namespace tessera::hub
