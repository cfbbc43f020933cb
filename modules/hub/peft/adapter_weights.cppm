export module tessera.hub:adapter_weights;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import :hub_weights;
import :updates;

// A model's folder as it is with an adapter of PEFT in it.

export namespace tessera::hub {

/// The tensors of a folder in Hugging Face's format with the updates of an adapter's folder merged:
/// a weight is read as W + scale B A (MergedWeights), and a weight that the adapter has beside its
/// updates (modules_to_save) is the adapter's. PEFT names modules as transformers does, so families
/// whose parameters have other names or forms take adapters too. Values are checked as they are
/// read.
class AdapterWeights : public TensorSource {
 public:
  /// The folder must outlive this. `names`: what it calls the parameters. Error (input): a file of
  /// the adapter is missing or damaged, or it is another kind of adapter; and one that lists all
  /// that does not fit the model: layers and weights that it does not have or that have another
  /// shape, settings that are not supported.
  AdapterWeights(const TensorSource& folder, const HubNames& names, const std::string& adapter);
  ~AdapterWeights() override;
  std::uint64_t bytes_read() const override;
  std::string stored_type(const std::string& name) const override;
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;

  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

/// The low-rank update of a layer: scale b a is added to its weight.
struct LayerUpdate {
  std::string layer;  // its qualified name in the model
  double scale = 1;
  Tensor a;  // [rank, in], f32
  Tensor b;  // [out, rank], f32
};

/// The updates of an adapter's folder by the layers of the model in `folder`, with their values.
/// Errors (input): those of AdapterWeights; a rank above `most_rank`; a value that is NaN or
/// infinite; what is no update of a layer's weight by its rows: dora, weights beside the updates
/// (modules_to_save), parts of a tensor that are columns.
std::vector<LayerUpdate> read_layer_updates(const TensorSource& folder, const HubNames& names,
                                            const std::string& adapter, std::int64_t most_rank);

}  // namespace tessera::hub
