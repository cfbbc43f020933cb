export module tessera.parallel:extension;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera::parallel {

/// A tensor that is gathered instead of a parameter's values.
struct Payload {
  /// Shape of the gathered tensor. Each rank contributes its part of dim 0, which is split as
  /// Shard(0) splits it: of `ranks` equal entries, one.
  Dims shape;
  DType dtype = DType::u8;
};

/// A parameter that is gathered.
struct GatheredParameter {
  const nn::Parameter& parameter;
  /// Shape of the gathered values, with the sharded dim first: along other axes they may be a shard
  /// too.
  Dims shape;
  /// The ranks that each have a shard of dim 0.
  int ranks = 1;
  int rank = 0;  // the calling one, among these
};

/// In which form a parameter's shards are gathered, and what forward computes with. A style sets it
/// for parameters (see StyleFacts::extends_gathers), and the style that gathers them (FSDP) calls
/// it. All methods run without recording, in the same order on all ranks.
class ShardExtension {
 public:
  virtual ~ShardExtension();
  /// Tensors that are gathered: they follow from the shape and the number of ranks alone. Errors
  /// (input): a parameter that cannot be gathered in this form.
  virtual std::vector<Payload> payloads(const GatheredParameter& gathered) const = 0;
  /// Writes this rank's part of each payload from its shard (the sharded dim first; rows may be
  /// missing on the last ranks). Called again when the shard was written since.
  virtual void pack(const GatheredParameter& gathered, const Tensor& shard,
                    std::span<const Tensor> parts) = 0;
  /// Whether forward computes with values that unpack() writes. If not, the payloads stay as long
  /// as the parameter is in use, the layer reads them (GatheredPayloads), and the tensor
  /// that it computes with has a gradient, but no memory.
  virtual bool has_values() const { return true; }
  /// Writes the values, with the sharded dim first, from what was gathered.
  virtual void unpack(const GatheredParameter& gathered, std::span<const Tensor> payloads,
                      const Tensor& values) = 0;
};

/// Lets the parameter be gathered by this extension; `entry` names who sets it
/// (StyleTarget::entry). Before a style gathers it. Errors (input): it has another extension; a
/// style keeps it already.
void set_extension(nn::Parameter& parameter, std::shared_ptr<ShardExtension> extension,
                   std::string_view entry);

/// In which form shards of a parameter are gathered; attached to it.
struct ShardForm {
  std::shared_ptr<ShardExtension> extension;  // null: as they are
  std::string entry;                          // that says so
};

/// Tensors that were gathered by an extension that leaves it to the layer to compute with them,
/// while the parameter is in use; attached to it.
struct GatheredPayloads {
  std::vector<Tensor> tensors;
};

}  // namespace tessera::parallel
