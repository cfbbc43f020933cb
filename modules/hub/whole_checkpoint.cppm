export module tessera.hub:whole_checkpoint;

import tessera.base;
import tessera.checkpoint;

// Checkpoints that leave out the weights of the model that their run started from (CheckpointBase).

export namespace tessera::hub {

/// What a checkpoint's base is opened for.
enum class BaseUse : std::uint8_t {
  names,     ///< which tensors there are: it need not be there, and nothing of it can be read
  values,    ///< its content is compared with what the checkpoint says of it
  compared,  ///< values that somebody has compared before
};

/// The hash of what is stored of a model: of all bytes of the files with its weights; of a
/// checkpoint, of its index, which has the hashes of the others. Error (input): it cannot be read.
std::string base_hash(const std::string& path);

/// Error (input) that names both: the model at `path`, whose hash is `hash`, is not the base of the
/// checkpoint.
void check_is_base(const CheckpointBase& base, const std::string& path, const std::string& hash,
                   const std::string& checkpoint);

/// A checkpoint of 'tessera train' with all its tensors: those that it leaves out are read from its
/// base, which it names.
class WholeCheckpoint {
 public:
  /// `moved`: where the base is now; empty: where the checkpoint says that it is. Errors (input):
  /// those of CheckpointReader; the base is not there, is not the one that it was, or leaves out
  /// tensors itself.
  WholeCheckpoint(const std::string& folder, OpenFiles open, BaseUse use,
                  const std::string& moved = "");
  WholeCheckpoint(const WholeCheckpoint&) = delete;
  ~WholeCheckpoint();
  const CheckpointReader& reader() const;
  const TensorSource& tensors() const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

}  // namespace tessera::hub
