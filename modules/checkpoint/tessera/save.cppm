export module tessera.checkpoint:save;

import tessera.base;
import tessera.tensor;
import :source;

export namespace tessera {

/// The first tensor, by name, of which this rank's part has values that are NaN or infinite;
/// nothing when all are finite. No communication.
std::optional<std::string> first_not_finite(const StateDict& state);

/// Thrown on all ranks where a store does not take a checkpoint. The state itself can be saved, so
/// that it may go elsewhere.
class CheckpointRefusal : public Error {
 public:
  using Error::Error;
};

/// Options of saving a checkpoint.
struct SaveOptions {
  /// Tensors with values that are NaN or infinite are an error, so that what was saved before stays
  /// the newest checkpoint. Scalars may be anything.
  bool only_finite = true;
  /// The folder that the checkpoint is made in, kept open since the run began to use it; rank 0's
  /// counts. Error: it was removed, moved or replaced since then; nothing is written then. Null:
  /// folders that are missing are made.
  std::shared_ptr<const HeldFolder> within = {};
  /// Its tensors are left out of what is saved, and the checkpoint names it. The same on all ranks.
  /// Null: everything is saved.
  std::shared_ptr<const CheckpointBase> base = {};
};

/// What a checkpoint of the state stores with this base; everything where it is null. Error: a
/// tensor of the base has another type or shape in the state.
StateDict stored_part(const StateDict& state, const std::shared_ptr<const CheckpointBase>& base);

/// Saves the state into `folder`: rank-N.safetensors of every rank and checkpoint.json. All ranks
/// of the world call it, each with its own shards: of a part that several ranks hold (Replicate)
/// one writes it; of a plain tensor and of the scalars rank 0's are saved. `meta_data`: a JSON
/// object to keep with it. The ranks communicate over a communicator of their own.
///
/// All or nothing: everything is written to a folder beside it, brought to the disk, and renamed to
/// `folder` as the last step; an older checkpoint of that name stays whole until then. What crashed
/// saves have left in the parent folder is removed.
///
/// `folder` may be an address of a store ("s3://bucket/run/step-00000100"). Then each rank writes a
/// file of its own, whose name no other attempt has, and checkpoint.json comes last: without it
/// there is no checkpoint.
///
/// Error, the same on all ranks: the disk is full or any other failure of any rank (nothing is left
/// then); a Partial or meta tensor; a value that is not finite; the ranks disagree about a tensor
/// or leave gaps in it. CheckpointRefusal: a store does not take it. Error (input): the folder
/// exists and is not a checkpoint.
void save_checkpoint(const std::string& folder, const StateDict& state,
                     const std::string& meta_data = "{}", const SaveOptions& options = {});

/// Writes all tensors and scalars of a source as a checkpoint of one rank, with one tensor in
/// memory at a time, and these meta data; it names the source's base. Error (input): the folder
/// exists and is not a checkpoint.
void write_checkpoint(const TensorSource& from, const std::string& folder,
                      const std::string& meta_data = "{}");

}  // namespace tessera
