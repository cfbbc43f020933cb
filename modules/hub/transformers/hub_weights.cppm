export module tessera.hub:hub_weights;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;

// The tensors of a folder in Hugging Face's format by the names and shapes of the model's
// parameters, and the other way round (models::HubTensor).

export namespace tessera::hub {

/// What a folder calls the parameters of a model.
struct HubNames {
  std::vector<models::HubTensor> tensors = {};  // parameters with another name or form
  /// What names of a base model's folder lack, and the beginnings of names that never have it.
  std::string prefix = {};
  std::vector<std::string> without_prefix = {"lm_head."};
  std::vector<std::string> ignored = {};  // patterns of tensors that are not parameters
  std::vector<std::string> packed = {};   // see ModelFamily::packed_forms
  std::vector<std::string> further = {};  // see ModelFamily::further_tensors
};
HubNames names_of(const models::ModelFamily& family, const models::ModelSizes& sizes);
/// A folder's tensors but those that are ignored: from the name that transformers gives them to the
/// one that they have in the folder.
std::map<std::string, std::string> stored_names(const TensorSource& folder, const HubNames& names);

/// A folder's tensors as the model's parameters. Tensors that the family does not rename keep their
/// names; those that it ignores are not there. Experts in MXFP4 (X_blocks and X_scales, which the
/// family names as X) are read as bfloat16, and their rows as blocks of ggml's.
class HubWeights : public TensorSource {
 public:
  /// The source must outlive this.
  HubWeights(const TensorSource& folder, const HubNames& names);
  HubWeights(const TensorSource& folder, const models::ModelFamily& family,
             const models::ModelSizes& sizes)
      : HubWeights(folder, names_of(family, sizes)) {}
  std::uint64_t bytes_read() const override;
  std::string stored_type(const std::string& name) const override;
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override;
  /// Tensors that predict tokens after the next one, which are not among these.
  const std::vector<std::string>& further() const { return further_; }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;
  /// One parameter of the tensors that the folder (`stored`: by the names that transformers gives
  /// them) has for its dim 0.
  void stack(const models::HubTensor& entry, const std::map<std::string, std::string>& stored,
             std::set<std::string>& used);

  std::vector<std::string> further_;
  std::unique_ptr<TensorSource> unpacked_;  // null: nothing is packed
  const TensorSource& folder_;
  std::map<std::string, models::HubTensor> entries_;         // by the parameter's name
  std::map<std::string, std::vector<std::string>> stacked_;  // the tensors of its dim 0
};

/// The model's parameters as a folder's tensors. Tensors of the source without `prefix` are not
/// there, and it is removed from the names.
class HubExport : public TensorSource {
 public:
  /// The source must outlive this.
  HubExport(const TensorSource& model, const std::string& prefix, const HubNames& names);
  HubExport(const TensorSource& model, const std::string& prefix, const models::ModelFamily& family,
            const models::ModelSizes& sizes)
      : HubExport(model, prefix, names_of(family, sizes)) {}
  std::uint64_t bytes_read() const override;
  std::string stored_type(const std::string& name) const override;
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  /// What the entry has of a box of a tensor whose parts take turns along the dim.
  void copy_alternating(const models::HubTensor& entry, const LocalPart& box, int dim,
                        const Tensor& into) const;

  const TensorSource& model_;
  std::map<std::string, std::vector<models::HubTensor>> parts_;  // by the tensor's name, in order
  std::map<std::string, std::pair<std::string, std::int64_t>> stacked_;  // parameter, and entry
};

/// Error (input) that begins with `where`: the weight of one of these layers (qualified names) has
/// another name or form in a folder, so the names in an adapter of PEFT are not those of the
/// layers.
void check_takes_adapters(const models::ModelFamily& family, const models::ModelSizes& sizes,
                          std::span<const std::string> layers, const std::string& where);

}  // namespace tessera::hub
