export module tessera.text:adapter_layers;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.hub;

// Several adapters of one model at the same time.

export namespace tessera::text {

/// The rank of an adapter beside others, at most.
inline constexpr std::int64_t most_adapter_rank = 512;

/// Low-rank updates of a model's layers, of which each is for some texts of a batch: hooks add them
/// to what the layers give for these texts' tokens. Ranks that have a part of a layer keep that
/// part of its updates. With row-independent products (RowProducts) a text has the bits that it has
/// alone.
class AdapterLayers {
 public:
  /// Before styles are applied to the model, which must outlive it: the hooks then see what a rank
  /// itself computes.
  explicit AdapterLayers(nn::LanguageModel& model);
  ~AdapterLayers();
  AdapterLayers(const AdapterLayers&) = delete;
  AdapterLayers& operator=(const AdapterLayers&) = delete;

  /// Within it, calls of the model are of this batch, whose texts have these adapters; 0: none.
  class Batch {
   public:
    /// `layers` may be null. `learns`: notes which layers are called once for all tokens.
    Batch(AdapterLayers* layers, const nn::RaggedBatch& batch,
          std::span<const std::int64_t> adapters, bool learns = false);
    ~Batch();
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    AdapterLayers* layers_;
  };

  /// The number of each update's layer. Error (input) that begins with `adapter` and names all that
  /// is wrong: layers that the model does not compute once for all tokens, other shapes.
  std::vector<std::int64_t> numbers_of(std::span<const hub::LayerUpdate> updates,
                                       const std::string& adapter) const;
  /// The shape [out, in] of a layer's weight.
  const Dims& shape(std::int64_t layer) const;
  /// Keeps this rank's part of a layer's update b a for an adapter.
  void add(std::int64_t adapter, std::int64_t layer, const Tensor& a, const Tensor& b);
  void drop(std::int64_t adapter);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::text
