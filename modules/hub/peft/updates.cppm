export module tessera.hub:updates;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.checkpoint;

// The low-rank updates of a model (nn::LowRankUpdate), by the name of the module: what a checkpoint
// of a run says of them, and its weights as they are with the updates in them.

export namespace tessera::hub {

/// By the name of the module.
using Updates = std::map<std::string, nn::LowRankUpdate>;

/// Updates of all layers that declare one, of absent modules too.
Updates updates_of(nn::Module& model);
/// The names of the modules.
std::vector<std::string> names_of(const Updates& updates);

/// Weights that a folder of the model has, by name: all parameters but those of low-rank updates,
/// and the weights that layers keep in another form, on the meta device.
StateDict model_weights(nn::Module& model);
/// The model's parameters that are not trained and whose values follow from the folder's alone, as
/// a checkpoint names them ("model.NAME"): its weights, and the parts of those that are kept as
/// 4-bit codes (pack_nf4). Of absent modules too.
std::map<std::string, TensorInfo> untrained_weights(nn::Module& model, const TensorSource& from);
/// How a folder's weights are compared with the model and read: what absent modules would have
/// (nn::AbsentModule) is ignored.
LoadOptions weight_options(nn::Module& model);
/// Fills these from the folder, in whatever layout they are; a weight that is kept in another form
/// is packed before the next one is read. Errors (input): see load_weights.
void load_model_weights(const TensorSource& from, nn::Module& model);

/// The names that files may have of weights which layers keep in another form.
std::vector<std::string> packed_names(nn::Module& model);
/// Fills the weights that layers keep in another form, from tensors whose names have this prefix. A
/// weight that is stored in the codes of its layer (coded::StoredCodes) keeps them. Errors (input):
/// those of load_model_weights.
void load_packed_weights(const TensorSource& from, nn::Module& model, const std::string& prefix);

/// Those of the model as a member of a checkpoint's meta data: an object with a key for each
/// module.
std::string updates_member(nn::Module& model);
/// The updates in a checkpoint's meta data; none where it has none. Error (input): they are not
/// what updates_member writes.
Updates stored_updates(const std::string& meta, const std::string& checkpoint);

/// Error (input) that lists the modules whose update differs from that of the checkpoint in what it
/// computes.
void compare_updates(const Updates& stored, const Updates& own, const std::string& checkpoint);

/// The tensors of a checkpoint without updates: a weight is read as W + scale B A, or with dora as
/// the rows of that with the lengths of `magnitude`, and the parameters of the updates are not
/// there. A W that is kept as 4-bit codes ("nf4") is decoded. The sums are computed in float32, of
/// a float64 weight in float64. Rows are read whole.
class MergedWeights : public TensorSource {
 public:
  /// `prefix` is what the names of the modules have before them. `transposed`: modules whose weight
  /// is stored as [in, out]. The source must outlive this. Error (input): a parameter of an update
  /// is missing or has another shape; a form of the weight that is unknown.
  MergedWeights(const TensorSource& from, Updates updates, const std::string& prefix,
                const std::set<std::string>& transposed = {});
  std::uint64_t bytes_read() const override;
  /// Of a merged weight the type of the sums.
  std::string stored_type(const std::string& name) const override;
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  const TensorSource& from_;
  struct MergedUpdate {
    std::string module;  // with the prefix
    nn::LowRankUpdate update;
    bool transposed = false;
  };
  /// Rows of the weight [out, in] with the update.
  Tensor merged_rows(const MergedUpdate& merged, const Tensor& weight, std::int64_t row,
                     std::int64_t rows) const;

  std::map<std::string, MergedUpdate> merged_;  // by the weight's name
};

}  // namespace tessera::hub
