export module tessera.hub:new_tokens;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.checkpoint;
import :model_shape;
import :whole_checkpoint;

// Rows of a model for tokens that its folder does not have.

export namespace tessera::hub {

/// Weights of a folder for a model of the same sizes with more tokens: parameters that have a row
/// for each token get more rows, each the mean of the folder's rows. Of a box, only the rows that
/// are in it are made, and the folder's are read in parts of a few MiB.
class WithNewTokens final : public TensorSource {
 public:
  /// `weights` must outlive this; `shape` is the model's, with all tokens.
  WithNewTokens(const TensorSource& weights, const ModelShape& shape);
  std::uint64_t bytes_read() const override;

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override;
  /// The mean of the stored rows, in the box's other dims, as a row of f64.
  Tensor mean_row(const std::string& name, const LocalPart& box) const;

  const TensorSource& weights_;
};

/// How the weights of a model are opened.
struct FolderOptions {
  bool adds_tokens = false;         // those that the folder does not have get rows (WithNewTokens)
  BaseUse use = BaseUse::compared;  // of the base of a checkpoint
  std::string base = {};            // where that is now; empty: where it was
};

/// The weights in a model folder, a GGUF file or a checkpoint (whose updates are merged),
/// as the parameters of a model.
class FolderWeights {
 public:
  /// `shape`: the model's. Errors (input): the folder's files cannot be read; those of
  /// WholeCheckpoint.
  FolderWeights(const std::string& from, const ModelShape& shape,
                const FolderOptions& options = {});
  FolderWeights(const FolderWeights&) = delete;
  const TensorSource& source() const;

 private:
  std::unique_ptr<WholeCheckpoint> checkpoint_;         // null: it is none
  std::vector<std::unique_ptr<TensorSource>> sources_;  // each reads the one before it
};

}  // namespace tessera::hub
